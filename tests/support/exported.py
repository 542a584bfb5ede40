"""Small exported policies, without training: what the tests of export and of the runner share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fleetfoot import recipes
from fleetfoot.data import Continuous, EnvSpec, Obs
from fleetfoot.export import describe
from fleetfoot.export.graph import Exported
from fleetfoot.export.observations import drawn
from fleetfoot.export.run import Package, package
from fleetfoot.nn.batch_norm import BatchNorm
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.recipe import Recipe

CPU = torch.device("cpu")


def stir(policy: nn.Module) -> None:
    """Statistics as after some training, so that a graph that leaves them out is noticed."""
    source = torch.Generator().manual_seed(1)
    for module in policy.modules():
        if isinstance(module, RunningNorm):
            module.update(2.0 + 3.0 * torch.randn(64, *module.mean.shape, generator=source))
        elif isinstance(module, BatchNorm):
            for name, buffer in module.named_buffers():
                noise = torch.rand(buffer.shape, generator=source).to(buffer.dtype)
                buffer.copy_(0.5 + noise if "var" in name or "scale" in name else noise - 0.5)


def packed(
    recipe: Recipe, spec: EnvSpec, policy: nn.Module, rows: int = 1_000, obs: Obs | None = None
) -> Package:
    described = describe.describe(recipe, spec) | {
        "training": {"recipe": recipe.name},
        "made_by": describe.made_by(),
        "weights_sha256": describe.weights_sha256(policy),
    }
    seen = drawn(spec, policy, rows) if obs is None else obs
    return package(Exported(policy.eval(), spec).eval(), spec, seen, "drawn", described)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


class Plain(nn.Module):
    """Obs -> action, with a normaliser."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = RunningNorm((inputs,))
        self.net = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, obs: Obs) -> torch.Tensor:
        return torch.tanh(self.net(self.norm(obs.actor)))


def between(low: float | None, high: float | None) -> dict[str, float | None]:
    return {"low": low, "high": high, "target_low": low, "target_high": high}


def leg(history: int = 2, **changes: Any) -> EnvSpec:
    """A leg with two joints that is told a speed."""
    joint = {"servo": True, "action_scale": 0.5, "kp": 30.0, "kd": 1.0, "max_torque": None}
    usual = {"source": "sensor", "late": 0, "offset": 0.0, "scale": 1.0}
    description: dict[str, Any] = {
        "robot": "leg",
        "joints": [
            {"name": "hip", "standing": 0.1, "action_offset": 0.1, **joint, **between(-0.3, 0.4)},
            {
                "name": "knee",
                "standing": -1.0,
                "action_offset": -1.0,
                **joint,
                **between(None, None),
            },
        ],
        "observation": [
            {"name": "joint_pos", "size": 2, "unit": "rad", **usual, "offset": [0.1, -1.0]},
            {"name": "joint_vel", "size": 2, "unit": "rad/s", **usual, "scale": 0.05},
            {
                "name": "last_action",
                "size": 2,
                "unit": None,
                **usual,
                "source": "action",
                "late": 1,
            },
            {"name": "command", "size": 1, "unit": "m/s", **usual, "source": "command"},
        ],
        "history": history,
        "control_hz": 50.0,
        "commands": {"forward": [-1.0, 1.0]},
    }
    spec = EnvSpec("leg", 1, (7 * history,), Continuous(2), CPU, description=description)
    return replace(spec, **changes)


def leg_package(history: int = 2) -> Package:
    spec = leg(history)
    policy = Plain(7 * history, 2)
    stir(policy)
    return packed(recipes.get("fast_td3/pendulum"), spec, policy, rows=32)
