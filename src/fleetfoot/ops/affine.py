"""The affine map with its activation: x @ weight + bias, perhaps through a ReLU, singly or for E members at once.

In float32, and on a CPU, it is what torch offers. Under bf16 autocast on a GPU three things make the difference, and
none of them changes what is computed:

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
    """x [B, in] and weight [in, out] -> [B, out]; weight [E, in, out] and x [E, B, in], or [B, in] for all members,
    -> [E, B, out]. bias [out] or [E, out]."""
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        return _aligned(x, weight, bias, relu)
    if weight.dim() == 3:
        x = x.expand(weight.shape[0], -1, -1) if x.dim() == 2 else x
        out = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)
    else:
        out = x @ weight if bias is None else torch.addmm(bias, x, weight)
    return F.relu(out) if relu else out


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
    if bias is None:
        bias = weight.new_zeros(*weight.shape[:lead], outputs + more_out)
    else:
        bias = F.pad(bias.to(dtype), (0, more_out)) if more_out else bias.to(dtype)
    if lead == 0:
        weight, bias = weight.unsqueeze(0), bias.unsqueeze(0)
    out: Tensor = fused_affine(x, weight, bias, relu)
    out = out[..., :outputs] if more_out else out
    return out.squeeze(0) if lead == 0 else out


@torch.library.custom_op("fleetfoot::affine", mutates_args=())
def fused_affine(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """x [B, in] or [E, B, in], weight [E, in, out], bias [E, out] -> [E, B, out], all of one dtype."""
    members, _, outputs = weight.shape
    out = x.new_empty(members, x.shape[-2], outputs)
    for member in range(members):
        own = x if x.dim() == 2 else x[member]
        if relu:
            # One product with bias and ReLU inside it; its batched form does not exist.
            torch._addmm_activation(bias[member], own, weight[member], out=out[member])
        else:
            torch.addmm(bias[member], own, weight[member], out=out[member])
    return out


@fused_affine.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return x.new_empty(weight.shape[0], x.shape[-2], weight.shape[2])


@torch.library.custom_op("fleetfoot::affine_backward", mutates_args=())
def relu_backward(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Through the ReLU that gave `out` [E, B, K], and the sum over B that the bias gets, [E, K]."""
    if gradient.is_cuda:
        from fleetfoot.ops.triton.relu import relu_backward as kernel

        return kernel(gradient, out)
    through = gradient * (out > 0)
    return through, through.sum(1, dtype=torch.float32).to(gradient.dtype)


@relu_backward.register_fake
def _(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(out), out.new_empty(out.shape[0], out.shape[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, output if ctx.relu else None)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, out = ctx.saved_tensors
    to_x, to_weight, to_bias, _ = ctx.needs_input_grad
    if ctx.relu:
        gradient, bias_gradient = relu_backward(gradient, out)
    else:
        gradient = gradient.contiguous()
        bias_gradient = gradient.sum(1, dtype=torch.float32).to(gradient.dtype) if to_bias else None
    x_gradient = weight_gradient = None
    if to_x:
        x_gradient = torch.bmm(gradient, weight.mT)
        if x.dim() == 2:
            x_gradient = x_gradient.sum(0)
    if to_weight:
        rows = x.expand(weight.shape[0], -1, -1) if x.dim() == 2 else x
        weight_gradient = torch.bmm(rows.mT, gradient)
    return x_gradient, weight_gradient, bias_gradient if to_bias else None, None


fused_affine.register_autograd(_backward, setup_context=_keep)
