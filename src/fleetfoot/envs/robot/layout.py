"""Where everything lies in the packed tensors of N robots: state [N, S], observations, outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import Continuous, EnvSpec, Obs
from fleetfoot.envs.robot.conditions import ConditionsConfig, by_name
from fleetfoot.envs.robot.frames import Frames
from fleetfoot.envs.robot.returns import check_columns, check_flags, check_rows
from fleetfoot.envs.robot.task import Now, State, Task
from fleetfoot.errors import UserError, nearest

OURS = ("power", "exploded")  # what every robot tells the log, after what its task tells


class StateLayout:
    """The columns of each part of the state."""

    def __init__(self, state: State) -> None:
        self.slices: dict[str, slice] = {}
        begin = 0
        for name, value in state.items():
            self.slices[name] = slice(begin, begin + value.shape[1])
            begin += value.shape[1]

    def pack(self, state: State) -> Tensor:
        return torch.cat([state[name] for name in self.slices], 1)

    def unpack(self, packed: Tensor) -> State:
        return {name: packed[:, part] for name, part in self.slices.items()}


class Layout:
    """Sizes of observations, log and outputs, learned from one moment."""

    def __init__(self, task: Task, cfg: ConditionsConfig, now: Now, rows: int) -> None:
        observed, extra = task.observe(now), task.privileged(now)
        check_columns(task, "observe", observed, rows)
        check_columns(task, "privileged", extra, rows)
        if not observed:
            raise UserError(f"observe() of {task.name} must return at least one observation.")
        terms = _visible(task, cfg.privileged, observed)
        hidden = {name: value for name, value in observed.items() if name not in terms}
        self.hidden = bool(hidden)
        extra = extra | {name: value for name, value in hidden.items() if name not in extra}
        self.terms = {name: int(value.shape[1]) for name, value in terms.items()}
        self.widths = _noise_widths(task, cfg, terms)
        device = now.qpos.device
        noise = [self.widths.get(name, 0.0) for name in self._columns()]
        sensed = [name in self.widths for name in self._columns()]
        self.noise = cfg.noise * torch.tensor(noise, device=device)
        self.noisy = bool((self.noise > 0).any())
        self.frame_size = len(noise)
        self.frames = Frames(
            self.frame_size, torch.tensor(sensed, device=device), cfg.history, cfg.obs_delay
        )
        self.actor_size = self.frame_size * cfg.history
        self.extra = {name: int(value.shape[1]) for name, value in extra.items()}
        self.extra_size = sum(self.extra.values())
        check_flags(task, task.terminated(now), rows)
        paid = task.reward(now, torch.zeros(rows, dtype=torch.bool, device=device))
        check_rows(task, "reward", paid, rows)
        if not paid:
            raise UserError(f"reward() of {task.name} must return at least one term.")
        info = task.info(now)
        check_rows(task, "info", info, rows)
        if taken := info.keys() & OURS:
            raise UserError(
                f"info() of {task.name} names {min(taken)!r}, which is the environment's own."
            )
        self.told = [*(f"reward_{name}" for name in paid), *info, *OURS]
        critic = self.actor_size + self.extra_size
        self.outputs = {
            "actor": (rows, self.actor_size),
            "critic": (rows, critic),
            "next_actor": (rows, self.actor_size),
            "next_critic": (rows, critic),
            "reward": (rows,),
            "told": (len(self.told), rows),
        }

    def _columns(self) -> list[str]:
        """The term of each observed number."""
        return [name for name, size in self.terms.items() for _ in range(size)]

    def frame(self, task: Task, now: Now) -> Tensor:
        """[N, D] One observation of the policy, without noise."""
        observed = task.observe(now)
        return torch.cat([observed[name] for name in self.terms], 1)

    def beside(self, task: Task, now: Now) -> Tensor:
        """[N, P] What the critic sees besides."""
        seen = task.privileged(now)
        if self.hidden:
            seen = task.observe(now) | seen
        return torch.cat([seen[name] for name in self.extra], 1)

    @property
    def obs_size(self) -> int:
        """Numbers of the observations to act on now, which come first."""
        rows, size = self.outputs["actor"]
        return rows * (size + self.outputs["critic"][1])

    def flat_size(self) -> int:
        """Numbers of all outputs together."""
        return sum(int(np.prod(shape)) for shape in self.outputs.values())

    def split(self, flat: Tensor) -> tuple[Obs, Obs, Tensor, Tensor]:
        """obs, next_obs, reward and what is told to the log, as views of the flat outputs."""
        found, begin = {}, 0
        for name, shape in self.outputs.items():
            size = int(np.prod(shape))
            found[name] = flat[begin : begin + size].view(shape)
            begin += size
        if not self.extra_size:
            found["critic"], found["next_critic"] = found["actor"], found["next_actor"]
        obs = Obs(found["actor"], found["critic"])
        return obs, Obs(found["next_actor"], found["next_critic"]), found["reward"], found["told"]

    def spec(self, name: str, num_joints: int, device: torch.device, seconds: float) -> EnvSpec:
        """Without what only the environment itself knows."""
        rows, critic = self.outputs["critic"]
        return EnvSpec(
            name=name,
            num_envs=rows,
            obs_shape=(self.actor_size,),
            action=Continuous(num_joints),
            device=device,
            critic_shape=(critic,) if self.extra_size else None,
            critic_prefix=self.actor_size if self.extra_size else 0,
            step_seconds=seconds,
        )


def _visible(
    task: Task, privileged: Sequence[str], observed: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What of it the policy may see."""
    for name in privileged:
        if name not in observed:
            raise UserError(
                f"env.conditions.privileged: {task.name} does not observe {name!r}."
                f"{nearest(name, observed)} It observes {', '.join(observed)}."
            )
    visible = {name: value for name, value in observed.items() if name not in privileged}
    if not visible:
        raise UserError("env.conditions.privileged must leave the policy at least one observation.")
    return visible


def _noise_widths(
    task: Task, cfg: ConditionsConfig, terms: Mapping[str, Tensor]
) -> dict[str, float]:
    widths = {name: width for name, width in task.noise.items() if name not in cfg.privileged}
    widths |= by_name("noise_of", cfg.noise_of)
    if unknown := set(widths) - set(terms):
        raise UserError(
            f"{task.name} does not observe {min(unknown)!r}, for which there is noise; it observes "
            f"{', '.join(terms)}."
        )
    return widths


def columns(wanted: NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """An index for these columns: a slice where they lie side by side, as they do in most robots."""
    if (np.diff(wanted) == 1).all():
        return slice(int(wanted[0]), int(wanted[-1]) + 1)
    return torch.from_numpy(wanted).to(device)


def check_saved(state: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> None:
    """UserError where a tensor of a saved state has another shape than mine."""
    for name, value in mine.items():
        if name not in state:
            raise UserError(
                f"this saved state is of another version of fleetfoot: {name} is missing"
            )
        if state[name].shape != value.shape:
            raise UserError(
                f"this saved state has other conditions or another task: {name} has shape "
                f"{tuple(state[name].shape)}, not {tuple(value.shape)}"
            )
