"""The server's network in a bundle: pulls bring its weights, and a stepper sends its gradients."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from fleetfoot.optim import LocalStepper
from fleetfoot.topologies.gorila.server import NO_VERSION, Server, Version


class ServerLost(Exception):  # noqa: N818
    """A shard has died."""


def flatten(tensors: list[Tensor]) -> Tensor:
    """All values in one vector on the CPU."""
    return torch.cat([t.detach().reshape(-1) for t in tensors]).cpu()


class Outliers:
    """Running mean and standard deviation of the losses of one bundle, and the outlier test based on them.

    A loss has the weight 1/n at first and 1/memory later. Outliers count too: otherwise the bound would never adapt to
    losses that have grown for good.
    """

    def __init__(self, stds: float | None, memory: int):
        self.stds, self.memory = stds, memory
        self.count, self.mean, self.var = 0, 0.0, 0.0

    def accepts(self, loss: float) -> bool:
        """Test a loss against the losses before it, then add it to the statistics."""
        if not math.isfinite(loss):
            return False  # the log will stop the run; the server must not learn from it
        accepted = self.stds is None or self.count < self.memory // 10
        accepted = accepted or loss <= self.mean + cast(float, self.stds) * math.sqrt(self.var)
        self.count += 1
        weight = max(1 / self.count, 1 / self.memory)
        deviation = loss - self.mean
        self.mean += weight * deviation
        self.var = (1 - weight) * (self.var + weight * deviation * deviation)
        return accepted

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "var": self.var}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.var = state["count"], state["mean"], state["var"]


class Replica:
    """A network and its target that only pulls change."""

    def __init__(self, server: Server, critic: nn.Module, critic_target: nn.Module):
        self.server = server
        self.weights: list[Tensor] = list(critic.parameters())
        self.target: list[Tensor] = list(critic_target.parameters())
        self.flat_weights, self.flat_target = flatten(self.weights), flatten(self.target)
        self.versions = [NO_VERSION] * len(server.slices)

    @property
    def version(self) -> Version:
        """The oldest of all shards: other bundles may have updated the server between the answers of two shards."""
        return min(self.versions)

    def pull(self) -> None:
        answers = self.server.pull(self.versions)
        for place, answer in zip(self.server.slices, answers, strict=True):
            if answer.weights is not None:
                self.flat_weights[place.start : place.stop] = answer.weights
            if answer.target is not None:
                self.flat_target[place.start : place.stop] = answer.target
        if any(answer.weights is not None for answer in answers):
            _unflatten(self.flat_weights, self.weights)
        if any(answer.target is not None for answer in answers):
            _unflatten(self.flat_target, self.target)
        self.versions = [answer.version for answer in answers]


@torch.no_grad()
def _unflatten(vector: Tensor, tensors: list[Tensor]) -> None:
    """The inverse of `flatten`, into existing tensors."""
    pieces = vector.split_with_sizes([t.numel() for t in tensors])
    torch._foreach_copy_(tensors, [p.view_as(t) for p, t in zip(pieces, tensors, strict=True)])


class RemoteStepper:
    """Takes the place of an agent's stepper: computes the gradient of a loss and sends it to the server."""

    def __init__(self, local: LocalStepper, replica: Replica, outliers: Outliers, bundle: int):
        self.local, self.replica, self.outliers, self.bundle = local, replica, outliers, bundle
        self.num_gradients = 0

    def __call__(self, loss: Tensor) -> Tensor:
        gradients = self.local.gradients(loss)
        norm = self.local.clip_(gradients)  # here: a shard does not see the whole gradient
        self.num_gradients += 1
        server = self.replica.server
        if self.outliers.accepts(abs(float(loss.detach()))):
            server.push(flatten(gradients), self.replica.version, self.bundle)
        else:
            server.record_outlier(self.bundle)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Empty: the server has the state of the optimiser."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
