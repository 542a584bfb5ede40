"""What a run will need, before it is started: parameters, memory, files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from fleetfoot.agents.contract import Agent
from fleetfoot.data import EnvSpec
from fleetfoot.explore import Explorer
from fleetfoot.guard import build_env
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.rollouts import Rollouts


@dataclass(frozen=True)
class Estimate:
    """The parts of one run, built with a single environment and without its replay."""

    spec: EnvSpec  # of all environments of the run
    agent: Agent
    explorer: Explorer
    replay_bytes: int

    def parameters(self) -> dict[str, int]:
        """The numbers of each network of the agent. What two of them share counts in the first."""
        found: dict[str, int] = {}
        counted: set[nn.Parameter] = set()
        for name, module in vars(self.agent).items():
            if isinstance(module, nn.Module):
                own = set(module.parameters()) - counted
                counted |= own
                if own:
                    found[name] = sum(parameter.numel() for parameter in own)
        return found


def estimate(recipe: Recipe) -> Estimate:
    recipe.check()
    device, seeds = recipe.torch_device(), recipe.seeds()
    env = build_env(recipe.env, 1, seeds.env, device, recipe.env_timeout)
    try:
        spec = replace(env.spec, num_envs=recipe.num_envs)
        agent = recipe.build_agent(env.spec, device)
        explorer = recipe.explorer.build(env.spec, seed=seeds.explorer, device=device)
    finally:
        env.close()
    if isinstance(recipe.replay, ReplayConfig):
        recipe.replay.check_batch(spec, recipe.batch_size, device)
        replay_bytes = recipe.replay.bytes(spec)
    else:
        replay_bytes = Rollouts(recipe.replay, spec, recipe.gamma, torch.device("meta")).bytes()
    return Estimate(spec, agent, explorer, replay_bytes)
