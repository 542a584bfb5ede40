from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fleetfoot.errors import UserError
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.linear import Linear

Array = NDArray[np.float64]


def norm(x: Array, gain: Array, bias: Array) -> Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    normed: Array = (x - mean) / np.sqrt(var + 1e-6) * gain + bias
    return normed


@pytest.mark.parametrize("ensemble_size", [None, 2])
def test_the_forward_pass_by_hand(ensemble_size: int | None) -> None:
    torch.manual_seed(0)
    net = BroNetConfig(width=16, blocks=2).build(3, 5, ensemble_size).double()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x = torch.randn(7, 3).double()
    for member in range(ensemble_size or 1):
        w = {
            name: (p if ensemble_size is None else p[member]).detach().numpy()
            for name, p in net.named_parameters()
        }

        def dense(x: Array, name: str, w: dict[str, Array] = w) -> Array:
            return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

        def layer_norm(x: Array, name: str, w: dict[str, Array] = w) -> Array:
            return norm(x, w[f"{name}.weight"], w[f"{name}.bias"])

        y = np.maximum(layer_norm(dense(x.numpy(), "embed"), "norm"), 0)
        for block in ("blocks.0", "blocks.1"):
            inner = np.maximum(layer_norm(dense(y, f"{block}.w1"), f"{block}.norm1"), 0)
            y = y + layer_norm(dense(inner, f"{block}.w2"), f"{block}.norm2")
        found = net(x) if ensemble_size is None else net(x)[member]
        np.testing.assert_allclose(found.detach().numpy(), dense(y, "head"), atol=1e-6)


def test_weights_start_orthogonal_and_biases_at_zero() -> None:
    net = BroNetConfig(width=32, blocks=1).build(8, 4, 2)
    layers = [m for m in net.modules() if isinstance(m, Linear)]
    assert len(layers) == 4
    for layer in layers:
        for weight in layer.weight:
            square = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
            torch.testing.assert_close(square, 2 * torch.eye(len(square)), atol=1e-5, rtol=0)
        assert layer.bias is not None
        assert layer.bias.count_nonzero() == 0
    small = BroNetConfig(width=32, blocks=1, head_gain=0.01, head_bias=False).build(8, 4)
    head = small.get_submodule("head")
    assert isinstance(head, Linear)
    assert head.bias is None
    assert torch.linalg.matrix_norm(head.weight, 2).item() == pytest.approx(0.01, rel=1e-4)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_the_number_of_parameters() -> None:
    """Of one critic of width 512 with 100 quantiles; two of them and their targets are about five million."""
    inputs = 223 + 38  # dm_control's dog
    one = 512 * inputs + 1536 + 4 * (512**2 + 3 * 512) + 51_300
    assert parameters(BroNetConfig().build(inputs, 100)) == one
    assert parameters(BroNetConfig().build(inputs, 100, ensemble_size=2)) == 2 * one
    assert math.isclose(4 * one, 5e6, rel_tol=0.1)


def test_wrong_sizes() -> None:
    with pytest.raises(UserError, match="width"):
        BroNetConfig(width=0).build(3, 3)
