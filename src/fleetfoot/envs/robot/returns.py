"""What the methods of a task return, checked when its environment is built: a mistake is one line that says which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.robot.task import State, Task


def check_columns(task: Task, method: str, found: Mapping[str, Tensor], rows: int) -> None:
    _check_named(task, method, found)
    for name, value in found.items():
        if value.ndim != 2 or len(value) != rows:
            raise UserError(
                f"{method}() of {task.name} must return [robots, size]; {name} has shape {tuple(value.shape)}."
            )


def check_rows(task: Task, method: str, found: Mapping[str, Tensor], rows: int) -> None:
    _check_named(task, method, found)
    for name, value in found.items():
        if value.shape != (rows,):
            raise UserError(
                f"{method}() of {task.name} must return terms of shape [robots]; {name} has shape {tuple(value.shape)}."
            )


def _check_named(task: Task, method: str, found: object) -> None:
    if not isinstance(found, Mapping):
        raise UserError(
            f"{method}() of {task.name} must return a dictionary of tensors, not a {type(found).__name__}."
        )
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{method}() of {task.name} must return tensors; {name} is a {type(value).__name__}."
            )


def check_flags(task: Task, found: object, rows: int) -> None:
    if not isinstance(found, Tensor):
        got = f"a {type(found).__name__}"
    elif found.dtype == torch.bool and found.shape == (rows,):
        return
    else:
        got = f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
    raise UserError(f"terminated() of {task.name} must return bool of shape [robots], not {got}.")


def check_changes(task: Task, method: str, found: Mapping[str, Tensor], state: State) -> None:
    """Of `after` and `advance`: parts of the state, in the sizes that `begin` gave them."""
    _check_named(task, method, found)
    for name, value in found.items():
        if name not in state:
            raise UserError(
                f"{method}() of {task.name} changes {name!r}, which its begin() does not name."
            )
        if value.shape != state[name].shape:
            raise UserError(
                f"{method}() of {task.name} must return {name} in the shape that begin() gave it, "
                f"{tuple(state[name].shape)}, not {tuple(value.shape)}."
            )


def check_start(task: Task, found: Any, like: tuple[Tensor, Tensor]) -> None:
    shapes = tuple(tuple(value.shape) for value in like)
    fits = isinstance(found, tuple | list) and all(isinstance(value, Tensor) for value in found)
    if not fits or tuple(tuple(value.shape) for value in found) != shapes:
        raise UserError(
            f"start() of {task.name} must return positions and velocities, tensors of shapes {shapes[0]} and "
            f"{shapes[1]}."
        )


def check_told(task: Task, found: Any) -> None:
    """Of `explain`."""
    if not isinstance(found, Mapping) or not all(isinstance(v, Mapping) for v in found.values()):
        raise UserError(
            f"explain() of {task.name} must return a dictionary with one dictionary for each observation."
        )
