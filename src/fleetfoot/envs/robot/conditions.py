"""Under what conditions robots train: noise, history, delays, pushes, robots that differ. Any robot, any task.

All of it is torch on packed tensors, and its state is part of the environment's: `last_action`, the queue of delayed
actions, the delays and pushes drawn for an episode.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.envs.counter import Draw
from fleetfoot.envs.robot.randomise import RandomiseConfig
from fleetfoot.envs.robot.task import State
from fleetfoot.errors import UserError

Range: TypeAlias = tuple[float, float]


@part
class ConditionsConfig:
    """Conditions that make a simulated robot more like a real one."""

    noise: float = 1.0
    """Factor on the noise of the task's observations; 0: none."""
    noise_of: tuple[str, ...] = ()
    """Other amplitudes for some observations: gyro=0.1 is uniform within 0.1."""
    privileged: tuple[str, ...] = ()
    """Observations that only the critic sees, by name: linvel, for a robot that cannot measure its velocity."""
    history: int = 1
    """Number of observations the policy sees, oldest first."""
    action_delay: int = 0
    """Largest delay of actions in control steps, drawn for each episode."""
    obs_delay: int = 0
    """Largest delay of observations in control steps, drawn for each episode."""
    push_speed: Range | None = None
    """A push suddenly changes the horizontal velocity by a speed (m/s) in a random direction; None: no pushes."""
    push_seconds: Range = (5.0, 10.0)
    """Time between pushes, drawn for each episode."""
    randomise: RandomiseConfig = RandomiseConfig()

    def __post_init__(self) -> None:
        by_name("env.conditions.noise_of", self.noise_of)
        at_least(self, "env.conditions", noise=0.0, history=1, action_delay=0, obs_delay=0)
        for name in ("push_speed", "push_seconds"):
            bounds = getattr(self, name)
            if bounds is not None and not (len(bounds) == 2 and 0.0 <= bounds[0] <= bounds[1]):
                raise UserError(
                    f"env.conditions.{name} must be two numbers, 0 <= low <= high, not {bounds}."
                )
        if self.push_seconds[1] <= 0.0:
            raise UserError("env.conditions.push_seconds must not be zero.")

    def for_evaluation(self) -> ConditionsConfig:
        """Senses as in training (noise, history, what is privileged); no pushes, no delays, all robots alike."""
        return ConditionsConfig(
            noise=self.noise,
            noise_of=self.noise_of,
            privileged=self.privileged,
            history=self.history,
        )


def by_name(field: str, given: tuple[str, ...]) -> dict[str, float]:
    """Entries "name=number" as a dictionary."""
    found = {}
    for entry in given:
        name, _, value = entry.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UserError(f"{field} {entry!r} must have the form name=number.") from None
    return found


class Conditions:
    """The state of what the config asks for, as functions: they get it and return it."""

    def __init__(self, cfg: ConditionsConfig, actions: int, dt: float) -> None:
        self.cfg, self.actions, self.dt = cfg, actions, dt

    def begin(self, draw: Draw) -> State:
        cfg = self.cfg
        zero = torch.zeros_like(draw.uniform(1))
        state = {"last_action": zero.expand(-1, self.actions)}
        if cfg.action_delay:
            delay = (draw.uniform(1) * (cfg.action_delay + 1)).floor()
            queue = zero.expand(-1, (cfg.action_delay + 1) * self.actions)
            state |= {"action_delay": delay, "action_queue": queue}
        if cfg.obs_delay:
            state["obs_delay"] = (draw.uniform(1) * (cfg.obs_delay + 1)).floor()
        if cfg.push_speed is not None:
            steps = torch.round(draw.uniform(1, *cfg.push_seconds) / self.dt).clamp(min=1.0)
            state |= {"push_steps": steps, "push": zero.expand(-1, 2)}
        return state

    def act(self, action: Tensor, state: State) -> tuple[Tensor, State]:
        """The action [N, U] that is executed now, and the queue behind it."""
        if not self.cfg.action_delay:
            return action, {}
        queue = torch.cat([state["action_queue"][:, self.actions :], action], 1)
        place = self.cfg.action_delay - state["action_delay"].long()  # [N, 1]
        place = place[:, :, None].expand(-1, 1, self.actions)
        executed = queue.view(len(queue), -1, self.actions).gather(1, place)[:, 0]
        return executed, {"action_queue": queue}

    def advance(self, state: State, action: Tensor, clock: Tensor, draw: Draw) -> State:
        """`clock` [N]: control steps of the episode so far."""
        new = {"last_action": action}
        if self.cfg.push_speed is not None:
            angle = draw.uniform(1, 0.0, 2 * math.pi)
            speed = draw.uniform(1, *self.cfg.push_speed)
            due = torch.remainder(clock[:, None] + 1.0, state["push_steps"]) == 0
            new["push"] = torch.cat([angle.cos(), angle.sin()], 1) * speed * due
        return new
