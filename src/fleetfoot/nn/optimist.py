"""Dual actors: a second, optimistic actor that explores beside the one that is evaluated (DAC, BRO).

Either kind returns the mean and log std of its Gaussian before tanh, [B, A] each, given those of the evaluated actor.
It acts with its standard deviation times a fixed factor; divergences are measured without that factor.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.data import Obs
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.encode import Encoder
from fleetfoot.nn.gaussian import ORTHOGONAL, Gaussian
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.ops.squash import squashed_sample


class Optimist(nn.Module):
    """(Obs, the other actor's mean and log std) -> its own."""

    def __call__(self, obs: Obs, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = super().__call__(obs, mean, log_std)
        return out

    def constrain_(self) -> None: ...


class OptimistConfig(Protocol):
    """The part of an agent that names its optimistic actor."""

    def build(
        self, encoder: Encoder, action_size: int, log_std: tuple[float, float]
    ) -> Optimist: ...


@part
class DeltaConfig:
    """The other actor's Gaussian, its mean shifted by a network of the observation and that mean (BRO)."""

    net: NetworkConfig = BroNetConfig(width=256, blocks=1, head_gain=0.01, head_bias=False)
    """Network of the shift."""

    def build(self, encoder: Encoder, action_size: int, log_std: tuple[float, float]) -> Optimist:
        return Delta(encoder, self.net, action_size)


class Delta(Optimist):
    """The actor of `DeltaConfig`: a change of the policy's mean."""

    def __init__(self, encoder: Encoder, net: NetworkConfig, action_size: int):
        super().__init__()
        self.encoder = encoder
        self.net = net.build(encoder.size + action_size, action_size)

    def forward(self, obs: Obs, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        shift = self.net(torch.cat([self.encoder(obs), mean], dim=-1)).float()
        return mean + shift, log_std

    def constrain_(self) -> None:
        self.encoder.constrain_()
        self.net.constrain_()


@part
class IndependentConfig:
    """An independent actor, which sees only the observation (DAC)."""

    net: NetworkConfig = BroNetConfig(width=256, blocks=1)
    """Network of the actor."""
    head_gains: tuple[float, float] = ORTHOGONAL
    """Gains of the orthogonal initialisation for mean and log std."""

    def build(self, encoder: Encoder, action_size: int, log_std: tuple[float, float]) -> Optimist:
        gains = self.head_gains
        return Independent(
            Gaussian(encoder, self.net, action_size, log_std=log_std, head_gains=gains)
        )


class Independent(Optimist):
    """The actor of `IndependentConfig`: a policy of its own."""

    def __init__(self, gaussian: Gaussian):
        super().__init__()
        self.gaussian = gaussian

    def forward(self, obs: Obs, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = self.gaussian(obs)
        return out

    def constrain_(self) -> None:
        self.gaussian.constrain_()


class OptimisticPolicy(nn.Module):
    """(Obs, noise) -> an action of the optimist, its standard deviation times `std_factor`."""

    def __init__(self, gaussian: Gaussian, optimist: Optimist, std_factor: float):
        super().__init__()
        self.gaussian, self.optimist = gaussian, optimist
        self.log_factor = math.log(std_factor)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        mean, log_std = self.optimist(obs, *self.gaussian(obs))
        action, _ = squashed_sample(mean, log_std + self.log_factor, noise)
        return action
