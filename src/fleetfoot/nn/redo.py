"""ReDo: dormant units are re-initialised (Sokar et al. 2023, arXiv 2302.12902).

With h_i(x) what unit i of a hidden layer gives after its ReLU, its score is E|h_i| / mean_k E|h_k| over the rows of a
batch and the units k of its layer. Units with a score of at most tau are dormant. Their incoming weights are drawn
again as at the start, their bias becomes zero (and with LayerNorm their gain one and their shift zero: a unit that
these had silenced would stay so), their outgoing weights become zero, and the optimiser's running means of all of these
are forgotten. A target network is not touched; it follows by averaging.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fleetfoot.errors import UserError
from fleetfoot.nn.linear import LayerNorm, Linear
from fleetfoot.nn.mlp import MLP


class Hidden:
    """One hidden layer of an MLP."""

    def __init__(self, layer: Linear, norm: LayerNorm | None, after: Linear):
        self.layer, self.norm, self.after = layer, norm, after


class ReDo:
    """Works on the hidden layers of an MLP with ReLU, single or an ensemble, all weights stacked or not."""

    def __init__(self, network: nn.Module, tau: float):
        if not (
            isinstance(network, MLP)
            and set(network.cfg.activation) == {"relu"}
            and network.cfg.start == "orthogonal"
        ):
            raise UserError(
                "ReDo needs a critic_net that is an MLPConfig with activation relu and start orthogonal."
            )
        self.network, self.tau = network, tau
        modules = list(network.body)
        layers = [m for m in modules if isinstance(m, Linear)]
        norms: list[LayerNorm | None] = [m for m in modules if isinstance(m, LayerNorm)]
        norms = norms or [None] * len(layers)
        self.hidden = [
            Hidden(layer, norm, after)
            for layer, norm, after in zip(layers, norms, [*layers[1:], network.head], strict=True)
        ]

    def shapes(self) -> list[tuple[int, ...]]:
        """Of the standard normal numbers that `restart_` needs."""
        sizes = [tuple(hidden.layer.weight.shape[-3:]) for hidden in self.hidden]
        return [(*lead, max(i, o), o) for *lead, i, o in sizes]

    def activity(self, x: Tensor) -> list[Tensor]:
        """E|h| of each hidden layer's units, [H] or [E, H], for inputs [B, in]. Changes nothing."""
        activity = []
        for module in self.network.body:
            x = module(x)
            if isinstance(module, nn.ReLU) or (isinstance(module, Linear) and module.relu):
                activity.append(x.float().abs().mean(-2))
        return activity

    def dormant(self, activity: Sequence[Tensor]) -> list[Tensor]:
        """Which units are dormant, [H] or [E, H] bool, of each hidden layer."""
        return [size <= self.tau * size.mean(-1, keepdim=True) for size in activity]

    @torch.no_grad()
    def restart_(
        self, dormant: Sequence[Tensor], noise: Sequence[Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        """Restart the dormant units. `optimizer` is Adam or one that keeps its means under the same names."""
        for hidden, asleep, normal in zip(self.hidden, dormant, noise, strict=True):
            weight, bias = hidden.layer.weight, hidden.layer.bias
            assert bias is not None
            _put(weight, asleep.unsqueeze(-2), fresh_columns(normal, weight.shape[-2]), optimizer)
            _put(bias, asleep, 0.0, optimizer)
            if hidden.norm is not None:
                shape = hidden.norm.weight.shape
                _put(hidden.norm.weight, asleep.reshape(shape), 1.0, optimizer)
                _put(hidden.norm.bias, asleep.reshape(shape), 0.0, optimizer)
        # At the end, since a layer's outgoing weights are the incoming ones of the next.
        for hidden, asleep in zip(self.hidden, dormant, strict=True):
            _put(hidden.after.weight, asleep.unsqueeze(-1), 0.0, optimizer)
        self.network.constrain_()


def fresh_columns(normal: Tensor, inputs: int) -> Tensor:
    """[..., max(in, out), out] -> [..., in, out], each column distributed as in an orthogonal start with gain sqrt 2:
    the first `in` coordinates of a random direction in max(in, out) dimensions."""
    direction: Tensor = normal / torch.linalg.vector_norm(normal, dim=-2, keepdim=True)
    return math.sqrt(2.0) * direction[..., :inputs, :]


def _put(
    weight: Tensor, where: Tensor, value: Tensor | float, optimizer: torch.optim.Optimizer
) -> None:
    weight.copy_(torch.where(where, value, weight))
    means: dict[str, Any] = optimizer.state.get(weight, {})
    for name in ("exp_avg", "exp_avg_sq"):
        if name in means:
            means[name].copy_(torch.where(where, 0.0, means[name]))
