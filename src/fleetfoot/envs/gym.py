"""Any Gymnasium environment by its id, many copies at once, in this process or one process each.

Gymnasium restarts a finished copy in the same step and hands its last observation over in `info`;
that observation becomes `next_obs`. Actions in [-1, 1] are mapped onto the bounds of the task.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import field
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Action, Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.host import HostEnv
from fleetfoot.envs.info import InfoRows, numbers
from fleetfoot.errors import UserError, nearest


@part
class GymConfig:
    """A registered Gymnasium id, also as "module:Id-v0"."""

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    id: str = "Pendulum-v1"
    asynchronous: bool = False
    """One process per copy, which pays off where a single step is slow."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments for `gymnasium.make`."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> GymEnv:
        if num_envs < 1:
            raise UserError(f"num_envs is {num_envs}; it starts at 1.")
        return GymEnv(self, num_envs, seed, device)

    def for_evaluation(self) -> GymConfig:
        return self


def names() -> list[str]:
    """The ids Gymnasium knows in this process."""
    return sorted(name for name, spec in gymnasium.registry.items() if spec.entry_point)


class GymEnv(HostEnv):
    """N copies of one Gymnasium environment behind the `VecEnv` contract."""

    why_no_state = "Gymnasium environments do not tell their state"

    def __init__(self, config: GymConfig, num_envs: int, seed: int, device: torch.device) -> None:
        probe = _make(config.id, config.kwargs, None, 0)
        self.layout = ObsLayout(probe.observation_space, config.id)
        self.actions = ActionMap(probe.action_space, config.id)
        # Asking for pictures costs nothing until one is drawn: windows and GL start with the first.
        drawable = "rgb_array" in (probe.metadata.get("render_modes") or [])
        fps = probe.metadata.get("render_fps") or 20
        self.spec = EnvSpec(
            name=f"gym/{config.id}",
            num_envs=num_envs,
            obs_shape=self.layout.shape,
            obs_dtype=self.layout.dtype,
            action=self.actions.action,
            device=device,
            episode_length=probe.spec.max_episode_steps if probe.spec else None,
            step_seconds=1.0 / fps,
        )
        probe.close()
        mode = "rgb_array" if drawable else None
        makes = [
            functools.partial(_make, config.id, config.kwargs, mode, i) for i in range(num_envs)
        ]
        cls = AsyncVectorEnv if config.asynchronous else SyncVectorEnv
        self.envs: Any = cls(makes, autoreset_mode=AutoresetMode.SAME_STEP)
        # Word i of nothing but (seed, i): the same for any number of copies.
        self.seeds: list[int] | None = [
            int(np.random.SeedSequence(seed % 2**64, spawn_key=(i,)).generate_state(1)[0])
            for i in range(num_envs)
        ]
        self.info = InfoRows(num_envs)
        self.closed = False

    def reset(self) -> Obs:
        # Only the first reset plants the seeds: later ones go on in each copy's own stream.
        obs, _ = self.envs.reset(seed=self.seeds)
        self.seeds = None
        return self._obs(self.layout.convert(obs))

    def step(self, action: Tensor) -> Step:
        raw, reward, terminated, truncated, info = self.envs.step(self.actions.convert(action))
        rows = self.layout.convert(raw)
        obs = next_obs = self._obs(rows)
        ended = terminated | truncated
        if ended.any():
            rows = rows.copy()
            rows[ended] = self.layout.convert(np.stack(list(info["final_obs"][ended])))
            next_obs = self._obs(rows)
        return Step(
            obs,
            next_obs,
            self._tensor(reward.astype(np.float32)),
            self._tensor(terminated),
            self._tensor(truncated & ~terminated),
            self._info(info),
        )

    def _info(self, info: dict[str, Any]) -> dict[str, Tensor]:
        """Each copy tells of the step that was made; of a restart nothing is told (`Copy`)."""
        self.info.begin_step()
        # Of episodes that go on, and of those that ended.
        for told in (info, info.get("final_info", {})):
            for name, values in told.items():
                if f"_{name}" in told and name not in ("final_obs", "final_info"):
                    self.info.tell(name, values, told[f"_{name}"])
        return self._log_rows(self.info)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        picture = self.envs.call("picture", index)[index]
        if isinstance(picture, str):
            raise UserError(f"{self.spec.name} cannot be drawn here: {picture}")
        return np.array(picture, dtype=np.uint8)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.envs.close()


class Copy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One copy inside the set, possibly in a process of its own.

    Observations are copied: some environments hand out one array again and again, and restarting would overwrite the
    last observation of the episode before anyone has read it. Of `info` only numbers are passed on, as floats:
    Gymnasium would give a name the type of its first value, and send everything else between processes.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self.index = index

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, _ = self.env.reset(**options)
        return np.array(obs), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return np.array(obs), reward, terminated, truncated, numbers(info) if info else info

    def picture(self, index: int) -> Any:
        """A picture if this copy is meant, or why there is none: an exception ends the process."""
        if index != self.index:
            return None
        try:
            if _is_mujoco(self):
                _choose_gl()
            picture = self.env.render()
        except NotImplementedError:
            return "the environment has no method render"
        except Exception as error:
            return _one_line(error)
        right = isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3
        return picture if right else "the environment has no render mode rgb_array"


def _is_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    return any(
        cls.__module__.startswith("gymnasium.envs.mujoco") for cls in type(env.unwrapped).mro()
    )


def _choose_gl() -> None:
    """Name an OpenGL that works: without a screen, Gymnasium's own search can end the process."""
    from fleetfoot.envs.render import backend

    if (gl := backend()) != "native":
        os.environ["MUJOCO_GL"] = gl


def _make(name: str, kwargs: dict[str, Any], render_mode: str | None, index: int) -> Copy:
    # A class that never draws need not have the argument `render_mode`.
    drawing = {"render_mode": render_mode} if render_mode else {}
    arguments: dict[str, Any] = {"disable_env_checker": True, **drawing, **kwargs}
    try:
        return Copy(gymnasium.make(name, **arguments), index)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv):
        raise UserError(
            f"Gymnasium knows no environment {name!r}.{nearest(name, names())} "
            "One that another package registers is written 'package:Id-v0'."
        ) from None
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"{name} needs a package that is missing: {_one_line(error)}") from None
    except (gymnasium.error.Error, TypeError) as error:
        raise UserError(
            f"{name!r} cannot be made with kwargs {kwargs}: {_one_line(error)}"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class ObsLayout:
    """From the observations of Gymnasium to float32 rows or uint8 images (C, H, W)."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        box = isinstance(space, spaces.Box)
        image = box and space.dtype == np.uint8 and len(space.shape or ()) in (2, 3)
        shape = tuple(int(size) for size in space.shape or ())
        if not (image or (box and len(shape) == 1)):
            raise UserError(
                f"{name} has observations {space}; wrap it in gymnasium.wrappers.FlattenObservation "
                "and register it under an id of your own."
            )
        # Channels are the short side of an image: (H, W, C) from a camera, (C, H, W) from a stack.
        self.channels_last = len(shape) == 3 and shape[2] < shape[0]
        if len(shape) == 2:
            shape = (1, *shape)
        self.shape = (shape[2], shape[0], shape[1]) if self.channels_last else shape
        self.dtype = torch.uint8 if image else torch.float32

    def convert(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self.dtype == torch.float32:
            return rows.astype(np.float32)
        rows = np.moveaxis(rows, 3, 1) if self.channels_last else rows
        return np.ascontiguousarray(rows.reshape(len(rows), *self.shape))


class ActionMap:
    """From actions of this library to those of Gymnasium."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self.action: Action
        self.space = space
        if isinstance(space, spaces.Discrete):
            self.action = Discrete(int(space.n))
        elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                raise UserError(
                    f"{name} has actions without bounds, {space}; give it some with "
                    "gymnasium.wrappers.TransformAction."
                )
            self.action = Continuous(math.prod(space.shape))
        else:
            raise UserError(
                f"{name} has actions {space}; only Box of floats and Discrete are understood. "
                "Change them with gymnasium.wrappers.TransformAction."
            )

    def convert(self, action: Tensor) -> NDArray[Any]:
        rows: NDArray[Any] = action.cpu().numpy()
        if isinstance(self.space, spaces.Discrete):
            rows = rows + self.space.start
        elif isinstance(self.space, spaces.Box):
            low, high = self.space.low, self.space.high
            rows = rows.reshape(len(rows), *self.space.shape)
            rows = np.clip(low + (rows + 1) * 0.5 * (high - low), low, high)
            rows = rows.astype(self.space.dtype)
        return rows
