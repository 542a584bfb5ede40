"""Made-up environments and batches, and small runs, for the tests of all agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fleetfoot import recipes
from fleetfoot.data import Batch, Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe

CPU = torch.device("cpu")
QUIET = LogConfig(every_vec_steps=10, tensorboard=False, console=False)


def make_spec(**changes: Any) -> EnvSpec:
    fields: dict[str, Any] = {
        "name": "made-up",
        "num_envs": 4,
        "obs_shape": (3,),
        "action": Continuous(2),
        "device": CPU,
    }
    return EnvSpec(**(fields | changes))


def make_obs(spec: EnvSpec, rows: int, random: torch.Generator) -> Obs:
    if spec.obs_dtype == torch.uint8:
        actor = torch.randint(256, (rows, *spec.obs_shape), generator=random).to(torch.uint8)
    else:
        actor = torch.randn(rows, *spec.obs_shape, generator=random)
    critic = actor
    if spec.critic_shape is not None:
        critic = torch.randn(rows, *spec.critic_shape, generator=random)
    return Obs(actor, critic, torch.arange(rows) % len(spec.tasks) if spec.tasks else None)


def make_action(spec: EnvSpec, rows: int, random: torch.Generator) -> Tensor:
    if isinstance(spec.action, Discrete):
        return torch.randint(spec.action.count, (rows,), generator=random)
    return torch.rand(rows, spec.action.size, generator=random) * 2 - 1


def make_batch(spec: EnvSpec | None = None, rows: int = 6, seed: int = 0) -> Batch:
    spec = spec or make_spec()
    random = torch.Generator().manual_seed(seed)
    return Batch(
        obs=make_obs(spec, rows, random),
        action=make_action(spec, rows, random),
        reward=torch.randn(rows, generator=random),
        discount=torch.where(torch.rand(rows, generator=random) < 0.3, 0.0, 0.9),
        next_obs=make_obs(spec, rows, random),
        weight=torch.rand(rows, generator=random) + 0.5,
        row_id=torch.arange(rows),
    )


def make_transition(spec: EnvSpec | None = None, seed: int = 0) -> Transition:
    spec = spec or make_spec()
    random = torch.Generator().manual_seed(seed)
    flags = torch.zeros(spec.num_envs, dtype=torch.bool)
    return Transition(
        obs=make_obs(spec, spec.num_envs, random),
        action=make_action(spec, spec.num_envs, random),
        reward=torch.randn(spec.num_envs, generator=random),
        terminated=flags,
        truncated=flags,
        next_obs=make_obs(spec, spec.num_envs, random),
        info={},
    )


def parameters(*modules: nn.Module) -> list[Tensor]:
    """As they are now."""
    return [p.detach().clone() for module in modules for p in module.parameters()]


def small_run(name: str, **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "log": QUIET,
        "evaluation": EvaluationConfig(every_vec_steps=0, episodes=2),
        "num_envs": 8,
        "batch_size": 16,
        "device": "cpu",
        "threads": 1,
    }
    return replace(recipes.get(name), **(fields | changes))
