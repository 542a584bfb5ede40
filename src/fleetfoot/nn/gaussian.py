"""The tanh-Gaussian policy: its network, and the two ways to act by it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fleetfoot.data import Obs
from fleetfoot.nn.encode import Encoder
from fleetfoot.nn.linear import Linear, orthogonal_
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.ops.squash import squashed_sample

ORTHOGONAL = (math.sqrt(2.0), 1.0)  # the usual gains of the heads


class Gaussian(nn.Module):
    """Obs -> mean and log std of the Gaussian before tanh, [B, A] each.

    log std = low + (high - low) (1 + tanh(raw)) / 2, with `log_std` = (low, high). With `head_gains` the weights of the
    two heads start orthogonal, each with its own gain, and their biases at zero; without, as the network starts its
    output layer.
    """

    def __init__(
        self,
        encoder: Encoder,
        net: NetworkConfig,
        action_size: int,
        *,
        log_std: tuple[float, float],
        head_gains: tuple[float, float] | None = None,
    ):
        super().__init__()
        self.low, self.high = log_std
        self.encoder = encoder
        self.net = net.build(encoder.size, 2 * action_size)
        self.net.learned_inputs = encoder.embed is not None
        if head_gains is not None:
            head = self.net.get_submodule("head")
            assert isinstance(head, Linear)
            assert head.bias is not None
            with torch.no_grad():
                for half, gain in zip(head.weight.chunk(2, dim=-1), head_gains, strict=True):
                    orthogonal_(fresh := torch.empty(half.shape), gain)
                    half.copy_(fresh)
                head.bias.zero_()

    def forward(self, obs: Obs, fresh: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(self.encoder(obs), fresh).float().chunk(2, dim=-1)
        return mean, self.low + 0.5 * (self.high - self.low) * (1.0 + torch.tanh(raw))

    def sample(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A reparametrised action [B, A] and its log-probability [B]."""
        mean, log_std = self(obs)
        return squashed_sample(mean, log_std, noise)

    def constrain_(self) -> None:
        self.encoder.constrain_()
        self.net.constrain_()


class Greedy(nn.Module):
    """Obs -> tanh(mean)."""

    def __init__(self, gaussian: Gaussian):
        super().__init__()
        self.gaussian = gaussian

    def forward(self, obs: Obs) -> Tensor:
        mean, _ = self.gaussian(obs)
        return torch.tanh(mean)


class Sampled(nn.Module):
    """(Obs, noise) -> a sampled action."""

    def __init__(self, gaussian: Gaussian):
        super().__init__()
        self.gaussian = gaussian

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        action, _ = self.gaussian.sample(obs, noise)
        return action
