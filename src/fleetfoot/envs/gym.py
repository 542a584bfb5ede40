"""Any Gymnasium environment by its id, many copies at once, in this process or one process each.

Gymnasium restarts a finished copy in the same step and hands its last observation over in `info`;
that observation becomes `next_obs`. Actions in [-1, 1] are mapped onto the bounds of the task.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Action, Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.gym_copy import FAULT, how_it_ended, make_copy, names, silent
from fleetfoot.envs.host import HostEnv, seeds_of_copies
from fleetfoot.envs.info import InfoRows
from fleetfoot.envs.vec_env import EnvFault, check_module
from fleetfoot.errors import Hung, UserError

__all__ = ["GymConfig", "GymEnv", "names"]

PATIENCE = 5.0  # seconds that a process has to end by itself


@part
class GymConfig:
    """A registered Gymnasium id, also as "module:Id-v0"."""

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    id: str = "Pendulum-v1"
    """A registered id; one that another package registers is written package:Id-v0."""
    asynchronous: bool = False
    """One process per copy, which pays off if a single step is slow."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments for `gymnasium.make`."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> GymEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        return GymEnv(self, num_envs, seed, device)

    def for_evaluation(self) -> GymConfig:
        return self

    def when_stored(self) -> GymConfig:
        check_module(self.id)
        return self


class GymEnv(HostEnv):
    """N copies of one Gymnasium environment behind the `VecEnv` contract."""

    why_no_state = "Gymnasium environments do not tell their state"

    def __init__(self, config: GymConfig, num_envs: int, seed: int, device: torch.device) -> None:
        probe = make_copy(config.id, config.kwargs, None, 0, os.getpid())
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
            description=self.actions.describe(),
        )
        probe.close()
        mode = "rgb_array" if drawable else None
        makes = [
            functools.partial(make_copy, config.id, config.kwargs, mode, i, os.getpid())
            for i in range(num_envs)
        ]
        cls = AsyncVectorEnv if config.asynchronous else SyncVectorEnv
        self.envs: Any = cls(makes, autoreset_mode=AutoresetMode.SAME_STEP)
        self.seeds = seeds_of_copies(seed, num_envs)
        self.planted = self.broken = False
        self.info = InfoRows(num_envs)
        self.closed = False

    def reset(self) -> Obs:
        # Only the first reset plants the seeds: later ones go on in each copy's own stream.
        with self._faults():
            obs, info = self.envs.reset(seed=None if self.planted else self.seeds)
        self._check(info)
        self.info.forget()
        self.planted = True
        return self._obs(self.layout.convert(obs))

    def step(self, action: Tensor) -> Step:
        with self._faults():
            raw, reward, terminated, truncated, info = self.envs.step(self.actions.convert(action))
        self._check(info)
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

    def _check(self, info: dict[str, Any]) -> None:
        if FAULT in info:
            index = int(np.flatnonzero(info[f"_{FAULT}"])[0])
            raise EnvFault(info[FAULT][index], index=index, seed=self.seeds[index])

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Around a call of all copies: says which of their processes is gone, or has not answered."""
        begun = time.monotonic()
        try:
            yield
        except (EOFError, OSError) as error:
            self.broken = True
            processes = getattr(self.envs, "processes", [])
            for index, process in enumerate(processes):
                process.join(0.2)
                if process.exitcode is not None:
                    raise EnvFault(
                        how_it_ended(process.exitcode),
                        who="the process of environment",
                        index=index,
                        seed=self.seeds[index],
                    ) from error
            raise
        except Hung as error:
            self.broken = True
            pipes = enumerate(getattr(self.envs, "parent_pipes", []))
            waiting = [i for i, pipe in pipes if not pipe.poll(0)]
            if not waiting:
                raise
            seed = self.seeds[waiting[0]]
            raise EnvFault(silent(begun), index=waiting[0], seed=seed) from error

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
            raise UserError(f"{self.spec.name} cannot be rendered here: {picture}")
        return np.array(picture, dtype=np.uint8)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not isinstance(self.envs, AsyncVectorEnv):
            self.envs.close()
            return
        # Gymnasium's own way waits for ever for a process that is gone or hangs.
        for pipe in self.envs.parent_pipes:
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        until = time.monotonic() + (0.0 if self.broken else PATIENCE)
        for process in self.envs.processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()
            process.join()
        for pipe in self.envs.parent_pipes:
            pipe.close()
        self.envs.closed = True


class ObsLayout:
    """From the observations of Gymnasium to float32 rows or uint8 images (C, H, W)."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        box = isinstance(space, spaces.Box)
        image = box and space.dtype == np.uint8 and len(space.shape or ()) in (2, 3)
        shape = tuple(int(size) for size in space.shape or ())
        if not (image or (box and len(shape) == 1)):
            raise UserError(
                f"{name} has observations {space}; wrap it in gymnasium.wrappers.FlattenObservation "
                "and register it under your own id."
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

    def describe(self) -> dict[str, Any]:
        """How an action in [-1, 1] becomes the task's own."""
        if not isinstance(self.space, spaces.Box):
            return {}
        low, high = (
            bound.astype(np.float64).reshape(-1) for bound in (self.space.low, self.space.high)
        )
        middle, half = (low + high) / 2, (high - low) / 2
        return {"action": {"offset": middle.tolist(), "scale": half.tolist()}}
