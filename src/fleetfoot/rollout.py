"""The only loop that touches an environment while it trains."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from fleetfoot.data import Obs, Transition
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.explore import Explorer


def rollout(
    env: VecEnv, behaviour: nn.Module, explorer: Explorer, obs: Obs
) -> Iterator[Transition]:
    """Vec steps without end, beginning with `obs` (from `env.reset()` or `env.load_state_dict(...)`)."""
    while True:
        action = explorer.act(behaviour, obs)
        step = env.step(action)
        explorer.restart(step.terminated | step.truncated)
        yield Transition(
            obs=obs,
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            next_obs=step.next_obs,
            info=step.info,
        )
        obs = step.obs
