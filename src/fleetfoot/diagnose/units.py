"""Plasticity: how many units of a network are active, and how large its weights and features are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Which = Callable[[nn.Module], bool]


def is_relu(module: nn.Module) -> bool:
    """A ReLU, or a linear layer with one inside (`nn.linear.Linear(relu=True)`)."""
    return isinstance(module, nn.ReLU) or getattr(module, "relu", None) is True


@contextmanager
def capture_outputs(network: nn.Module, which: Which = is_relu) -> Iterator[list[Tensor]]:
    """The outputs of all modules in `network` that `which` selects, in the order of the calls.

    They are captured while the context lasts. A functional ReLU is not a module and is not captured.
    """
    outputs: list[Tensor] = []

    def append(module: nn.Module, inputs: Any, output: Tensor) -> None:
        outputs.append(output)

    hooks = [module.register_forward_hook(append) for module in network.modules() if which(module)]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def hidden_activations(network: nn.Module, *inputs: Any, which: Which = is_relu) -> list[Tensor]:
    """The hidden activations of one forward pass, after each ReLU; the last are the penultimate features."""
    with capture_outputs(network, which) as activations:
        network(*inputs)
    return activations


@torch.no_grad()
def dormant(activations: Sequence[Tensor], tau: float = 0.025) -> Tensor:
    """The share of dormant units (Sokar et al. 2023, arXiv 2302.12902).

    Unit i is dormant if E|h_i| / mean_k E|h_k| <= tau, where E is over rows and k over the units of the layer. In a
    layer whose outputs are all zero, every unit is dormant.
    """
    is_dormant = []
    for h in activations:
        size = h.float().abs().mean(-2)  # [H] or [E, H]
        is_dormant.append((size <= tau * size.mean(-1, keepdim=True)).flatten())
    return torch.cat(is_dormant).float().mean()


@torch.no_grad()
def effective_rank(features: Tensor, share: float = 0.99) -> Tensor:
    """The effective rank `srank` (Kumar et al. 2021, arXiv 2010.14498); of an ensemble, the mean over members.

    It is the smallest number of singular values of the features that sum to `share` of the total.
    """
    singular_values = torch.linalg.svdvals(features.double())  # largest first
    total = singular_values.sum(-1, keepdim=True)
    rank: Tensor = (singular_values.cumsum(-1) < share * total).sum(-1) + (total[..., 0] > 0)
    return rank.float().mean()


@torch.no_grad()
def feature_norm(features: Tensor) -> Tensor:
    """Mean norm of a row."""
    norms: Tensor = torch.linalg.vector_norm(features.float(), dim=-1)
    return norms.mean()


@torch.no_grad()
def parameter_norm(network: nn.Module) -> Tensor:
    """Norm of all parameters as one vector."""
    norms = [torch.linalg.vector_norm(p.float()) for p in network.parameters() if p.requires_grad]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def plasticity(network: nn.Module, *inputs: Any, which: Which = is_relu) -> dict[str, Tensor]:
    """All metrics above that one forward pass yields, on the features before the output layer."""
    activations = hidden_activations(network, *inputs, which=which)
    metrics = {"parameter_norm": parameter_norm(network)}
    if not activations:
        return metrics
    features = activations[-1]
    return metrics | {
        "dormant": dormant(activations),
        "rank": effective_rank(features),
        "feature_norm": feature_norm(features),
    }
