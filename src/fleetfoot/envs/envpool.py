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

import ctypes
import functools
import importlib
import math
import sys
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import Action, Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.envpool_tasks import keys_of, seconds_of
from fleetfoot.envs.mujoco_physics import usable_cores
from fleetfoot.part import UserError, nearest, part

UNBOUNDED = 1e9  # EnvPool writes an action without bounds as one with huge ones
PICTURE = (480, 360)  # width and height
SUCCESS = ("info:success", "info:solved")  # Meta-World's name and MyoSuite's


@part
class EnvPoolConfig:
    """One task by EnvPool's id, such as WalkerRun-v1, MetaWorld/Reach-v3 or MuJoCoPlayground/Go1JoystickFlatTerrain-v1;
    `kwargs` go to `envpool.make`."""

    task: str = "WalkerRun-v1"
    action_repeat: int = (
        1  # steps of the task that one action is held for; their rewards are summed
    )
    max_episode_steps: int = 0  # steps of the task (not of the agent) until truncation; 0: its own
    threads: int = 0  # that step the environments; 0: as many as there are usable cores
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_common(self.action_repeat, self.max_episode_steps, self.threads)

    def build(self, num_envs: int, seed: int, device: torch.device) -> EnvPoolEnv:
        if num_envs < 1:
            raise UserError(f"num_envs is {num_envs}; it starts at 1.")
        kind = TaskKind(self.task, self.kwargs, self.max_episode_steps)
        return EnvPoolEnv(
            f"envpool/{self.task}", [kind], num_envs, seed, device, self.action_repeat, self.threads
        )

    def for_evaluation(self) -> EnvPoolConfig:
        return self


def check_common(action_repeat: int, max_episode_steps: int, threads: int) -> None:
    for name, value, least in (
        ("action_repeat", action_repeat, 1),
        ("max_episode_steps", max_episode_steps, 0),
        ("threads", threads, 0),
    ):
        if value < least:
            raise UserError(f"env.{name} is at least {least}, not {value}.")


def names() -> list[str]:
    """EnvPool's ids, sorted."""
    return sorted(_load().list_all_envs())


class TaskKind:
    """What one of EnvPool's tasks looks like: its observations, actions and limit. Makes the environments too."""

    def __init__(self, task: str, kwargs: dict[str, Any], max_episode_steps: int = 0) -> None:
        envpool = _load()
        if task not in envpool.list_all_envs():
            raise UserError(
                f"EnvPool has no task {task!r}.{nearest(task, envpool.list_all_envs())} "
                "`fleetfoot list envpool` names them all."
            )
        self.task = task
        module: str = envpool.registration.registry.specs[task][0]
        family = module.rpartition(".")[2]
        self.mujoco = module.startswith("envpool.mujoco.")
        self.camera = 0 if family == "dmc" else -1  # dm_control's first camera goes with the robot
        # As in MT1, MT10 and the goal-observable environments of the papers; EnvPool's default hides the goal.
        visible = {"partially_observable": False} if family == "metaworld" else {}
        self.kwargs = visible | kwargs
        try:
            spec = envpool.make_spec(task, **self.kwargs)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise UserError(f"{task} cannot be made with kwargs {kwargs}: {error}") from None
        config = spec.config._asdict()
        if config["max_num_players"] != 1:
            raise UserError(f"{task} has several players; only tasks for one are understood.")
        self.limit = max_episode_steps or int(config["max_episode_steps"])
        self.seconds = seconds_of(task, family, config)
        self._read_observations(spec.state_array_spec)
        self._read_actions(spec)
        self.success = next((key for key in SUCCESS if key in spec.state_array_spec), None)

    def _read_observations(self, declared: dict[str, Any]) -> None:
        found = {
            key.removeprefix("obs:"): value
            for key, value in declared.items()
            if key.partition(":")[0] == "obs"
        }
        keys = keys_of(self.task, list(found))
        self.image = [found[key].dtype for key in keys] == [np.uint8] and len(
            found[keys[0]].shape
        ) == 3
        self.obs_shape: tuple[int, ...]
        self.critic_size: int | None = None
        self.layout: list[tuple[str, int, int]] = []  # key, first and last column
        if self.image:
            self.obs_shape = tuple(int(size) for size in found[keys[0]].shape)
            self.layout = [(self._full(keys[0]), 0, 0)]
            return
        if {"state", "privileged_state"} <= set(keys):
            keys = ["state"]
            self.critic_size = math.prod(found["privileged_state"].shape)
        at = 0
        for key in keys:
            size = math.prod(found[key].shape)
            if not np.issubdtype(found[key].dtype, np.number) or size < 0:
                raise UserError(
                    f"{self.task} has observations {key!r} of {found[key].dtype} {found[key].shape}; "
                    "only numbers of a fixed size and single images are understood."
                )
            self.layout.append((self._full(key), at, at + size))
            at += size
        self.obs_shape = (at,)

    @staticmethod
    def _full(key: str) -> str:
        return key if key == "obs" else f"obs:{key}"

    def _read_actions(self, spec: Any) -> None:
        declared = list(spec.action_array_spec.items())[2:]  # after env_id and players.env_id
        one = declared[0][1] if len(declared) == 1 else None
        self.action: Action
        self.half = self.middle = np.zeros(0)
        if one is not None and np.issubdtype(one.dtype, np.integer) and len(one.shape) <= 1:
            self.action = Discrete(int(one.maximum) - int(one.minimum) + 1)
            self.first = int(one.minimum)
        elif one is not None and np.issubdtype(one.dtype, np.floating) and len(one.shape) == 2:
            space = spec.gymnasium_action_space
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            if max(-low.min(), high.max()) > UNBOUNDED:
                raise UserError(f"{self.task} has actions without bounds.")
            self.action = Continuous(int(one.shape[1]))
            self.half, self.middle = (high - low) / 2, (high + low) / 2
        else:
            kinds = ", ".join(f"{key} {value.dtype} {value.shape}" for key, value in declared)
            raise UserError(f"{self.task} has actions {kinds}; a vector or one choice is needed.")
        self.action_dtype = one.dtype

    def convert(self, action: NDArray[Any]) -> NDArray[Any]:
        """Rows of actions of this library, as many columns as this task has -> EnvPool's."""
        if isinstance(self.action, Discrete):
            return np.asarray(action + self.first, dtype=self.action_dtype)
        return np.asarray(np.clip(action, -1, 1) * self.half + self.middle, self.action_dtype)

    def make(self, seeds: Sequence[int], threads: int) -> Any:
        return _load().make(
            self.task,
            env_type="gymnasium",
            num_envs=len(seeds),
            num_threads=min(threads, len(seeds)),
            env_seed=list(seeds),
            **{**self.kwargs, "max_episode_steps": self.limit + 1},
        )


class Seen(NamedTuple):
    """What one vec step of all environments has shown so far; pools write their rows into it."""

    actor: NDArray[Any]  # [N, *obs_shape]
    critic: NDArray[np.float32] | None  # [N, D] where it sees something else
    reward: NDArray[np.float32]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    success: NDArray[np.float32] | None  # [N]


class Pool:
    """The environments of one task: the rows `first`, `first + every`, ... of the set.

    Speaks to EnvPool below its Gymnasium layer, which builds nested dictionaries that are taken apart again here; for a
    single Walker that is a quarter of a step.
    """

    def __init__(
        self, kind: TaskKind, seeds: Sequence[int], first: int, every: int, threads: int
    ) -> None:
        self.kind = kind
        self.envs: Any = kind.make(seeds, threads)
        self.keys: list[str] = list(self.envs._state_keys)
        self.rows = first + every * np.arange(len(seeds))
        self.sent = self.rows  # rows that an answer is awaited for
        self.first, self.every = first, every

    def _ids(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        own = rows[rows % self.every == self.first]
        self.sent = own
        return np.asarray((own - self.first) // self.every, dtype=np.int32)

    def send(self, action: NDArray[Any], rows: NDArray[np.int64]) -> None:
        """Start a step of those of `rows` that are in this pool."""
        ids = self._ids(rows)
        if len(ids):
            own = action[self.sent]
            if isinstance(self.kind.action, Continuous):
                own = own[:, : self.kind.action.size]
            self.envs._send([ids, ids, self.kind.convert(own)])

    def send_reset(self, rows: NDArray[np.int64]) -> None:
        ids = self._ids(rows)
        if len(ids):
            self.envs._reset(ids)

    def draw(self, index: int) -> NDArray[np.uint8]:
        if self.kind.mujoco:
            _check_gl()
        ids = np.array([index], dtype=np.int32)
        return np.array(self.envs._render(ids, *PICTURE, self.kind.camera)[0], dtype=np.uint8)

    def receive(self, seen: Seen, reset: bool = False) -> None:
        """Write the answers to what was sent last. EnvPool gives them in the order of the ids."""
        rows = self.sent
        if not len(rows):
            return
        found = dict(zip(self.keys, self.envs._recv(), strict=True))
        for key, start, stop in self.kind.layout:
            if self.kind.image:
                seen.actor[rows] = found[key]
            else:
                seen.actor[rows, start:stop] = found[key].reshape(len(rows), -1)
        if seen.critic is not None:
            seen.critic[rows] = found["obs:privileged_state"]
        if reset:
            return  # what else it says is left over from the last step
        seen.reward[rows] += found["reward"]
        seen.terminated[rows] = found["done"] & ~found["trunc"]
        if seen.success is not None and self.kind.success:
            now = found[self.kind.success] > 0
            seen.success[rows] = np.maximum(seen.success[rows], now)


class EnvPoolEnv:
    """N environments behind the `VecEnv` contract, environment i of kind i % K.

    With several kinds (K > 1) observations are padded with zeros to the longest, each environment takes the first
    components of the action, and `Obs.task` tells the kinds apart.
    """

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
        # Word i of nothing but (seed, i): the same for any number of environments. EnvPool takes 31 bits.
        seeds = [
            int(np.random.SeedSequence(seed % 2**64, spawn_key=(i,)).generate_state(1)[0]) >> 1
            for i in range(num_envs)
        ]
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
        )
        self.task = torch.tensor(self.spec.task_ids, device=device) if several else None
        self.clock = np.zeros(num_envs, dtype=np.int64)  # steps of each running episode
        self.all = np.arange(num_envs)

    def reset(self) -> Obs:
        self.clock[:] = 0
        return self._obs(self._restart(self._blank(), self.all))

    def step(self, action: Tensor) -> Step:
        actions = self._checked(action)
        seen, going = self._blank(), self.all
        for _ in range(self.repeat):
            # All pools work at once: each is waited for only after every one has been told.
            for pool in self.pools:
                pool.send(actions, going)
            for pool in self.pools:
                pool.receive(seen)
            self.clock[going] += 1
            truncated = (self.clock >= self.limit) & ~seen.terminated
            going = np.flatnonzero(~(seen.terminated | truncated))
            if not len(going):
                break
        obs = next_obs = self._obs(seen)
        if len(going) < len(self.all):
            ended = np.flatnonzero(seen.terminated | truncated)
            critic = None if seen.critic is None else seen.critic.copy()
            fresh = seen._replace(actor=seen.actor.copy(), critic=critic)
            obs = self._obs(self._restart(fresh, ended))
            self.clock[ended] = 0
        return Step(
            obs,
            next_obs,
            self._tensor(seen.reward),
            self._tensor(seen.terminated),
            self._tensor(truncated),
            {} if seen.success is None else {"success": self._tensor(seen.success)},
        )

    def state_dict(self) -> None:
        """EnvPool does not tell the state of its simulators."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        raise UserError(
            f"{self.spec.name} cannot be restored: EnvPool does not tell the state of its simulators."
        )

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        every = len(self.kinds)
        try:
            return self.pools[index % every].draw(index // every)
        except UserError as why:
            raise UserError(f"{self.spec.name} cannot be drawn here: {why}") from None

    def close(self) -> None:
        self.pools = []  # EnvPool's destructor ends the threads

    def _restart(self, into: Seen, rows: NDArray[np.int64]) -> Seen:
        for pool in self.pools:
            pool.send_reset(rows)
        for pool in self.pools:
            pool.receive(into, reset=True)
        return into

    def _blank(self) -> Seen:
        """New arrays for every step: what was handed out is never written to again. Padding stays zero."""
        count, shape = self.spec.num_envs, self.spec.critic_shape
        return Seen(
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
        if rows.shape != shape or np.issubdtype(rows.dtype, np.integer) != discrete:
            raise UserError(
                f"{self.spec.name} takes actions {'int64' if discrete else 'float32'} {list(shape)}, "
                f"not {rows.dtype} {list(rows.shape)}."
            )
        if discrete and (rows.min() < 0 or rows.max() >= _size(kind)):
            raise UserError(
                f"{self.spec.name} has actions 0 to {_size(kind) - 1}; {rows.min()} to {rows.max()} were given."
            )
        return rows

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.spec.device)

    def _obs(self, seen: Seen) -> Obs:
        actor = self._tensor(seen.actor)
        return Obs(actor, actor if seen.critic is None else self._tensor(seen.critic), self.task)


def _size(action: Action) -> int:
    return action.size if isinstance(action, Continuous) else action.count


def _check_gl() -> None:
    """EnvPool's MuJoCo ends the process where OpenGL does not work, so that is found out before it is asked."""
    from fleetfoot.envs.render import backend

    if (gl := backend()) not in ("egl", "native"):
        raise UserError(f"EnvPool draws with EGL, and what works here is {gl}.")
    if gl == "egl" and not _load_egl():
        raise UserError("EnvPool was imported before fleetfoot, without the system's EGL.")


@functools.cache
def _load_egl() -> bool:
    """Let EnvPool find the system's EGL. Too late once EnvPool is there: it brings another that MuJoCo would mix in."""
    if "envpool" in sys.modules or sys.platform != "linux":
        return False
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load() -> Any:
    _load_egl()
    try:
        return importlib.import_module("envpool")
    except ImportError:
        raise UserError("EnvPool's tasks need EnvPool: pip install 'fleetfoot[envpool]'") from None
