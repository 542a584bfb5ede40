"""Small runs of every agent and every topology, each of some hundred updates on a tensor task, on one CPU thread."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from fleetfoot import api, recipes
from fleetfoot.agents.sac import ResetsConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.topologies.apex.loop import ActorLearnerConfig
from fleetfoot.topologies.gorila.loop import ParameterServerConfig
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.pql.on_ray import OnRayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

WARMUP = 10
UPDATES = 200


def small(name: str, *, updates: int = UPDATES, **changes: Any) -> Recipe:
    recipe = recipes.get(name)
    per_step = recipe.pace.updates_per_vec_step
    fields: dict[str, Any] = {
        "log": LogConfig(every_vec_steps=50, tensorboard=False, console=False),
        "evaluation": EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=16),
        "checkpoint": CheckpointConfig(every_vec_steps=0),
        "pace": replace(recipe.pace, warmup_vec_steps=WARMUP),
        "num_envs": min(8, recipe.num_envs),
        "batch_size": 32,
        "total_vec_steps": WARMUP + math.ceil(updates / per_step),
        "device": "cpu",
        "threads": 1,
    }
    return replace(recipe, **(fields | changes))


def on_policy(name: str, **agent: Any) -> Recipe:
    """Ten updates, each of several gradient steps."""
    recipe = recipes.get(name)
    config: Any = recipe.agent
    return replace(
        recipe,
        agent=replace(config, epochs=3, minibatches=4, **agent),
        log=LogConfig(every_vec_steps=50, tensorboard=False, console=False),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=16),
        checkpoint=CheckpointConfig(every_vec_steps=0),
        replay=RolloutConfig(length=16),
        num_envs=8,
        total_vec_steps=160,
        device="cpu",
        threads=1,
    )


def resetting(name: str) -> Recipe:
    """With one reset in the middle."""
    recipe = small(name)
    agent: Any = recipe.agent
    return replace(recipe, agent=replace(agent, plasticity=ResetsConfig(every_updates=120)))


def pql(**topology: Any) -> Recipe:
    return small("pql/pendulum", topology=SplitLearnersConfig(lockstep=True, **topology))


def one_actor(name: str) -> Recipe:
    return small(name, topology=ActorLearnerConfig(actors=1, lockstep=True))


AGENTS: dict[str, Callable[[], Recipe]] = {
    "fast_td3": lambda: small("fast_td3/pendulum"),
    "fast_td3 simba": lambda: small("fast_td3/pendulum-simba", updates=60),
    "fast_td3 prioritised": lambda: small("fast_td3/pendulum-prioritised"),
    "fast_td3 tasks": lambda: small("fast_td3/point-mass"),
    "fast_sac": lambda: small("fast_sac/pendulum"),
    "sac cdql+none+none": lambda: small("sac/cdql+none+none"),
    "sac top+ln+resets": lambda: resetting("sac/top+ln+resets"),
    "bro": lambda: small("bro/pendulum", updates=100),
    "dac": lambda: small("dac/pendulum"),
    "vpl": lambda: small("vpl/pendulum"),
    "brc": lambda: small("brc/pendulums", updates=60),
    "dqn": lambda: small("dqn/cartpole"),
    "dqn images": lambda: small("dqn/catch", updates=60),
    "ddpg": lambda: small("ddpg/pendulum"),
    "ppo": lambda: on_policy("ppo/pendulum"),
    "ppo discrete": lambda: on_policy("ppo/cartpole"),
    "daa": lambda: on_policy(
        "daa/pendulum", start_env_steps=512, model_steps=20, horizon=5, first_model_steps=640
    ),
    "pql_d": lambda: small("pql_d/pendulum", topology=SynchronousConfig()),
}
TOPOLOGIES: dict[str, Callable[[], Recipe]] = {
    "overlap": lambda: small("fast_td3/pendulum", topology=SynchronousConfig(overlap=True)),
    "pql in threads": lambda: pql(),
}
ON_RAY: dict[str, Callable[[], Recipe]] = {
    "pql on ray": lambda: pql(placement=OnRayConfig()),
    "apex dqn": lambda: one_actor("apex_dqn/cartpole"),
    "apex dpg": lambda: one_actor("apex_dpg/pendulum"),
    "gorila": lambda: small(
        "gorila_dqn/cartpole",
        topology=ParameterServerConfig(bundles=2, shards=2, lockstep=True, shift_vec_steps=10),
    ),
}
SEEDS: dict[str, Callable[[], Recipe]] = {
    "two seeds of fast_sac": lambda: small("fast_sac/pendulum"),
    "two seeds of ppo": lambda: on_policy("ppo/pendulum"),
    "two seeds of bro": lambda: small("bro/pendulum", updates=60),
}


def versions() -> dict[str, str]:
    """What the bits depend on besides the code."""
    return {
        "machine": platform.machine(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def processor() -> str:
    """Its vendor: CPUs of two vendors may sum a matrix product in different orders, even with the same instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")


def digest(*policies: nn.Module) -> str:
    """Of all numbers of the policies, in their order; names do not count."""
    whole = hashlib.sha256()
    for policy in policies:
        for tensor in policy.state_dict().values():
            whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()


def run(name: str, folder: Path) -> str:
    if name in SEEDS:
        results = api.train_seeds(SEEDS[name](), 2, folder)
        return digest(*(result.policy for result in results))
    recipe = (AGENTS | TOPOLOGIES | ON_RAY)[name]()
    return digest(api.train(recipe, folder).policy)
