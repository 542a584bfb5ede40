"""The affine map with its activation: x @ weight + bias, perhaps through a ReLU, singly or for E members at once.

In float32, on a CPU and in eager code it is what torch offers. In code that is compiled for a GPU in bf16 three things
make the difference, and none of them changes what is computed:

    - Sizes are filled up with zeros to multiples of 64. Unaligned products fall back to slow kernels.
    - Bias and ReLU happen inside the product, instead of in passes over memory that cost as much as the product.
    - Backward, the mask of the ReLU and the sum for the bias are one pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNED = 64


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """x · weight + bias, and a ReLU of it if `relu`.

    x [B, in] and weight [in, out] -> [B, out]; weight [E, in, out] and x [E, B, in], or [B, in] for all members,
    -> [E, B, out]. bias [out] or [E, out].
    """
    if is_fused(x):
        return _aligned(x, weight, bias, relu)
    if weight.dim() == 3:
        x = x.expand(weight.shape[0], -1, -1) if x.dim() == 2 else x
        out = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)
    else:
        out = x @ weight if bias is None else torch.addmm(bias, x, weight)
    return F.relu(out) if relu else out


def is_fused(x: Tensor) -> bool:
    """Is this code that is compiled for a GPU in bf16?"""
    return x.is_cuda and torch.compiler.is_compiling() and torch.is_autocast_enabled("cuda")


def _aligned(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    dtype = torch.get_autocast_dtype("cuda")
    inputs, outputs = weight.shape[-2:]
    more_in, more_out = -inputs % ALIGNED, -outputs % ALIGNED
    lead = weight.dim() - 2
    x, weight = x.to(dtype), weight.to(dtype)
    if more_in:
        x = F.pad(x, (0, more_in))
    if more_in or more_out:
        weight = F.pad(weight, (0, more_out, 0, more_in))
    if bias is not None:
        bias = F.pad(bias.to(dtype), (0, more_out)) if more_out else bias.to(dtype)
    if lead == 0:
        weight, bias = weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0)
    out: Tensor = in_graph(x, weight, bias, relu)
    out = out[..., :outputs] if more_out else out
    return out.squeeze(0) if lead == 0 else out


def fused_affine(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """x [B, in] or [E, B, in], weight [E, in, out], bias [E, out] -> [E, B, out], all of one dtype."""
    out = _room(x, weight)
    if bias is None:
        if x.dim() == 2:
            wide = weight.transpose(0, 1).flatten(1)
            torch.mm(x, wide, out=out.transpose(0, 1).flatten(1))
        else:
            torch.bmm(x, weight, out=out)
        return out.relu_() if relu else out
    # One product with bias and ReLU inside it; its batched form does not exist.
    product = torch._addmm_activation if relu else torch.addmm
    if x.dim() == 2:  # all members as one wide product
        wide = weight.transpose(0, 1).flatten(1)
        product(bias.flatten(), x, wide, out=out.transpose(0, 1).flatten(1))
    else:
        for member in range(weight.shape[0]):
            product(bias[member], x[member], weight[member], out=out[member])
    return out


def _room(x: Tensor, weight: Tensor) -> Tensor:
    """[E, B, out]; behind one wide product the members lie side by side."""
    ensemble_size, _, outputs = weight.shape
    rows = x.shape[-2]
    if x.dim() == 2:
        return x.new_empty(rows, ensemble_size, outputs).transpose(0, 1)
    return x.new_empty(ensemble_size, rows, outputs)


def fused_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor, relu: bool, needs: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias, where `needs` asks for them; empty where not."""
    to_x, to_weight, to_bias = needs
    # Three of them: an operation must not return one tensor twice.
    x_gradient, weight_gradient, nothing = (gradient.new_empty(0) for _ in range(3))
    bias_gradient = nothing
    if relu and not to_bias:
        gradient = torch.ops.aten.threshold_backward(gradient, out, 0)
    elif relu:
        gradient, bias_gradient = relu_backward(gradient, out)
    elif x.dim() == 2 or gradient.stride(2) != 1:
        gradient = torch.empty_like(out).copy_(gradient)
    if to_bias and not relu:
        bias_gradient = sum_rows(gradient)
    ensemble_size = weight.shape[0]
    if x.dim() == 2:
        wide = gradient.transpose(0, 1).flatten(1)
        if to_x:
            x_gradient = wide @ weight.transpose(0, 1).flatten(1).T
        if to_weight:
            weight_gradient = (
                (x.T @ wide).view(x.shape[1], ensemble_size, -1).transpose(0, 1).contiguous()
            )
    else:
        if to_x:
            x_gradient = torch.bmm(gradient, weight.mT)
        if to_weight:
            weight_gradient = torch.empty_like(weight)
            for member in range(
                ensemble_size
            ):  # unlike a batched product, it is split where rows are many
                torch.mm(x[member].T, gradient[member], out=weight_gradient[member])
    return x_gradient, weight_gradient, bias_gradient if to_bias else nothing


def relu_backward(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Through the ReLU that gave `out` [E, B, K], and the sum over B that the bias gets, [E, K]."""
    if gradient.is_cuda:
        from fleetfoot.ops.triton.relu import relu_backward as kernel

        return kernel(gradient, out)
    through = torch.empty_like(out).copy_(gradient * (out > 0))
    return through, sum_rows(through)


def sum_rows(gradient: Tensor) -> Tensor:
    """[E, B, K] -> [E, K], summed up in float32."""
    if gradient.is_cuda:
        from fleetfoot.ops.triton.relu import sum_rows as kernel

        return kernel(gradient)
    return gradient.sum(1, dtype=torch.float32).to(gradient.dtype)


# The compiler must not trace into these, so they are registered as operations.
in_graph = torch.library.custom_op("fleetfoot::affine", fused_affine, mutates_args=())
backward_in_graph = torch.library.custom_op(
    "fleetfoot::affine_backward", fused_backward, mutates_args=()
)


@in_graph.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return _room(x, weight)


@backward_in_graph.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor, relu: bool, needs: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (x.shape, weight.shape, (weight.shape[0], weight.shape[2]))
    return tuple(  # type: ignore[return-value]
        gradient.new_empty(shape if asked else (0,))
        for shape, asked in zip(shapes, needs, strict=True)
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    gradients = backward_in_graph(gradient, *ctx.saved_tensors, ctx.relu, needs)
    return *(g if asked else None for g, asked in zip(gradients, needs, strict=True)), None


in_graph.register_autograd(_backward, setup_context=_keep)


@in_graph.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    """Several seeds are more members: [S, E, ...] becomes [S * E, ...]. Without this rule torch would loop over seeds
    and copy what each of them gives."""
    seeds = info.batch_size

    def by_seed(value: Tensor, dim: int | None) -> Tensor:
        return value.expand(seeds, *value.shape) if dim is None else value.movedim(dim, 0)

    x, weight = by_seed(args[0], in_dims[0]), by_seed(args[1], in_dims[1])
    bias = None if args[2] is None else by_seed(args[2], in_dims[2]).flatten(0, 1)
    if x.dim() == 3:  # what all members of a seed share
        x = x.unsqueeze(1).expand(-1, weight.shape[1], -1, -1)
    out: Tensor = in_graph(x.flatten(0, 1), weight.flatten(0, 1), bias, args[3])
    return out.view(seeds, -1, *out.shape[1:]), 0
