"""Does a saved state fit the parts that are to load it? Asked before any of it is used."""

from __future__ import annotations

from typing import Any

from torch import Tensor

NUMBERS = (bool, int, float)


def check_fits(saved: Any, own: Any, place: str) -> None:
    """ValueError where `saved` differs from `own`, the state of the same parts before loading, in more than values.

    A state may lack what an optimiser makes at its first step. Random generators of another kind of device have other
    states, and are loaded in another way (`rng.restore_generator`).
    """
    if isinstance(own, Tensor):
        if not isinstance(saved, Tensor) or saved.shape != own.shape or saved.dtype != own.dtype:
            raise ValueError(f"{place} is {_shown(saved)}, and must be {_shown(own)}")
    elif isinstance(own, dict):
        _check_dict(saved, own, place)
    elif isinstance(own, (list, tuple)):
        if type(saved) is not type(own) or len(saved) != len(own):
            raise ValueError(f"{place} is {_shown(saved)}, and must be {_shown(own)}")
        for i, (one, other) in enumerate(zip(saved, own, strict=True)):
            check_fits(one, other, f"{place}.{i}")
    elif isinstance(own, float):
        if type(saved) not in (int, float):
            raise ValueError(f"{place} is {_shown(saved)}, and must be a number")
    elif type(saved) is not type(own) and own is not None:
        raise ValueError(f"{place} is {_shown(saved)}, and must be {_shown(own)}")


def _check_dict(saved: Any, own: dict[Any, Any], place: str) -> None:
    if not isinstance(saved, dict):
        raise ValueError(f"{place} is {_shown(saved)}, and must be a table")
    if not own:  # it is made later
        return
    if own.keys() == {"device", "state"} and saved.keys() == own.keys():
        if type(saved["device"]) is not str or not isinstance(saved["state"], Tensor):
            raise ValueError(f"{place} is not the state of a random generator")
        if saved["device"] != own["device"]:
            return
    if unknown := [key for key in saved if key not in own]:
        raise ValueError(f"{place} has {unknown[0]!r:.80}, which nothing here is called")
    missing = [key for key in own if key not in saved]
    if missing and not place.endswith(".optimizer"):
        raise ValueError(f"{place} lacks {missing[0]!r:.80}")
    for key, value in saved.items():
        check_fits(value, own[key], f"{place}.{key}")


def check_env_fits(saved: Any, own: Any, num_envs: int, place: str = "env") -> None:
    """The same for the state of environments, of which only what has a row for each of them is known to be fixed."""
    if isinstance(own, Tensor) and own.shape[:1] == (num_envs,):
        check_fits(saved, own, place)
    elif isinstance(own, Tensor) and (not isinstance(saved, Tensor) or saved.dtype != own.dtype):
        raise ValueError(f"{place} is {_shown(saved)}, and must be {_shown(own)}")
    elif isinstance(own, dict):
        if not isinstance(saved, dict) or saved.keys() != own.keys():
            raise ValueError(f"{place} is not the state of these environments")
        for key, value in saved.items():
            check_env_fits(value, own[key], num_envs, f"{place}.{key}")
    elif isinstance(own, NUMBERS) and type(saved) is not type(own):
        raise ValueError(f"{place} is {_shown(saved)}, and must be {_shown(own)}")


def check_collector_fits(saved: dict[str, Any], own: dict[str, Any], num_envs: int) -> None:
    """Both for a state that holds that of environments (`env`, None where they cannot tell it) among others."""
    others = {name: value for name, value in own.items() if name != "env"}
    check_fits({name: saved[name] for name in others}, others, "state")
    if saved["env"] is not None:
        if own["env"] is None:
            raise ValueError("it holds the state of environments that have none")
        check_env_fits(saved["env"], own["env"], num_envs)


def check_counts(state: dict[str, Any], **counts: int) -> None:
    """ValueError unless each of these is a whole number from 0 to its limit."""
    for name, most in counts.items():
        value = state.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"{name} is {_shown(value)}, and must lie between 0 and {most}")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.40}"
