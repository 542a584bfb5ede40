"""All that can be told of an actor-critic learner, from networks that are only read."""

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
    """The plasticity of both networks, and how much `td_loss` is higher on rows that were held out."""
    networks = {
        "critic": plasticity(critic, batch.obs, batch.action, which=which),
        "policy": plasticity(policy, batch.obs, which=which),
    }
    found = {f"{name}/{k}": v for name, each in networks.items() for k, v in each.items()}
    if held_out is None:
        return found
    ratio, difference = overfitting(td_loss(batch), td_loss(held_out))
    return found | {"overfitting": ratio, "overfitting_difference": difference}
