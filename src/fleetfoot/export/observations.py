"""Observations to check an export with: recorded in the policy's own evaluation environments, or drawn."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.data import EnvSpec, Obs
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.errors import Notice, UserError
from fleetfoot.guard import build_env
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.recipe import Recipe

ENVS = 10  # environments that are recorded, side by side


class Observed(NamedTuple):
    """Observations, and where they come from."""

    obs: Obs
    source: str


def observe(
    recipe: Recipe, spec: EnvSpec, policy: nn.Module, rows: int, *, draw: bool = False
) -> Observed:
    """So many rows. `draw`: build no environment."""
    if not draw:
        try:
            return record(recipe, spec, policy, rows)
        except UserError as error:
            warnings.warn(
                f"the evaluation environment cannot be built here ({error}); observations are drawn instead",
                Notice,
                stacklevel=2,
            )
    return Observed(drawn(spec, policy, rows), _source(spec, policy))


@torch.no_grad()
def record(recipe: Recipe, spec: EnvSpec, policy: nn.Module, rows: int) -> Observed:
    """What the greedy policy sees in environments of its own, on the CPU."""
    seed, cpu = recipe.seeds().evaluation, torch.device("cpu")
    env: VecEnv = build_env(recipe.env.for_evaluation(), ENVS, seed, cpu, recipe.env_timeout)
    try:
        if (env.spec.obs_shape, env.spec.action) != (spec.obs_shape, spec.action):
            raise UserError(
                f"{env.spec.name} has different observations from those the run was trained with"
            )
        obs = env.reset()
        seen = [obs]
        while len(seen) * ENVS < rows:
            action: Tensor = policy(obs)
            obs = env.step(action.float() if action.is_floating_point() else action).obs
            seen.append(obs)
    finally:
        env.close()
    actor = torch.cat([one.actor for one in seen])[:rows]
    task = None
    if spec.tasks:
        task = torch.cat([one.task for one in seen if one.task is not None])[:rows]
    source = "recorded in the evaluation environment"
    return Observed(Obs(actor, actor, task), source)


def drawn(spec: EnvSpec, policy: nn.Module, rows: int) -> Obs:
    """Gaussian, with the mean and deviation of the normaliser; standard where there is none. Images: random bytes."""
    source = torch.Generator().manual_seed(0)
    shape = (rows, *spec.obs_shape)
    if spec.obs_dtype == torch.uint8:
        actor = torch.randint(256, shape, generator=source, dtype=torch.uint8)
    else:
        actor = torch.randn(shape, generator=source)
        norm = normaliser(spec, policy)
        if norm is not None:
            actor = (norm.mean + actor.double() * norm.variance.sqrt()).float()
    task = None
    if spec.tasks:
        task = torch.randint(len(spec.tasks), (rows,), generator=source)
    return Obs(actor, actor, task)


def normaliser(spec: EnvSpec, policy: nn.Module) -> RunningNorm | None:
    norms = (module for module in policy.modules() if isinstance(module, RunningNorm))
    return next((norm for norm in norms if norm.mean.shape == spec.obs_shape), None)


def _source(spec: EnvSpec, policy: nn.Module) -> str:
    if spec.obs_dtype == torch.uint8:
        return "random images"
    if normaliser(spec, policy) is None:
        return "drawn from a standard Gaussian"
    return "drawn from the statistics of the normaliser"
