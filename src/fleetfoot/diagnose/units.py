"""Plasticity: how much of a network still works, and how large it has become."""

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
def collected(network: nn.Module, which: Which = is_relu) -> Iterator[list[Tensor]]:
    """The outputs of all modules in `network` that `which` selects, in the order in which they are computed.

    They are collected while the context lasts. A ReLU that is called as a function is not a module and is missed.
    """
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.append(output)

    hooks = [module.register_forward_hook(keep) for module in network.modules() if which(module)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def hidden(network: nn.Module, *inputs: Any, which: Which = is_relu) -> list[Tensor]:
    """The hidden activations of one forward pass, after the ReLU; the last are the penultimate features."""
    with collected(network, which) as activations:
        network(*inputs)
    return activations


@torch.no_grad()
def dormant(activations: Sequence[Tensor], tau: float = 0.025) -> Tensor:
    """The share of dormant units (Sokar et al. 2023, arXiv 2302.12902).

    Unit i is dormant if E|h_i| / mean_k E|h_k| <= tau, where E is over rows and k over the layer's units. In a layer
    whose outputs are all zero every unit counts.
    """
    asleep = []
    for h in activations:
        size = h.float().abs().mean(-2)  # [H] or [E, H]
        asleep.append((size <= tau * size.mean(-1, keepdim=True)).flatten())
    return torch.cat(asleep).float().mean()


@torch.no_grad()
def effective_rank(features: Tensor, share: float = 0.99) -> Tensor:
    """The effective rank `srank` (Kumar et al. 2021, arXiv 2010.14498); of an ensemble, the mean over members.

    It is the smallest number of singular values of the features that make up `share` of the sum of all of them.
    """
    sizes = torch.linalg.svdvals(features.double())  # largest first
    held, total = sizes.cumsum(-1), sizes.sum(-1, keepdim=True)
    rank: Tensor = (held < share * total).sum(-1) + (total[..., 0] > 0)
    return rank.float().mean()


@torch.no_grad()
def feature_norm(features: Tensor) -> Tensor:
    """Mean length of a row."""
    lengths: Tensor = torch.linalg.vector_norm(features.float(), dim=-1)
    return lengths.mean()


@torch.no_grad()
def parameter_norm(network: nn.Module) -> Tensor:
    """Length of all parameters as one vector."""
    return _length([p for p in network.parameters() if p.requires_grad])


def gradient_norm(loss: Tensor, network: nn.Module) -> Tensor:
    """Length of the gradient of `loss` by all parameters of `network`; their `.grad` stays as it is."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return _length([grad for grad in grads if grad is not None])


def _length(tensors: Sequence[Tensor]) -> Tensor:
    sizes = [torch.linalg.vector_norm(x.detach().float()) for x in tensors]
    length: Tensor = torch.linalg.vector_norm(torch.stack(sizes))
    return length


def plasticity(network: nn.Module, *inputs: Any, which: Which = is_relu) -> dict[str, Tensor]:
    """All of the above that one forward pass tells; the features are those before the output layer."""
    activations = hidden(network, *inputs, which=which)
    found = {"parameter_norm": parameter_norm(network)}
    if not activations:
        return found
    features = activations[-1]
    return found | {
        "dormant": dormant(activations),
        "rank": effective_rank(features),
        "feature_norm": feature_norm(features),
    }
