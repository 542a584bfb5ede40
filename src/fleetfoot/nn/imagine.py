"""Advantages of imagined actions: a model is rolled from real states, and the critic values what it shows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fleetfoot.data import Obs
from fleetfoot.nn.stochastic import StochasticPolicy, ValueNetwork
from fleetfoot.nn.world_model import Model
from fleetfoot.ops.gae import gae


class Imagined(NamedTuple):
    """A path of each of R rows through a model, time first."""

    obs: Tensor  # [H, R, D]
    action: Tensor  # [H, R, A] as drawn
    log_prob: Tensor  # [H, R]
    advantage: Tensor  # [H, R] by GAE over the steps that are left


@torch.no_grad()
def imagine(
    model: Model,
    policy: StochasticPolicy,
    critic: ValueNetwork,
    obs: Tensor,
    noise: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Imagined:
    """Roll the model from `obs` [R, D], with the actions that the policy draws from `noise` [H, R, A].

    The model gets actions as they would be executed, clipped. Whether the task ends is not drawn: the discount is
    multiplied by the probability that it goes on. After the last step the critic's value stands for the rest.
    """
    steps: list[tuple[Tensor, ...]] = []
    value = critic(Obs(obs, obs))
    for step_noise in noise:
        params = policy(Obs(obs, obs))
        action = policy.sample(params, step_noise)
        next_obs, reward, continues = model(obs, action.clamp(-1.0, 1.0))
        next_value = critic(Obs(next_obs, next_obs))
        discount, log_prob = gamma * continues, policy.log_prob(params, action)
        steps.append((obs, action, log_prob, reward, discount, value, next_value))
        obs, value = next_obs, next_value
    paths, action, log_prob, reward, discount, value, next_value = (
        torch.stack(column) for column in zip(*steps, strict=True)
    )
    goes_on = torch.zeros_like(reward, dtype=torch.bool)
    advantage = gae(reward, discount, goes_on, value, next_value, lam)
    return Imagined(paths, action, log_prob, advantage)
