"""Projections of weights: of the weights of each output unit to length one, of vectors to the root of their size.

On a GPU a network's are one launch for each size of its layers and one for all vectors (`ops/triton/project.py`): one
by one they would be a large part of an update's launches. What is written here is the definition, and what runs
everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Vectors = Sequence[tuple[Tensor, ...]]


@torch.no_grad()
def unit_columns_(weight: Tensor) -> None:
    """weight [..., in, out]: the weights of each output become unit length."""
    length = torch.linalg.vector_norm(weight, dim=-2, keepdim=True)
    weight.div_(length.clamp(min=1e-8))


@torch.no_grad()
def root_length_(*vectors: Tensor) -> None:
    """Vectors [..., d], rescaled together so that they have, as one vector, length root(d)."""
    squares = torch.stack([vector.square().sum(-1, keepdim=True) for vector in vectors]).sum(0)
    factor = vectors[0].shape[-1] ** 0.5 * (squares + 1e-8).rsqrt()
    for vector in vectors:
        vector.mul_(factor)


class Projector:
    """Both for all weights of a network: `weights` through `unit_columns_`, each of `vectors` through `root_length_`.

    Dimensions in front do not matter, so the weights of several seeds are projected as one.
    """

    def __init__(self, weights: Sequence[Tensor], vectors: Vectors):
        self.weights, self.vectors = weights, vectors
        self.addresses: list[int] | None = None

    def __call__(self) -> None:
        if self.weights[0].is_cuda:
            self.by_kernels()
            return
        for weight in self.weights:
            unit_columns_(weight)
        for together in self.vectors:
            root_length_(*together)

    def by_kernels(self) -> None:
        from fleetfoot.ops.triton import project as kernels

        # Kernels find the weights by their addresses, which change where a module moves to another device, say.
        tensors = [*self.weights, *(vector for together in self.vectors for vector in together)]
        addresses = [tensor.data_ptr() for tensor in tensors]
        if addresses != self.addresses:
            self.units = kernels.tables_of_units(self.weights)
            self.lengths = kernels.table_of_vectors(self.vectors)
            self.addresses = addresses
        for table in self.units:
            kernels.unit_columns_(table)
        kernels.root_length_(self.lengths)
