"""Batch normalisation whose running statistics are never written by a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fleetfoot.ops.batch_norm import batch_norm, fixed_norm


class BatchNorm(nn.Module):
    """(x - mean) / root(variance + eps) * weight + bias, perhaps through a ReLU; for each member of an ensemble.

    Which mean and variance is the caller's choice in each call. Without `fresh`: the running ones (evaluation mode).
    With it: those of the rows given (training mode), and what the running ones become is appended to the list, the
    mean and then the variance. A loss can therefore stay a pure function, to be compiled and repeated for several
    seeds; `store_` writes what it returned.
    """

    mean: Tensor
    variance: Tensor

    def __init__(
        self,
        width: int,
        ensemble_size: int | None = None,
        *,
        momentum: float = 0.01,
        eps: float = 1e-5,
        relu: bool = False,
    ):
        super().__init__()
        shape = (width,) if ensemble_size is None else (ensemble_size, width)
        self.momentum, self.eps, self.relu = momentum, eps, relu
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    def forward(
        self, x: Tensor, fresh: list[Tensor] | None = None, plus: Tensor | None = None
    ) -> Tensor:
        """`plus` is added to the result."""
        given = (x, self.weight, self.bias, self.mean, self.variance)
        if fresh is None:
            return fixed_norm(*given, eps=self.eps, relu=self.relu, plus=plus)
        if x.shape[-2] < 2:
            raise ValueError("a batch of one row has no variance")
        out, *running = batch_norm(
            *given, momentum=self.momentum, eps=self.eps, relu=self.relu, plus=plus
        )
        # A row in front: results of a loss have their rows first and the seeds, where there are several, second.
        fresh.extend(each.unsqueeze(0) for each in running)
        return out

    def folded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and bias of the layer that does what a layer with this weight and, behind it, this norm in
        evaluation mode do."""
        scale = self.weight * (self.variance + self.eps).rsqrt()
        return weight * scale.unsqueeze(-2), self.bias - self.mean * scale


def statistics(network: nn.Module) -> list[Tensor]:
    """The running statistics of all BatchNorms in `network`, in the order in which they were made."""
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    return [running for norm in norms for running in (norm.mean, norm.variance)]


@torch.no_grad()
def statistics_in_order(network: nn.Module, inputs: int) -> bool:
    """Does a call in training mode append what belongs to each of `statistics`, in the same order?"""
    called: list[nn.Module] = []
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    hooks = [norm.register_forward_pre_hook(lambda norm, _: called.append(norm)) for norm in norms]
    fresh: list[Tensor] = []
    rows = torch.zeros(2, inputs, device=norms[0].mean.device)
    try:
        with torch.random.fork_rng(devices=[]):  # a network may have dropout
            network(rows, fresh)
    finally:
        for hook in hooks:
            hook.remove()
    return called == norms and len(fresh) == 2 * len(norms)


@torch.no_grad()
def store_(running: Sequence[Tensor], fresh: Sequence[Tensor]) -> None:
    """Write what training-mode calls have appended; `running` in the order of those calls. One launch on a GPU."""
    if running:
        torch._foreach_copy_(list(running), [new.squeeze(0) for new in fresh])


def named(fresh: Sequence[Tensor]) -> dict[str, Tensor]:
    """What training-mode calls have appended, as entries of `Loss.aux`."""
    return {f"running/{at}": statistic for at, statistic in enumerate(fresh)}


def running(aux: dict[str, Tensor]) -> list[Tensor]:
    """The inverse of `named`, among other entries."""
    return [value for name, value in aux.items() if name.startswith("running/")]
