"""Categorical value distributions on a fixed support (C51): projection, cross-entropy and mean.

In code compiled for a GPU the two that learning spends its time on are kernels of their own
(`ops/triton/categorical.py`); what is written here is their definition, and what runs everywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def support(v_min: float, v_max: float, atoms: int, device: torch.device | None = None) -> Tensor:
    """The atoms z, [K], evenly spaced from v_min to v_max."""
    return torch.linspace(v_min, v_max, atoms, device=device)


def project(probs: Tensor, shifted: Tensor, z: Tensor) -> Tensor:
    """Project mass `probs` sitting at `shifted` onto the atoms `z`; all mass is kept, and so is the mean.

    probs [..., K], shifted [..., K] (already clamped to [z_0, z_last]), z [K] evenly spaced. Each atom's mass is shared
    between its two neighbours in proportion to nearness. Where a shifted atom falls exactly on atom i the lower
    neighbour is i and takes everything, so no mass is lost and none counted twice.
    """
    last = z.numel() - 1
    place = ((shifted - z[0]) * (last / (z[-1] - z[0]))).clamp(0, last)  # in units of atoms
    lower = place.floor().clamp(max=last - 1)  # so that lower + 1 exists
    to_upper = probs * (place - lower)
    index = lower.nan_to_num(0.0).long()  # a NaN must show in the result, not address memory
    out = torch.zeros_like(probs)
    out.scatter_add_(-1, index, probs - to_upper)
    out.scatter_add_(-1, index + 1, to_upper)
    return out


def mean(probs: Tensor, z: Tensor) -> Tensor:
    """Expected value of a distribution over z: [..., K] -> [...]."""
    # Not probs @ z: under autocast a product would round values and atoms to bfloat16.
    return (probs * z).sum(-1)


def clipped_mass(logits: Tensor, base: Tensor, slope: Tensor, z: Tensor) -> Tensor:
    """Which share of softmax(logits) [E, B, K], its atoms moved to base + slope z, lies outside of z: a scalar."""
    with torch.no_grad():
        y = base.unsqueeze(1) + slope.unsqueeze(1) * z  # [B, K]
        room = 1e-4 * (z[-1] - z[0])  # an atom that rounding has moved over the edge is not outside
        outside = (y < z[0] - room) | (y > z[-1] + room)
        return (logits.float().softmax(-1) * outside).sum(-1).mean()


def value(out: Tensor, z: Tensor | None) -> Tensor:
    """Outputs of a critic, [..., K], as values [...]: the mean over z of softmax(out), or without z the one number."""
    return out.squeeze(-1) if z is None else mean(out.softmax(-1), z)


def project_shifted(
    logits: Tensor, base: Tensor, slope: Tensor, z: Tensor, *, lowest: bool
) -> Tensor:
    """Distributions softmax(logits) over atoms that have moved to y = clip(base + slope z), projected back onto z.

    logits [E, B, K], base and slope [B] -> [E, B, K] in float32; with `lowest`, of each row only the whole
    distribution of the member whose mean over y is smallest, [B, K]. (The projection keeps means, so it does not
    matter that the choice comes first.) No gradient flows through it.
    """
    with torch.no_grad():
        if logits.is_cuda and torch.compiler.is_compiling():
            out: Tensor = _project_shifted(logits, base, slope, z, lowest)
            return out
        probs = logits.float().softmax(-1)  # [E, B, K]
        shifted = (base.unsqueeze(1) + slope.unsqueeze(1) * z).clamp(z[0], z[-1])  # [B, K]
        if lowest:
            which = (probs * shifted).sum(-1).argmin(0)  # [B]
            probs = probs.gather(0, which.view(1, -1, 1).expand(1, *probs.shape[1:])).squeeze(0)
        return project(probs, shifted.expand_as(probs), z)


@torch.library.custom_op("fleetfoot::project_shifted", mutates_args=(), device_types="cuda")
def _project_shifted(
    logits: Tensor, base: Tensor, slope: Tensor, z: Tensor, lowest: bool
) -> Tensor:
    from fleetfoot.ops.triton.categorical import project_shifted as kernel

    return kernel(logits, base, slope, z, lowest)


@_project_shifted.register_fake
def _(logits: Tensor, base: Tensor, slope: Tensor, z: Tensor, lowest: bool) -> Tensor:
    return logits.new_empty(logits.shape[1:] if lowest else logits.shape, dtype=torch.float32)


@_project_shifted.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    z, lowest = args[3:]
    if in_dims[3] is not None:
        return torch.stack(_in_turn(_project_shifted, info, in_dims, args)), 0
    logits, base, slope = _in_front(info, in_dims, args, 3)
    shape = logits.shape  # [S, E, B, K]
    out = _project_shifted(_seeds_as_rows(logits), base.flatten(), slope.flatten(), z, lowest)
    return (out.view(shape[0], *shape[2:]), 0) if lowest else (_by_seed(out, shape), 1)


def cross_entropy(logits: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Of softmax(logits) [E, B, K] to the distributions `target` [B, K] or [E, B, K]: [E, B], in float32.

    And the mean of softmax(logits) over z, [E, B], through which no gradient flows.
    """
    if logits.is_cuda and torch.compiler.is_compiling():
        loss, q, _ = _cross_entropy(logits, target, z)
        return loss, q.detach()
    log_probs = logits.float().log_softmax(-1)
    with torch.no_grad():
        q = mean(log_probs.exp(), z)
    return -(target * log_probs).sum(-1), q


@torch.library.custom_op("fleetfoot::cross_entropy", mutates_args=(), device_types="cuda")
def _cross_entropy(logits: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from fleetfoot.ops.triton.categorical import cross_entropy as kernel

    return kernel(logits, target, z)


@_cross_entropy.register_fake
def _(logits: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    like = logits.new_empty(logits.shape[:2], dtype=torch.float32)
    return like, torch.empty_like(like), torch.empty_like(like)


@_cross_entropy.register_vmap
def _(
    info: Any, in_dims: tuple[Any, ...], *args: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    if in_dims[2] is not None:
        each = zip(*_in_turn(_cross_entropy, info, in_dims, args), strict=True)
        return tuple(torch.stack(of_seeds) for of_seeds in each), (0, 0, 0)
    logits, target = _in_front(info, in_dims, args, 2)
    target = _seeds_as_rows(target) if target.dim() == 4 else target.flatten(0, 1)
    found = _cross_entropy(_seeds_as_rows(logits), target, args[2])
    return tuple(_by_seed(of_all, logits.shape[:3]) for of_all in found), (1, 1, 1)


@torch.library.custom_op("fleetfoot::cross_entropy_backward", mutates_args=(), device_types="cuda")
def _cross_entropy_backward(logits: Tensor, target: Tensor, lse: Tensor, by: Tensor) -> Tensor:
    from fleetfoot.ops.triton.categorical import cross_entropy_backward as kernel

    return kernel(logits, target, lse, by)


@_cross_entropy_backward.register_fake
def _(logits: Tensor, target: Tensor, lse: Tensor, by: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


# Several seeds are more rows, over the same atoms. Without these rules torch would loop over the seeds and copy what
# each of them gives.


def _in_front(
    info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...], count: int
) -> list[Tensor]:
    """The first arguments, with the seeds as their first dimension."""
    return [
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(args[:count], in_dims[:count], strict=True)
    ]


def _in_turn(
    operation: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> list[Any]:
    """One result per seed, for seeds whose atoms differ."""
    return [
        operation(
            *(
                value if dim is None else value.select(dim, seed)
                for value, dim in zip(args, in_dims, strict=True)
            )
        )
        for seed in range(info.batch_size)
    ]


def _seeds_as_rows(value: Tensor) -> Tensor:
    """[S, E, B, K] -> [E, S * B, K]."""
    return value.transpose(0, 1).flatten(1, 2)


def _by_seed(value: Tensor, shape: torch.Size) -> Tensor:
    """[E, S * B, ...] -> [E, S, B, ...], where `shape` is [S, E, B, ...]."""
    return value.view(shape[1], shape[0], *shape[2:])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, _ = inputs
    ctx.save_for_backward(logits, target, output[2])


def _backward(ctx: Any, by: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
    logits, target, lse = ctx.saved_tensors
    return _cross_entropy_backward(logits, target, lse, by), None, None


_cross_entropy.register_autograd(_backward, setup_context=_keep)
