"""One task of EnvPool: what it looks like, and a pool of its environments that is told what to do and asked later."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleetfoot import extras
from fleetfoot.data import Action, Continuous, Discrete
from fleetfoot.envs.envpool.tasks import keys_of, seconds_of
from fleetfoot.envs.robot.config import stock_of
from fleetfoot.errors import UserError, nearest

Rows: TypeAlias = slice | NDArray[np.int64]

UNBOUNDED = 1e9  # EnvPool writes an action without bounds as one with huge ones
PICTURE = (480, 360)  # width and height
SUCCESS = ("info:success", "info:solved")  # Meta-World's name and MyoSuite's


def names() -> list[str]:
    """EnvPool's ids, sorted."""
    return sorted(load().list_all_envs())


class TaskKind:
    """What one of EnvPool's tasks looks like: its observations, actions and limit. Makes the environments too."""

    def __init__(self, task: str, kwargs: dict[str, Any], max_episode_steps: int = 0) -> None:
        envpool = load()
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
        spaces = {
            key.removeprefix("obs:"): value
            for key, value in declared.items()
            if key.partition(":")[0] == "obs"
        }
        keys = keys_of(self.task, list(spaces))
        self.image = [spaces[key].dtype for key in keys] == [np.uint8] and len(
            spaces[keys[0]].shape
        ) == 3
        self.obs_shape: tuple[int, ...]
        self.critic_size: int | None = None
        self.layout: list[tuple[str, int, int]] = []  # key, first and last column
        if self.image:
            self.obs_shape = tuple(int(size) for size in spaces[keys[0]].shape)
            self.layout = [(self._full(keys[0]), 0, 0)]
            return
        if {"state", "privileged_state"} <= set(keys):
            keys = ["state"]
            self.critic_size = math.prod(spaces["privileged_state"].shape)
        at = 0
        for key in keys:
            size = math.prod(spaces[key].shape)
            if not np.issubdtype(spaces[key].dtype, np.number) or size < 0:
                raise UserError(
                    f"{self.task} has observations {key!r} of {spaces[key].dtype} {spaces[key].shape}; "
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

    def describe(self, repeat: int) -> dict[str, Any]:
        """What whoever runs a policy elsewhere must know, as far as EnvPool or our own robot tells it. `repeat`: steps
        that an action is held for."""
        family, _, name = self.task.rpartition("/")
        stock = stock_of(name.removesuffix("-v1")) if family == "MuJoCoPlayground" else None
        if stock is not None and not self.kwargs:
            return {**stock.description, "control_hz": 1 / (self.seconds * repeat)}
        if isinstance(self.action, Discrete):
            return {}
        return {"action": {"offset": self.middle.tolist(), "scale": self.half.tolist()}}

    def convert(self, action: NDArray[Any]) -> NDArray[Any]:
        """Rows of actions of this library, as many columns as this task has -> EnvPool's."""
        if isinstance(self.action, Discrete):
            return np.asarray(action + self.first, dtype=self.action_dtype)
        within = np.minimum(np.maximum(action, -1), 1)  # a third of the time of np.clip
        return np.asarray(within * self.half + self.middle, self.action_dtype)

    def make(self, seeds: Sequence[int], threads: int) -> Any:
        return load().make(
            self.task,
            env_type="gymnasium",
            num_envs=len(seeds),
            num_threads=min(threads, len(seeds)),
            env_seed=list(seeds),
            **{**self.kwargs, "max_episode_steps": self.limit + 1},
        )


class StepArrays(NamedTuple):
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
        self.first, self.every = first, every
        self.all = np.arange(len(seeds), dtype=np.int32)
        self.waiting = False
        self.sent: Rows = slice(first, None, every)  # that the last message was about

    def _ids(self, rows: NDArray[np.int64] | None) -> NDArray[np.int32]:
        if rows is None:
            self.sent, ids = slice(self.first, None, self.every), self.all
        else:
            self.sent = rows_here = rows[rows % self.every == self.first]
            ids = np.asarray((rows_here - self.first) // self.every, dtype=np.int32)
        self.waiting = len(ids) > 0
        return ids

    def send(self, action: NDArray[Any], rows: NDArray[np.int64] | None) -> None:
        """Start a step of those of `rows` (None: all) that are in this pool."""
        ids = self._ids(rows)
        if len(ids):
            actions = action[self.sent]
            if isinstance(self.kind.action, Continuous):
                actions = actions[:, : self.kind.action.size]
            self.envs._send([ids, ids, self.kind.convert(actions)])

    def send_reset(self, rows: NDArray[np.int64] | None) -> None:
        ids = self._ids(rows)
        if len(ids):
            self.envs._reset(ids)

    def draw(self, index: int) -> NDArray[np.uint8]:
        if self.kind.mujoco:
            _check_gl()
        ids = np.array([index], dtype=np.int32)
        return np.array(self.envs._render(ids, *PICTURE, self.kind.camera)[0], dtype=np.uint8)

    def receive(self, arrays: StepArrays, reset: bool = False) -> None:
        """Write the answers to what was sent last. EnvPool gives them in the order of the ids."""
        if not self.waiting:
            return
        rows = self.sent
        answers = dict(zip(self.keys, self.envs._recv(), strict=True))
        for key, start, stop in self.kind.layout:
            value = answers[key]
            if self.kind.image:
                arrays.actor[rows] = value
            else:
                arrays.actor[rows, start:stop] = value.reshape(len(value), -1)
        if arrays.critic is not None:
            arrays.critic[rows] = answers["obs:privileged_state"]
        if reset:
            return  # what else it says is left over from the last step
        arrays.reward[rows] += answers["reward"]
        arrays.terminated[rows] = answers["done"] & ~answers["trunc"]
        if arrays.success is not None and self.kind.success:
            now = answers[self.kind.success] > 0
            arrays.success[rows] = np.maximum(arrays.success[rows], now)


def _check_gl() -> None:
    """EnvPool's MuJoCo ends the process where OpenGL does not work, so that is found out before it is asked."""
    from fleetfoot.envs.render import backend

    if (gl := backend()) not in ("egl", "native"):
        raise UserError(f"EnvPool renders with EGL, but what works here is {gl}.")
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


def load() -> Any:
    """The package, or one line on how to get it."""
    _load_egl()
    return extras.load("envpool", "envpool", "EnvPool's tasks need EnvPool")
