"""Policies that are distributions over actions, for policy gradients: a Gaussian, and a categorical one.

A policy maps observations to the parameters of its distribution, a tuple of tensors with the rows first. All else
(samples, probabilities, entropy, divergence) is computed from such a tuple, so that an old distribution can be kept as
tensors. None of it owns randomness.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.nn.encode import Encoder, ObsNorms
from fleetfoot.nn.linear import Linear, orthogonal_
from fleetfoot.nn.network import NetworkConfig

Params: TypeAlias = tuple[Tensor, ...]


class StochasticPolicy(nn.Module, ABC):
    """Obs -> the parameters of a distribution over actions, each [B, ...]."""

    def __init__(self, encoder: Encoder, net: NetworkConfig, outputs: int, head_gain: float | None):
        """`head_gain`: the output layer starts orthogonal with this gain, and its bias at zero; None: as the network
        starts it."""
        super().__init__()
        self.encoder = encoder
        self.net = net.build(encoder.size, outputs)
        if head_gain is not None:
            head = self.net.get_submodule("head")
            assert isinstance(head, Linear)
            orthogonal_(head.weight, head_gain)
            if head.bias is not None:
                nn.init.zeros_(head.bias)

    def __call__(self, obs: Obs) -> Params:
        params: Params = super().__call__(obs)
        return params

    @abstractmethod
    def sample(self, params: Params, noise: Tensor) -> Tensor:
        """An action [B, A] or [B], as drawn, from noise of the shape of the first of `params`."""

    @abstractmethod
    def greedy(self, params: Params) -> Tensor:
        """The most likely action, inside the action space."""

    @abstractmethod
    def log_prob(self, params: Params, action: Tensor) -> Tensor:
        """[B], of actions as they were drawn."""

    @abstractmethod
    def entropy(self, params: Params) -> Tensor:
        """[B]."""

    @abstractmethod
    def kl(self, old: Params, new: Params) -> Tensor:
        """[B], the divergence KL(old || new)."""

    def constrain_(self) -> None:
        self.encoder.constrain_()
        self.net.constrain_()


class GaussianPolicy(StochasticPolicy):
    """Mean and log standard deviation, [B, A] each. The deviation is learned, and the same for all observations.

    Samples are not bounded: they are clipped where they are executed. Their noise is standard normal.
    """

    def __init__(
        self,
        encoder: Encoder,
        net: NetworkConfig,
        action_size: int,
        *,
        std: float,
        head_gain: float | None = None,
        tanh_mean: bool = False,
    ):
        super().__init__(encoder, net, action_size, head_gain)
        self.tanh_mean = tanh_mean
        self.log_std = nn.Parameter(torch.full((action_size,), math.log(std)))

    def forward(self, obs: Obs) -> Params:
        mean = self.net(self.encoder(obs)).float()
        if self.tanh_mean:
            mean = torch.tanh(mean)
        # No view of the parameter: an old distribution must stay what it was.
        return mean, torch.zeros_like(mean) + self.log_std

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        mean, log_std = params
        return mean + log_std.exp() * noise

    def greedy(self, params: Params) -> Tensor:
        return params[0].clamp(-1.0, 1.0)

    def log_prob(self, params: Params, action: Tensor) -> Tensor:
        mean, log_std = params
        z = (action - mean) * (-log_std).exp()
        return -(0.5 * z.square() + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def entropy(self, params: Params) -> Tensor:
        return (params[1] + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)

    def kl(self, old: Params, new: Params) -> Tensor:
        (mean, log_std), (new_mean, new_log_std) = old, new
        narrower = log_std - new_log_std
        off = (mean - new_mean) * (-new_log_std).exp()
        # In this order it is exactly zero where both are equal.
        return (0.5 * ((2.0 * narrower).exp() - 1.0 + off.square()) - narrower).sum(-1)


def gumbel_numbers(uniform: Tensor) -> Tensor:
    """Standard Gumbel numbers, from uniform ones on [0, 1): added to log-probabilities, the largest is a draw."""
    return -(-uniform.clamp(min=torch.finfo(uniform.dtype).tiny).log()).log()


class CategoricalPolicy(StochasticPolicy):
    """Log-probabilities [B, num_actions]. Samples take uniform noise on [0, 1) (the Gumbel-max trick)."""

    def __init__(
        self,
        encoder: Encoder,
        net: NetworkConfig,
        num_actions: int,
        *,
        head_gain: float | None = None,
    ):
        super().__init__(encoder, net, num_actions, head_gain)

    def forward(self, obs: Obs) -> Params:
        return (self.net(self.encoder(obs)).float().log_softmax(-1),)

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        return (params[0] + gumbel_numbers(noise)).argmax(-1)

    def greedy(self, params: Params) -> Tensor:
        return params[0].argmax(-1)

    def log_prob(self, params: Params, action: Tensor) -> Tensor:
        return params[0].gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Params) -> Tensor:
        return -(params[0].exp() * params[0]).sum(-1)

    def kl(self, old: Params, new: Params) -> Tensor:
        return (old[0].exp() * (old[0] - new[0])).sum(-1)


def policy_for(
    spec: EnvSpec,
    encoder: Encoder,
    net: NetworkConfig,
    *,
    std: float,
    head_gain: float | None,
    tanh_mean: bool = False,
) -> StochasticPolicy:
    """The kind of policy that the actions ask for. `std` and `tanh_mean` are for continuous ones."""
    if isinstance(spec.action, Discrete):
        return CategoricalPolicy(encoder, net, spec.action.count, head_gain=head_gain)
    assert isinstance(spec.action, Continuous)
    return GaussianPolicy(
        encoder, net, spec.action.size, std=std, head_gain=head_gain, tanh_mean=tanh_mean
    )


class GreedyAction(nn.Module):
    """Obs -> the most likely action."""

    def __init__(self, policy: StochasticPolicy):
        super().__init__()
        self.policy = policy

    def forward(self, obs: Obs) -> Tensor:
        return self.policy.greedy(self.policy(obs))


class DrawnAction(nn.Module):
    """(Obs, noise) -> an action as drawn."""

    def __init__(self, policy: StochasticPolicy):
        super().__init__()
        self.policy = policy

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        return self.policy.sample(self.policy(obs), noise)


class ValueNetwork(nn.Module):
    """Obs -> [B], the value of an observation."""

    def __init__(self, encoder: Encoder, net: NetworkConfig):
        super().__init__()
        self.encoder = encoder
        self.net = net.build(encoder.size, 1)

    def forward(self, obs: Obs) -> Tensor:
        return self.net(self.encoder(obs)).float().squeeze(-1)

    def constrain_(self) -> None:
        self.encoder.constrain_()
        self.net.constrain_()


class ActorCriticFields(Protocol):
    """The fields of a config that say how policy and critic look."""

    @property
    def std(self) -> float: ...
    @property
    def head_gain(self) -> float | None: ...
    @property
    def tanh_mean(self) -> bool: ...
    @property
    def clip_obs(self) -> float | None: ...
    @property
    def task_embedding(self) -> int: ...
    @property
    def policy_net(self) -> NetworkConfig: ...
    @property
    def critic_net(self) -> NetworkConfig: ...


class ActorCriticNetworks(nn.Module):
    """Policy and critic, which one optimiser steps."""

    def __init__(self, cfg: ActorCriticFields, spec: EnvSpec, norms: ObsNorms):
        super().__init__()
        encoder = norms.encoder("actor", cfg.task_embedding, cfg.clip_obs)
        self.policy = policy_for(
            spec,
            encoder,
            cfg.policy_net,
            std=cfg.std,
            head_gain=cfg.head_gain,
            tanh_mean=cfg.tanh_mean,
        )
        encoder = norms.encoder("critic", cfg.task_embedding, cfg.clip_obs)
        self.critic = ValueNetwork(encoder, cfg.critic_net)

    def constrain_(self) -> None:
        self.policy.constrain_()
        self.critic.constrain_()
