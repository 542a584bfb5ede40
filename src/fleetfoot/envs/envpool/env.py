"""EnvPool: the tasks of dm_control, Meta-World, MyoSuite, MuJoCo Playground and others, stepped by C++ threads.

What is done here because EnvPool (version 1.2.5) does otherwise:

- *Restarts.* EnvPool restarts one step late, in a step that ignores its action. Here environments that have ended are
  reset at once, they alone, so every vec step is one real step of every environment.
- *The time limit.* EnvPool does not tell a task that ended by itself in the very last step from one that was cut. It is
  given one step more than the limit, and the clock is kept here.
- *Observations.* Dictionaries of float64 become rows of float32, in a fixed order; what EnvPool declares for other
  tasks of the same domain, and leaves zero, is dropped (`envpool_tasks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import Action, Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.envpool.pool import Pool, StepArrays, TaskKind, names
from fleetfoot.envs.envpool.tasks import SETS
from fleetfoot.envs.host import HostEnv, seeds_of_copies
from fleetfoot.errors import UserError, nearest
from fleetfoot.system import usable_cores

__all__ = ["SETS", "EnvPoolConfig", "EnvPoolEnv", "EnvPoolTasksConfig", "names"]


@part
class EnvPoolConfig:
    """One task by EnvPool's id.

    Such as WalkerRun-v1, MetaWorld/Reach-v3 or MuJoCoPlayground/Go1JoystickFlatTerrain-v1.
    """

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    task: str = "WalkerRun-v1"
    action_repeat: int = 1
    """Task steps for which an action is repeated; their rewards are summed."""
    max_episode_steps: int = 0
    """Steps of the task (not of the agent) until truncation; 0: its own limit."""
    threads: int = 0
    """Threads that step the environments; 0: all available cores."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments for `envpool.make`."""

    def __post_init__(self) -> None:
        at_least(self, "env", action_repeat=1, max_episode_steps=0, threads=0)

    def build(self, num_envs: int, seed: int, device: torch.device) -> EnvPoolEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        kind = TaskKind(self.task, self.kwargs, self.max_episode_steps)
        return EnvPoolEnv(
            f"envpool/{self.task}", [kind], num_envs, seed, device, self.action_repeat, self.threads
        )

    def for_evaluation(self) -> EnvPoolConfig:
        return self


@part
class EnvPoolTasksConfig:
    """Several tasks as one set: environment i has task i % K. `set` names a known list, `tasks` gives your own."""

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    set: str = "mt10"
    """mt10, mt50, dogs, humanoids or dogs_and_humanoids; empty: `tasks`."""
    tasks: tuple[str, ...] = ()
    """EnvPool's ids, if `set` is empty."""
    action_repeat: int = 1
    """Steps of a task for which an action is repeated; their rewards are summed."""
    max_episode_steps: int = 0
    """Steps of every task (not of the agent) until truncation; 0: its own limit."""
    threads: int = 0
    """Threads that step the environments; 0: all available cores."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments for `envpool.make` of every task."""

    def __post_init__(self) -> None:
        at_least(self, "env", action_repeat=1, max_episode_steps=0, threads=0)
        if self.set and self.set not in SETS:
            known = ", ".join(SETS)
            raise UserError(
                f"no set of tasks is named {self.set!r}; there are {known}.{nearest(self.set, SETS)} "
                "For your own list: --env.set '' --env.tasks ID ID ..."
            )
        if bool(self.set) == bool(self.tasks):
            raise UserError("give either env.set or env.tasks, and leave the other empty.")
        if len(set(self.tasks)) != len(self.tasks) or len(self.tasks) == 1:
            raise UserError(f"env.tasks are two or more, each named once, not {self.tasks}.")

    def build(self, num_envs: int, seed: int, device: torch.device) -> EnvPoolEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        ids = self.tasks or SETS[self.set]
        kinds = [TaskKind(task, self.kwargs, self.max_episode_steps) for task in ids]
        name = f"envpool/{self.set or '+'.join(ids)}"
        flat = all(
            isinstance(kind.action, Continuous) and not kind.image and kind.critic_size is None
            for kind in kinds
        )
        if not flat:
            raise UserError(
                f"{name} cannot be one set: its tasks need continuous actions and flat observations "
                "that actor and critic share."
            )
        return EnvPoolEnv(name, kinds, num_envs, seed, device, self.action_repeat, self.threads)

    def for_evaluation(self) -> EnvPoolTasksConfig:
        return self


class EnvPoolEnv(HostEnv):
    """N environments behind the `VecEnv` contract, environment i of kind i % K.

    With several kinds (K > 1) observations are padded with zeros to the longest, each environment takes the first
    components of the action, and `Obs.task` tells the kinds apart.
    """

    why_no_state = "EnvPool does not tell the state of its simulators"

    def __init__(
        self,
        name: str,
        kinds: Sequence[TaskKind],
        num_envs: int,
        seed: int,
        device: torch.device,
        repeat: int,
        threads: int,
    ) -> None:
        self.repeat, self.kinds = repeat, kinds
        seeds = [word >> 1 for word in seeds_of_copies(seed, num_envs)]  # EnvPool takes 31 bits
        every = len(kinds)
        cores = max(1, (threads or usable_cores()) // min(every, num_envs))
        self.pools = [
            Pool(kind, seeds[k::every], k, every, cores) for k, kind in enumerate(kinds[:num_envs])
        ]
        limits = [kind.limit for kind in kinds]
        self.limit = np.array([limits[i % every] for i in range(num_envs)])
        one = kinds[0]
        several = len(kinds) > 1
        self.obs_shape = max(kind.obs_shape for kind in kinds)
        self.has_success = any(kind.success for kind in kinds)
        self.spec = EnvSpec(
            name=name,
            num_envs=num_envs,
            obs_shape=self.obs_shape,
            critic_shape=None if one.critic_size is None else (one.critic_size,),
            # So it is in each of Playground's tasks: what the critic sees begins with what the actor sees.
            critic_prefix=0 if one.critic_size is None else one.obs_shape[0],
            obs_dtype=torch.uint8 if one.image else torch.float32,
            action=max((kind.action for kind in kinds), key=_size),
            device=device,
            episode_length=math.ceil(limits[0] / repeat) if len(set(limits)) == 1 else None,
            tasks=tuple(kind.task for kind in kinds) if several else (),
            task_ids=tuple(i % every for i in range(num_envs)) if several else (),
            step_seconds=one.seconds * repeat,
            description={} if several else one.describe(repeat),
        )
        self.task = torch.tensor(self.spec.task_ids, device=device) if several else None
        self.clock = np.zeros(num_envs, dtype=np.int64)  # steps of each running episode

    def reset(self) -> Obs:
        self.clock[:] = 0
        return self._to_obs(self._restart(self._blank(), None))

    def step(self, action: Tensor) -> Step:
        self.send(action)
        return self.receive()

    def send(self, action: Tensor) -> None:
        self.actions = self._checked(action)
        self._tell(None)

    def receive(self) -> Step:
        arrays = self._blank()
        going: NDArray[np.int64] | None = None  # all
        for left in reversed(range(self.repeat)):
            for pool in self.pools:
                pool.receive(arrays)
            self.clock[slice(None) if going is None else going] += 1
            truncated = (self.clock >= self.limit) & ~arrays.terminated
            ended = arrays.terminated | truncated
            some = bool(ended.any())
            if some and not len(going := np.flatnonzero(~ended)):
                break
            if left:
                self._tell(going)
        obs = next_obs = self._to_obs(arrays)
        if some:
            rows = np.flatnonzero(ended)
            critic = None if arrays.critic is None else arrays.critic.copy()
            fresh = arrays._replace(actor=arrays.actor.copy(), critic=critic)
            obs = self._to_obs(self._restart(fresh, rows))
            self.clock[rows] = 0
        return Step(
            obs,
            next_obs,
            self._tensor(arrays.reward),
            self._tensor(arrays.terminated),
            self._tensor(truncated),
            {} if arrays.success is None else {"success": self._tensor(arrays.success)},
        )

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        every = len(self.kinds)
        try:
            return self.pools[index % every].draw(index // every)
        except UserError as why:
            raise UserError(f"{self.spec.name} cannot be rendered here: {why}") from None

    def close(self) -> None:
        self.pools = []  # EnvPool's destructor ends the threads

    def _tell(self, rows: NDArray[np.int64] | None) -> None:
        """All pools work at once: each is waited for only after every one has been told."""
        for pool in self.pools:
            pool.send(self.actions, rows)

    def _restart(self, into: StepArrays, rows: NDArray[np.int64] | None) -> StepArrays:
        for pool in self.pools:
            pool.send_reset(rows)
        for pool in self.pools:
            pool.receive(into, reset=True)
        return into

    def _blank(self) -> StepArrays:
        """New arrays for every step: what was handed out is never written to again. Padding stays zero."""
        count, shape = self.spec.num_envs, self.spec.critic_shape
        return StepArrays(
            np.zeros((count, *self.obs_shape), np.uint8 if self.kinds[0].image else np.float32),
            None if shape is None else np.zeros((count, *shape), np.float32),
            np.zeros(count, np.float32),
            np.zeros(count, np.bool_),
            np.zeros(count, np.float32) if self.has_success else None,
        )

    def _checked(self, action: Tensor) -> NDArray[Any]:
        rows: NDArray[Any] = action.cpu().numpy()
        kind, count = self.spec.action, self.spec.num_envs
        discrete = isinstance(kind, Discrete)
        shape = (count,) if discrete else (count, _size(kind))
        if rows.shape != shape or (rows.dtype.kind == "i") != discrete:
            raise UserError(
                f"{self.spec.name} takes actions {'int64' if discrete else 'float32'} {list(shape)}, "
                f"not {rows.dtype} {list(rows.shape)}."
            )
        if discrete and (rows.min() < 0 or rows.max() >= _size(kind)):
            raise UserError(
                f"{self.spec.name} has actions 0 to {_size(kind) - 1}; {rows.min()} to {rows.max()} were given."
            )
        return rows

    def _to_obs(self, arrays: StepArrays) -> Obs:
        actor = self._tensor(arrays.actor)
        return Obs(
            actor, actor if arrays.critic is None else self._tensor(arrays.critic), self.task
        )


def _size(action: Action) -> int:
    return action.size if isinstance(action, Continuous) else action.count
