"""Recipes, weights and transitions on their way between processes: JSON and numpy arrays.

Several vec steps (lines) travel as a few arrays, and each observation travels once. The observation after a row is the
one that the next row starts with, so a packed block holds the observations of its first line, the new part of each
observation that followed a line, and the first observations of the episodes that started inside the block. In a stack
of frames only the newest frame is new.
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
from fleetfoot.errors import Program, UserError
from fleetfoot.recipe import Recipe

# Arrays from the object store are read-only, and torch warns about that. Nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

PER_LINE = ("action", "reward", "terminated", "truncated")


class PackedRecipe(NamedTuple):
    """A recipe in a form that another process can read."""

    text: str  # JSON
    modules: tuple[str, ...]  # that define its parts, including the user's own
    path: tuple[str, ...]  # folders in which this process finds modules


def pack_recipe(recipe: Recipe) -> PackedRecipe:
    modules = sorted(set(_modules(recipe)))
    if "__main__" in modules:
        raise UserError(
            "a part of this recipe is defined in the program itself, where other processes cannot find it: "
            "move it to a separate module and import it."
        )
    path = tuple(os.path.abspath(place) for place in sys.path if os.path.isdir(place or "."))
    return PackedRecipe(json.dumps(to_json(recipe)), tuple(modules), path)


def unpack_recipe(packed: PackedRecipe) -> Recipe:
    """In a process of Ray's."""
    Program.is_ours = True  # where an environment cannot be interrupted it ends, and is replaced
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
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _modules(item)


class Published(NamedTuple):
    """A version of some weights in the object store."""

    version: int
    ref: Any  # None in version 0: every process builds the initial weights itself


class Bfloat16(NamedTuple):
    """Numbers of a type that numpy does not have, as their bits."""

    bits: Any


def to_arrays(tree: Any, *, copy: bool = True) -> Any:
    """Tensors, in dictionaries, tuples and lists, as numpy arrays.

    Tensors on the CPU are copied: the object store may read an array later, when training has changed the tensor.
    `copy=False` is for results of workers, which are stored at once.
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


def to_tensors(tree: Any, device: torch.device | None = None) -> Any:
    """The inverse of `to_arrays`, except that tuples have become lists. Do not write to the tensors."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree).to(device)
    if isinstance(tree, Bfloat16):
        return to_tensors(tree.bits, device).view(torch.bfloat16)
    if isinstance(tree, dict):
        return {key: to_tensors(value, device) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [to_tensors(value, device) for value in tree]
    return tree


def pack_lines(steps: Sequence[Transition], spec: EnvSpec) -> dict[str, Any]:
    """Vec steps that follow one another, as arrays, which may share memory with them: send them at once."""
    first = _views(steps[0].obs, spec)
    ended = torch.stack([step.terminated | step.truncated for step in steps])[:-1]
    starts_at = ended.nonzero()  # [K, 2] line after which an episode started, column
    newest = slice(None) if spec.frame_stack == 1 else (slice(None), -1)

    def starts(name: str) -> Tensor:
        rows = [getattr(steps[line + 1].obs, name)[column] for line, column in starts_at.tolist()]
        return torch.stack(rows) if rows else first[name][:0]

    packed: dict[str, Any] = {
        "first": first,
        "newest": torch.stack([step.next_obs.actor[newest] for step in steps]),
        "starts_at": starts_at,
        "starts": {name: starts(name) for name in first},
        "task": steps[0].obs.task,
        "info": {k: torch.stack([step.info[k] for step in steps]) for k in steps[0].info},
    }
    if "critic" in first:
        packed["critic"] = torch.stack([step.next_obs.critic for step in steps])
    for name in PER_LINE:
        packed[name] = torch.stack([getattr(step, name) for step in steps])
    arrays: dict[str, Any] = to_arrays(packed, copy=False)
    return arrays


def unpack_lines(
    lines: dict[str, Any], spec: EnvSpec, device: torch.device
) -> Iterator[Transition]:
    """The inverse of `pack_lines`, on the learner's device."""
    # Stays on the host, which has to know in which lines episodes start.
    starts_at: np.ndarray[Any, Any] = lines["starts_at"]
    packed = to_tensors({k: v for k, v in lines.items() if k != "starts_at"}, device)
    views, task = packed["first"], packed["task"]
    for line in range(len(packed["reward"])):
        following = {"actor": packed["newest"][line]}
        if spec.frame_stack > 1:
            newest = following["actor"].unsqueeze(1)
            following["actor"] = torch.cat([views["actor"][:, 1:], newest], 1)
        if "critic" in packed:
            following["critic"] = packed["critic"][line]
        yield Transition(
            obs=_obs(views, task),
            next_obs=_obs(following, task),
            info={name: values[line] for name, values in packed["info"].items()},
            **{name: packed[name][line] for name in PER_LINE},
        )
        views = following
        if len(started := np.flatnonzero(starts_at[:, 0] == line)):
            column = torch.from_numpy(starts_at[started, 1]).to(device)
            entry = torch.from_numpy(started).to(device)
            views = {
                name: view.index_copy(0, column, packed["starts"][name][entry])
                for name, view in following.items()
            }


def split_lines(lines: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The observations of the first line, and everything else: together they are `lines`."""
    first = {name: lines[name] for name in ("first", "task")}
    return first, {name: value for name, value in lines.items() if name not in first}


def unpack_obs(first: dict[str, Any], device: torch.device) -> Obs:
    """The observations in the first half of `split_lines`."""
    tensors = to_tensors(first, device)
    return _obs(tensors["first"], tensors["task"])


def _views(obs: Obs, spec: EnvSpec) -> dict[str, Tensor]:
    """What the actor sees, and what the critic sees if that is something else."""
    views = {"actor": obs.actor}
    return views if spec.critic_shape is None else views | {"critic": obs.critic}


def _obs(views: dict[str, Tensor], task: Tensor | None) -> Obs:
    return Obs(views["actor"], views.get("critic", views["actor"]), task)
