"""A trained policy outside of training: observations in, actions out, and no simulator.

policy, spec = load_policy("runs/my-run")
action = policy(obs)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fleetfoot.data import Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError

Array: TypeAlias = Tensor | ArrayLike  # what numpy understands: an array, a list of numbers
Task: TypeAlias = int | str | Sequence[int | str] | Tensor | NDArray[Any] | np.generic


class TrainedPolicy:
    """Observations -> greedy actions, without gradients, in evaluation mode.

    `obs` is what the actor sees, for one environment [*obs_shape] or for several [B, *obs_shape]: a numpy array or
    a tensor on any device. Where critics see more, an `Obs` or a dictionary with the key "actor" will do as well; only
    the actor's part counts. The action is of the same kind: an array or a tensor on the device of `obs`, with a batch
    axis where `obs` has one. Continuous actions lie in [-1, 1], which the environments of fleetfoot map onto
    the bounds of the simulator. A discrete action for a single numpy observation is an int.

    `task` is for sets of several tasks: the number or the name of the task, one for all rows or one for each.
    """

    def __init__(self, network: nn.Module, spec: EnvSpec):
        """`network`: Obs -> action, on the device `spec.device`."""
        self.network, self.spec = network.eval(), spec

    @torch.no_grad()
    def __call__(self, obs: Array | Obs | Mapping[str, Array], task: Task | None = None) -> Any:
        if isinstance(obs, Obs):
            task = obs.task if task is None else task
            obs = obs.actor
        elif isinstance(obs, Mapping):
            if "actor" not in obs:
                raise UserError(
                    f"the policy reads obs['actor'], which is not among {', '.join(map(str, obs))}."
                )
            task = obs.get("task") if task is None else task  # type: ignore[assignment]
            obs = obs["actor"]
        given = obs if isinstance(obs, Tensor) else torch.from_numpy(np.array(obs))
        rows = self._rows(given)
        action: Tensor = self.network(Obs(rows, rows, self._task(task, len(rows))))
        if rows.dim() > given.dim():
            action = action.squeeze(0)
        if isinstance(obs, Tensor):
            return action.to(obs.device)
        if isinstance(self.spec.action, Discrete) and action.dim() == 0:
            return int(action)
        return action.cpu().numpy()

    def _rows(self, obs: Tensor) -> Tensor:
        """[B, *obs_shape], as the network reads it."""
        spec = self.spec
        shape = tuple(obs.shape)
        if shape != spec.obs_shape and shape[1:] != spec.obs_shape:
            raise UserError(
                f"{spec.name} has observations of shape {spec.obs_shape}, alone or as rows of a batch, not {shape}."
            )
        if spec.obs_dtype == torch.uint8 and obs.dtype != torch.uint8:
            raise UserError(f"{spec.name} shows bytes (uint8), not {obs.dtype}.")
        rows = obs.unsqueeze(0) if shape == spec.obs_shape else obs
        return rows.to(spec.device, spec.obs_dtype)

    def _task(self, task: Task | None, rows: int) -> Tensor | None:
        """[B] int64, in sets of several tasks."""
        names = self.spec.tasks
        if not names:
            return None
        if task is None:
            raise UserError(f"which task? policy(obs, task=...) with {', '.join(names)}.")
        given: Any = task.tolist() if isinstance(task, (Tensor, np.ndarray, np.generic)) else task
        listed = [given] if isinstance(given, (int, str)) else list(given)
        if len(listed) not in (1, rows):
            raise UserError(
                f"{len(listed)} tasks for {rows} observations; give one task, or one each."
            )
        numbers = torch.tensor([self._number(one) for one in listed], device=self.spec.device)
        return numbers.expand(rows) if len(numbers) == 1 else numbers

    def _number(self, task: Any) -> int:
        names = self.spec.tasks
        if isinstance(task, str):
            if task not in names:
                raise UserError(f"there is no task {task!r}; there are {', '.join(names)}.")
            return names.index(task)
        if not 0 <= int(task) < len(names):
            raise UserError(
                f"there is no task {int(task)}; they are numbered 0 to {len(names) - 1}."
            )
        return int(task)
