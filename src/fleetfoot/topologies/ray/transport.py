"""Transitions on their way from an actor to the learner: several vec steps as a few arrays.

Each observation travels once. What follows a row is what the next row begins with, so a block holds the observations
of its first line, then what was new after each line, and the first observations of the episodes that began inside it.
Of a stack of frames only the newest is new.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fleetfoot.config import from_json, to_json
from fleetfoot.data import EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe

# Arrays from the object store cannot be written to. Nothing here writes to them, and torch would warn each time.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def pack_lines(steps: Sequence[Transition], spec: EnvSpec) -> dict[str, Any]:
    """As arrays. The steps must follow from one another. Arrays may share memory with them: send them at once."""
    ended = torch.stack([s.terminated | s.truncated for s in steps[:-1]] or [_nothing(steps[0])])
    at = ended.nonzero()  # [K, 2] line, column
    newest = slice(None) if spec.frame_stack == 1 else (slice(None), -1)
    private = spec.critic_shape is not None

    def begun(side: str) -> Tensor:
        rows = [getattr(steps[line + 1].obs, side)[column] for line, column in at.tolist()]
        return torch.stack(rows) if rows else getattr(steps[0].obs, side)[:0]

    packed: dict[str, Any] = to_arrays(
        {
            "first": {side: getattr(steps[0].obs, side) for side in sides(private)},
            "newest": torch.stack([s.next_obs.actor[newest] for s in steps]),
            "critic": torch.stack([s.next_obs.critic for s in steps]) if private else None,
            "begun_at": at,
            "begun": {side: begun(side) for side in sides(private)},
            "task": steps[0].obs.task,
            **{
                name: torch.stack([getattr(s, name) for s in steps])
                for name in ("action", "reward", "terminated", "truncated")
            },
            "info": {k: torch.stack([s.info[k] for s in steps]) for k in steps[0].info},
        },
        copy=False,
    )
    return packed


def unpack_lines(
    lines: dict[str, Any], spec: EnvSpec, device: torch.device
) -> Iterator[Transition]:
    """The inverse of `pack_lines`, on the learner's device."""
    where: np.ndarray[Any, Any] = lines["begun_at"]  # stays on the host: it decides what is done
    rest = _to(to_tensors({k: v for k, v in lines.items() if k != "begun_at"}), device)
    private = rest["critic"] is not None
    task = rest["task"]
    obs = {side: rest["first"][side] for side in sides(private)}
    for line in range(len(rest["reward"])):
        newest = rest["newest"][line]
        after = {"actor": newest}
        if spec.frame_stack > 1:
            after["actor"] = torch.cat([obs["actor"][:, 1:], newest.unsqueeze(1)], 1)
        if private:
            after["critic"] = rest["critic"][line]
        yield Transition(
            obs=_whole(obs, task),
            next_obs=_whole(after, task),
            info={name: values[line] for name, values in rest["info"].items()},
            **{name: rest[name][line] for name in ("action", "reward", "terminated", "truncated")},
        )
        obs = after
        if len(began := np.flatnonzero(where[:, 0] == line)):
            column = torch.from_numpy(where[began, 1]).to(device)
            entry = torch.from_numpy(began).to(device)
            obs = {
                side: after[side].index_copy(0, column, rest["begun"][side][entry])
                for side in sides(private)
            }


def split_lines(lines: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first line begins with, and everything else: together they are `lines`."""
    seen = {name: lines[name] for name in ("first", "task")}
    return seen, {name: value for name, value in lines.items() if name not in seen}


def unpack_obs(seen: dict[str, Any], device: torch.device) -> Obs:
    """The observations in the first half of `split_lines`."""
    tensors = _to(to_tensors(seen), device)
    return _whole(tensors["first"], tensors["task"])


def sides(private: bool) -> tuple[str, ...]:
    return ("actor", "critic") if private else ("actor",)


def _whole(parts: dict[str, Tensor], task: Tensor | None) -> Obs:
    return Obs(parts["actor"], parts.get("critic", parts["actor"]), task)


def _nothing(step: Transition) -> Tensor:
    return torch.zeros_like(step.terminated)


def _to(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: _to(value, device) for key, value in tree.items()}
    return tree


class PackedRecipe(NamedTuple):
    """A recipe on its way to another process."""

    text: str  # JSON
    modules: tuple[str, ...]  # that define its parts, the user's own among them
    path: tuple[str, ...]  # where this process finds modules


def pack_recipe(recipe: Recipe) -> PackedRecipe:
    modules = sorted(set(_modules(recipe)))
    if "__main__" in modules:
        raise UserError(
            "a part of this recipe is defined in the program itself, where other processes do not find it: "
            "move it to a module of its own and import it."
        )
    path = tuple(os.path.abspath(place) for place in sys.path if os.path.isdir(place or "."))
    return PackedRecipe(json.dumps(to_json(recipe)), tuple(modules), path)


def unpack_recipe(packed: PackedRecipe) -> Recipe:
    known = set(sys.path)
    sys.path += [place for place in packed.path if place not in known and os.path.isdir(place)]
    for module in packed.modules:
        importlib.import_module(module)
    recipe = from_json(json.loads(packed.text))
    assert isinstance(recipe, Recipe)
    return recipe


def _modules(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        yield type(value).__module__
        for field in dataclasses.fields(value):
            yield from _modules(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _modules(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _modules(one)


class Bfloat16(NamedTuple):
    """Numbers that numpy does not know, by their bits."""

    bits: Any


def to_arrays(tree: Any, *, copy: bool = True) -> Any:
    """Tensors, in dictionaries, tuples and lists, as numpy arrays that nobody will write to.

    A tensor on the CPU is copied: the object store may read it later, when training may have changed it. What is read
    at once, as that which a worker returns, need not be.
    """
    if isinstance(tree, Tensor):
        if tree.dtype == torch.bfloat16:
            return Bfloat16(to_arrays(tree.view(torch.int16), copy=copy))
        host = tree.detach().to("cpu")
        shared = host.data_ptr() == tree.data_ptr()
        return (host.clone() if copy and shared else host).numpy()
    if isinstance(tree, dict):
        return {key: to_arrays(value, copy=copy) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [to_arrays(value, copy=copy) for value in tree]
    return tree


def to_tensors(tree: Any) -> Any:
    """The inverse of `to_arrays`, but for tuples, which are lists now. Do not write to the tensors."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree)
    if isinstance(tree, Bfloat16):
        return torch.from_numpy(tree.bits).view(torch.bfloat16)
    if isinstance(tree, dict):
        return {key: to_tensors(value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [to_tensors(value) for value in tree]
    return tree


class Published(NamedTuple):
    """Weights in the object store. Pass it to workers as it is; `fetch` gives the arrays' tensors."""

    version: int
    ref: Any  # None in `version` 0, where workers build the initial weights themselves


def publish(ray: Any, version: int, weights: Any) -> Published:
    """Put `weights` (any tree of tensors) into the object store under a version number."""
    return Published(version, ray.put(to_arrays(weights)))


def fetch(ray: Any, published: Published) -> Any:
    return to_tensors(ray.get(published.ref))
