"""All measurements of an actor-critic learner. They change none of its networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fleetfoot.data import Batch
from fleetfoot.diagnose.units import Which, is_relu, plasticity
from fleetfoot.diagnose.values import overfitting


@torch.no_grad()
def actor_critic(
    critic: nn.Module,
    policy: nn.Module,
    batch: Batch,
    held_out: Batch | None,
    td_loss: Callable[[Batch], Tensor],
    which: Which = is_relu,
) -> dict[str, Tensor]:
    """The plasticity of both networks, and how much higher `td_loss` is on held-out rows."""
    networks = {
        "critic": plasticity(critic, batch.obs, batch.action, which=which),
        "policy": plasticity(policy, batch.obs, which=which),
    }
    metrics = {f"{name}/{k}": v for name, network in networks.items() for k, v in network.items()}
    if held_out is None:
        return metrics
    ratio, difference = overfitting(td_loss(batch), td_loss(held_out))
    return metrics | {"overfitting": ratio, "overfitting_difference": difference}
