"""One control step of an exported policy on one core, as a robot's computer makes it: no torch in the loop."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fleetfoot import deploy, recipes
from fleetfoot.envs.robot import RobotConfig
from fleetfoot.export.describe import describe, made_by, weights_sha256
from fleetfoot.export.graph import Exported
from fleetfoot.export.observations import drawn
from fleetfoot.export.run import package

BAR_MS = 0.2


def bench_deploy(
    recipe: str = "fast_td3/t1", steps: int = 5_000, warmup: int = 200
) -> dict[str, Any]:
    """One step of the policy of a robot's recipe, with untrained weights, in ONNX Runtime with one thread.

    `policy` is the network alone, `controller` the whole step: observation, history, network, limits.
    """
    torch.set_num_threads(1)
    policy = exported(recipe)
    controller = deploy.Controller(policy)
    source = np.random.default_rng(0)
    rows = source.normal(size=(steps + warmup, *policy.about.obs_shape)).astype(np.float32)
    senses = [
        {term.name: source.normal(size=term.size) for term in controller.terms}
        for _ in range(steps + warmup)
    ]
    command = np.zeros(controller.command_size)
    parts = {
        "policy": [_seconds(lambda k=k: policy(rows[k])) for k in range(steps + warmup)],
        "controller": [
            _seconds(lambda k=k: controller.step(senses[k], command)) for k in range(steps + warmup)
        ],
    }
    table = []
    for part, seconds in parts.items():
        ms = 1e3 * np.array(seconds[warmup:])
        p50, p99 = np.percentile(ms, [50, 99])
        table.append({"part": part, "median_ms": float(p50), "p99_ms": float(p99)})
    return {
        "recipe": recipe,
        "observation": list(policy.about.obs_shape),
        "actions": policy.about.action_size,
        "parameters": policy.about.raw["training"]["parameters"],
        "bad_steps": controller.bad_steps,
        "bar_ms": BAR_MS,
        "times": table,
    }


def exported(name: str) -> deploy.Policy:
    """The untrained policy of a recipe of a robot, exported and loaded."""
    recipe = recipes.get(name)
    assert isinstance(recipe.env, RobotConfig)
    cpu = torch.device("cpu")
    env = RobotConfig(robot=recipe.env.robot, engine="cpu", threads=1).build(1, 0, cpu)
    network = recipe.build_agent(env.spec, cpu).policy.eval().requires_grad_(False)
    described = describe(recipe, env.spec) | {
        "training": {"parameters": sum(p.numel() for p in network.parameters())},
        "made_by": made_by(),
        "weights_sha256": weights_sha256(network),
    }
    obs = drawn(env.spec, network, 100)
    made = package(Exported(network, env.spec).eval(), env.spec, obs, "drawn", described)
    with tempfile.TemporaryDirectory() as place:
        for file, content in made.files.items():
            (Path(place) / file).write_bytes(content)
        return deploy.load(place)


def _seconds(call: Any) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
