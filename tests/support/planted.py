"""The pendulum under a controller that is as good as two settings are near to values planted here.

It swings the pendulum up and holds it. A constant push is added that grows with the distance from the planted values,
so the return is highest there, and falls on all sides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fleetfoot import part, recipes
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.data import Batch, EnvSpec, Obs, Transition, UpdateResult
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from support.runs import QUIET

GAIN, DAMPING = 0.02, 0.37


@part
class PlantedConfig:
    """Best at the planted gain and damping."""

    gain: float = 1.0
    damping: float = 0.0

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> Planted:
        distance = abs(math.log10(self.gain / GAIN)) / 2 + abs(self.damping - DAMPING)
        return Planted(Controller(distance).to(device))


class Controller(nn.Module):
    """Pumps energy below, and holds near the top."""

    def __init__(self, push: float):
        super().__init__()
        self.register_buffer("push", torch.tensor(push))

    def forward(self, obs: Obs) -> Tensor:
        cos, sin, speed = obs.actor.unbind(-1)
        lacking = 15 * (1 - cos) - 0.5 * speed.square()  # of the energy at the top
        action = torch.where(cos > 0.85, -4 * sin - speed, lacking * speed)
        return (action + self.get_buffer("push"))[:, None].clamp(-1, 1)


class Planted:
    """An agent that has nothing to learn."""

    def __init__(self, policy: nn.Module):
        self.policy = self.behaviour = policy
        self.updates = 0

    def observe(self, fresh: Transition) -> None: ...

    def update(self, batch: Batch) -> UpdateResult:
        self.updates += 1
        return UpdateResult({}, None)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.updates = state["updates"]


def planted() -> Recipe:
    return replace(
        recipes.get("fast_td3/pendulum"),
        name="planted",
        agent=PlantedConfig(),
        log=replace(QUIET, every_vec_steps=2),
        evaluation=EvaluationConfig(every_vec_steps=2, episodes=8),
        checkpoint=CheckpointConfig(every_vec_steps=100),
        replay=ReplayConfig(capacity=100),
        pace=PaceConfig(updates_per_vec_step=1, warmup_vec_steps=1),
        num_envs=2,
        batch_size=2,
        total_vec_steps=4,
        device="cpu",
        threads=1,
    )
