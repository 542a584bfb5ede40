"""FlashSAC's network (`nn/flash.py`) in training mode as one operation, for code that is compiled for a GPU in bf16.

It computes what the modules compute. What makes the difference:

    - Each BatchNorm is two passes over its features forward (statistics; normalise, ReLU, add) and two backward.
    - A frozen network that sees the same rows, the target critic, is more members of the same products.
    - Gradients of the weights of all blocks and members are one product, in float32.

x [G, B, in] serves all members of its group (a group is a seed). Networks are [M, ...]: first the L = G * E members
that learn, then, in the same order, those that do not. Gradients flow to parameters alone: in training mode nobody
asks for those of observations and actions (where tasks have learned vectors, the modules themselves run).

More than 300 lines: an operation needs its forward and backward pass, the shapes of both, and a rule for seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fleetfoot.ops import flash_net_plain
from fleetfoot.ops.affine import ALIGNED

ROWS = 128  # rows come in multiples of it: whole tiles of the kernels, and equal parts of them for sums


class Parameters(NamedTuple):
    """What one network is made of, or, [E, ...], an ensemble."""

    weights: Sequence[Tensor]  # of the embedder, of both layers of each block, of the head
    scales: Sequence[Tensor]  # of the BatchNorms, in the order of the forward pass
    shifts: Sequence[Tensor]
    rms_scale: Tensor
    bias: Tensor  # of the head
    running: Sequence[Tensor]  # of the BatchNorms: mean, variance, mean, variance, ...


def fits(x: Tensor, width: int) -> bool:
    """Can this operation be used? Not where x needs gradients, as behind learned embeddings of tasks. (With several
    seeds, `requires_grad` does not show it: there `Network.learned_inputs` must say so.)"""
    return (
        x.dim() == 2
        and x.shape[0] % ROWS == 0
        and width in (64, 128, 256, 512, 1024)
        and not x.requires_grad
    )


def flash_net(
    x: Tensor,
    learning: Parameters,
    frozen: Parameters | None = None,
    *,
    momentum: float,
    eps: float,
    rms_eps: float,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """x [B, in] -> [E, B, out], an empty tensor, and what running statistics become. Without members: [B, out].

    With a frozen network: the outputs of the learning one for the first half of the rows, and of the frozen one for the
    second half. Both normalise by all rows.
    """
    single = learning.rms_scale.dim() == 1
    networks = [learning] if frozen is None else [learning, frozen]
    if single:
        networks = [_as_ensemble(network) for network in networks]
    with torch.no_grad():
        both = [
            torch.cat(same) if frozen is not None else same[0].detach()
            for same in zip(*(_all(network) for network in networks), strict=True)
        ]
        layers, norms = len(learning.weights), len(learning.scales)
        weights, scales, shifts, (rms_scale, bias, *running) = _split(both, layers, norms)
        casts = [_aligned(weight).to(dtype) for weight in weights]
    first = networks[0]
    learned = [*first.weights, *first.scales, *first.shifts, first.rms_scale]
    given = (
        x.detach().contiguous().unsqueeze(0),
        learned,
        casts,
        scales,
        shifts,
        rms_scale,
        running,
    )
    out, *kept = forward_in_graph(*given, momentum, eps, rms_eps)
    count, outputs = len(first.rms_scale), first.bias.shape[-1]
    fresh = [stats.detach()[at, :count] for stats in kept[KEPT:] for at in (2, 3)]
    of_learning, of_frozen = out[:count, :, :outputs], out[count:, :, :outputs].detach()
    of_learning = of_learning + first.bias.to(dtype).unsqueeze(1)
    of_frozen = of_frozen + bias[count:].to(dtype).unsqueeze(1)
    if single:
        of_frozen = of_frozen if frozen is None else of_frozen.squeeze(0)
        return of_learning.squeeze(0), of_frozen, [statistic.squeeze(0) for statistic in fresh]
    return of_learning, of_frozen, fresh


def _all(network: Parameters) -> list[Tensor]:
    weights, scales, shifts, rms_scale, bias, running = network
    return [*weights, *scales, *shifts, rms_scale, bias, *running]


def _as_ensemble(network: Parameters) -> Parameters:
    layers, norms = len(network.weights), len(network.scales)
    ensembles = [value.unsqueeze(0) for value in _all(network)]
    weights, scales, shifts, (rms_scale, bias, *running) = _split(ensembles, layers, norms)
    return Parameters(weights, scales, shifts, rms_scale, bias, running)


def _split(values: list[Any], layers: int, norms: int) -> tuple[list[Any], ...]:
    """Into those of layers, scales and shifts, and the rest."""
    ends = [layers, layers + norms, layers + 2 * norms]
    return (
        values[: ends[0]],
        values[ends[0] : ends[1]],
        values[ends[1] : ends[2]],
        values[ends[2] :],
    )


def _aligned(weight: Tensor) -> Tensor:
    """Zero-padded to multiples of `ALIGNED`."""
    inputs, outputs = weight.shape[-2:]
    return F.pad(weight, (0, -outputs % ALIGNED, 0, -inputs % ALIGNED))


KEPT = 8  # results of `forward` between the output and the statistics


def forward(
    x: Tensor,
    learned: list[Tensor],
    casts: list[Tensor],
    scales: list[Tensor],
    shifts: list[Tensor],
    rms_scale: Tensor,
    running: list[Tensor],
    momentum: float,
    eps: float,
    rms_eps: float,
) -> list[Tensor]:
    """The output, all that `backward` reads, and of each BatchNorm [4, M, d]: mean, 1 / root(variance + eps), and the
    new running mean and variance.

    `learned`: the parameters of those that learn, for their gradients; `casts` (weights in the dtype of products),
    `scales`, `shifts`, `rms_scale`: the numbers of all.
    """
    kernels, learning = _kernels(x), len(learned[0])
    out, root, entered, streams, last, wide, inner, narrow, normed = _room(x, learned, casts)
    stats: list[Tensor] = []

    def normalise(features: Tensor, plus: Tensor | None, out: Tensor, relu: bool = True) -> None:
        number = len(stats)
        norm = (*running[2 * number : 2 * number + 2], scales[number], shifts[number])
        options = {"relu": relu, "learning": learning, "momentum": momentum, "eps": eps}
        stats.append(kernels.normalise(features, norm, plus, out, **options))

    normalise(x, None, entered, relu=False)
    torch.bmm(entered, casts[0], out=streams[:, 0])
    blocks = wide.shape[1]
    for block in range(blocks):
        stream = streams[:, block]
        torch.bmm(stream, casts[1 + 2 * block], out=wide[:, block])
        normalise(wide[:, block], None, inner[:, block])
        torch.bmm(inner[:, block], casts[2 + 2 * block], out=narrow[:, block])
        normalise(narrow[:, block], stream, last if block == blocks - 1 else streams[:, block + 1])
    kernels.rms(last, rms_scale, rms_eps, normed, root, learning)
    torch.bmm(normed, casts[-1], out=out)
    return [out, root, entered, streams, last, wide, inner, narrow, normed, *stats]


def _room(x: Tensor, learned: list[Tensor], casts: list[Tensor]) -> tuple[Tensor, ...]:
    """Empty tensors for the results of `forward`, except the statistics."""
    rows, blocks = x.shape[1], (len(casts) - 2) // 2
    members, inputs, width = casts[0].shape
    hidden, outputs = casts[1].shape[2], casts[-1].shape[2]
    counting = rows * len(learned[0]) // members  # rows whose outputs somebody asks for

    def features(*shape: int) -> Tensor:
        return x.new_empty((members, *shape), dtype=casts[0].dtype)

    return (
        features(counting, outputs),
        x.new_empty(members, counting, dtype=torch.float32),
        features(rows, inputs),
        features(blocks, rows, width),
        features(rows, width),
        features(blocks, rows, hidden),
        features(blocks, rows, hidden),
        features(blocks, rows, width),
        features(counting, width),
    )


def backward(
    gradient: Tensor,
    x: Tensor,
    casts: list[Tensor],
    scales: list[Tensor],
    shifts: list[Tensor],
    rms_scale: Tensor,
    kept: list[Tensor],
    learning: int,
    inputs: int,
    outputs: int,
) -> list[Tensor]:
    """Gradients of the weights of the embedder, of the first layers of all blocks [L, blocks, ...], of the second ones,
    of the head; and of scales, shifts and the RMSNorm as one vector (`_sizes`)."""
    root, entered, streams, last, wide, inner, narrow, normed, *stats = (
        value if at >= KEPT else value[:learning] for at, value in enumerate(kept)
    )
    kernels = _kernels(x)
    casts, gradient = [cast[:learning] for cast in casts], gradient[:learning].contiguous()
    sizes, width, hidden = _sizes(scales), streams.shape[-1], wide.shape[-1]
    vectors = x.new_empty(learning * sum(sizes), dtype=torch.float32)
    parts = _by_size(vectors, learning, sizes)
    norms = len(scales)

    def through_norm(number: int, above: Tensor, features: Tensor, out: Tensor | None) -> None:
        norm = (stats[number], scales[number], shifts[number])
        kernels.norm_backward(above, features, norm, (parts[number], parts[norms + number]), out)

    above = torch.bmm(gradient, casts[-1].mT)
    down = torch.zeros_like(last) if above.shape[1] < last.shape[1] else torch.empty_like(last)
    kernels.rms_backward(above, last, root, rms_scale, down, parts[-1])
    to_wide, to_narrow = torch.empty_like(wide), torch.empty_like(narrow)
    for block in reversed(range(wide.shape[1])):
        first = 1 + 2 * block
        through_norm(first + 1, down, narrow[:, block], to_narrow[:, block])
        torch.bmm(to_narrow[:, block], casts[first + 1].mT, out=to_wide[:, block])
        through_norm(first, to_wide[:, block], wide[:, block], to_wide[:, block])
        down.baddbmm_(to_wide[:, block], casts[first].mT)
    through_norm(0, torch.bmm(down, casts[0].mT), x, None)
    return [
        _over_rows(entered, down)[:, :inputs],
        _over_rows(streams.flatten(0, 1), to_wide.flatten(0, 1)).view(learning, -1, width, hidden),
        _over_rows(inner.flatten(0, 1), to_narrow.flatten(0, 1)).view(learning, -1, hidden, width),
        _over_rows(normed, gradient)[..., :outputs],
        vectors,
    ]


def _over_rows(a: Tensor, b: Tensor) -> Tensor:
    """a [M, B, in], b [M, B, out] -> [M, in, out] in float32."""
    if a.is_cuda:
        return torch.bmm(a.mT, b, out_dtype=torch.float32)
    return torch.bmm(a.mT.float(), b.float())


def _sizes(scales: list[Tensor]) -> list[int]:
    """Of scales, shifts, and the scale of the RMSNorm, which is as wide as the last BatchNorm."""
    norms = [scale.shape[1] for scale in scales]
    return [*norms, *norms, norms[-1]]


def _by_size(vectors: Tensor, members: int, sizes: list[int]) -> list[Tensor]:
    return [part.view(members, -1) for part in torch.split(vectors, [members * d for d in sizes])]


def _kernels(x: Tensor) -> Any:
    if x.is_cuda:
        from fleetfoot.ops.triton import flash_net as in_triton

        return in_triton
    return flash_net_plain


# The compiler must not trace into these, so they are registered as operations.
forward_in_graph = torch.library.custom_op("fleetfoot::flash_net", forward, mutates_args=())
backward_in_graph = torch.library.custom_op(
    "fleetfoot::flash_net_backward", backward, mutates_args=()
)


@forward_in_graph.register_fake
def _(
    x: Tensor, learned: list[Tensor], casts: list[Tensor], scales: list[Tensor], *_: Any
) -> list[Tensor]:
    statistics = (x.new_empty(4, *scale.shape, dtype=torch.float32) for scale in scales)
    return [*_room(x, learned, casts), *statistics]


@backward_in_graph.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    casts: list[Tensor],
    scales: list[Tensor],
    shifts: list[Tensor],
    rms_scale: Tensor,
    kept: list[Tensor],
    learning: int,
    inputs: int,
    outputs: int,
) -> list[Tensor]:
    def room(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    blocks = (len(casts) - 2) // 2
    embedder, first, second, head = (casts[at].shape[1:] for at in (0, 1, 2, -1))
    return [
        room(learning, *embedder)[:, :inputs],
        room(learning, blocks, *first),
        room(learning, blocks, *second),
        room(learning, *head)[..., :outputs],
        room(learning * sum(_sizes(scales))),
    ]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, learned, casts, scales, shifts, rms_scale, *_ = inputs
    outputs = learned[len(casts) - 1].shape[2]
    ctx.counts = (len(casts), len(scales), *learned[0].shape[:2], outputs)
    ctx.save_for_backward(x, *casts, *scales, *shifts, rms_scale, *output[1:])


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    layers, norms, learning, inputs, outputs = ctx.counts
    x, *rest = ctx.saved_tensors
    casts, scales, shifts, (rms_scale, *kept) = _split(rest, layers, norms)
    given = (gradients[0], x, casts, scales, shifts, rms_scale, kept)
    embedder, first, second, head, vectors = backward_in_graph(*given, learning, inputs, outputs)
    blocks = [layer.unbind(1) for layer in (first, second)]
    to_learned = [
        embedder,
        *(layer for of_block in zip(*blocks, strict=True) for layer in of_block),
        head,
        *_by_size(vectors, learning, _sizes(scales)),
    ]
    no = [None] * norms
    return None, to_learned, [None] * layers, no, no, None, [*no, *no], None, None, None


forward_in_graph.register_autograd(_backward, setup_context=_keep)


@forward_in_graph.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[list[Tensor], list[int]]:
    """Several seeds are more groups. Learning members of all seeds come first, then the frozen ones."""
    seeds = info.batch_size
    first, at = args[1][0], in_dims[1][0]  # a weight
    members = (first if at is None else first.select(at, 0)).shape[0]  # that learn, of one seed

    def as_members(value: Any, dim: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [as_members(each, at) for each, at in zip(value, dim, strict=True)]
        by_seed = value.expand(seeds, *value.shape) if dim is None else value.movedim(dim, 0)
        kinds = torch.unflatten(by_seed, 1, (-1, members))
        return kinds.transpose(0, 1).flatten(0, 2)

    x, *networks = args[:7]
    x = x.expand(seeds, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    stacked = [as_members(*pair) for pair in zip(networks, in_dims[1:7], strict=True)]
    results = forward_in_graph(x.flatten(0, 1).contiguous(), *stacked, *args[7:])

    def by_seed(result: Tensor, dim: int) -> Tensor:
        kinds = torch.unflatten(result, dim, (-1, seeds, members)).transpose(dim, dim + 1)
        return kinds.flatten(dim + 1, dim + 2)

    at = [0] * (1 + KEPT) + [1] * (len(results) - 1 - KEPT)
    return [by_seed(result, dim) for result, dim in zip(results, at, strict=True)], at
