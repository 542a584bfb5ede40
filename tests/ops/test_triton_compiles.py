"""What the interpreter accepts, the compiler may refuse. It needs no GPU: each kernel is compiled for two of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fleetfoot.ops.triton import categorical, flash_net, relu

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted here"
)

AMPERE, HOPPER = 80, 90
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", bool: "u1", int: "i32", float: "fp32"}
OPTIONS = ("num_warps", "num_stages")


def bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def project() -> None:
    row = torch.zeros(64)
    categorical.project_shifted(bf16(2, 64, 101), row, row, torch.zeros(101), lowest=True)
    categorical.project_shifted(bf16(2, 64, 101), row, row, torch.zeros(101), lowest=False)


def cross_entropy() -> None:
    logits, target = bf16(2, 64, 128)[:, :, :101], torch.zeros(64, 101)
    _, _, lse = categorical.cross_entropy(logits, target, torch.zeros(101))
    categorical.cross_entropy_backward(logits, target, lse, torch.zeros(2, 64))


def through_relu() -> None:
    relu.relu_backward(bf16(2, 64, 1024), bf16(2, 64, 1024))
    relu.sum_rows(bf16(2, 64, 1024))


def batch_norm() -> None:
    """Of the input, in float32 and narrower than its room; of a layer; of one with a residual."""
    for y, width, plus in (
        (torch.zeros(1, 4096, 216), 256, False),
        (bf16(4, 4096, 1024), 1024, True),
    ):
        norm = [torch.zeros(4, y.shape[2]) for _ in range(4)]
        out = bf16(4, 4096, width)
        options: dict[str, Any] = {"relu": plus, "learning": 2, "momentum": 0.01, "eps": 1e-5}
        stats = flash_net.normalise(y, norm, out if plus else None, out, **options)
        sums = [torch.zeros(2, y.shape[2]) for _ in range(2)]
        above = bf16(2, 4096, y.shape[2])
        given = (stats, *norm[2:])
        flash_net.norm_backward(above, y[:2] if plus else y, given, sums, above if plus else None)


def rms_norm() -> None:
    x, weight, root = bf16(4, 4096, 256), torch.zeros(4, 256), torch.zeros(4, 2048)
    flash_net.rms(x, weight, 1e-6, bf16(4, 2048, 256), root, 2)
    above, down = bf16(2, 2048, 256), bf16(2, 4096, 256)
    flash_net.rms_backward(above, x[:2], root[:2], weight, down, torch.zeros(2, 256))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Launches compile, and do not run. The names of the kernels."""
    names: list[str] = []

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> None:
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        bound = kernel.signature.bind(*args, **given).arguments
        constants = {p.name: bound[p.name] for p in kernel.params if p.is_constexpr}
        signature = {
            name: "constexpr" if name in constants else type_of(value)
            for name, value in bound.items()
        }
        for card in (AMPERE, HOPPER):
            source = ASTSource(kernel, signature, constexprs=constants)
            made = triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
            assert made.asm["cubin"]
        names.append(kernel.__name__)

    monkeypatch.setattr(JITFunction, "run", compile_only)
    return names


def type_of(value: Any) -> str:
    return TYPES[value.dtype if isinstance(value, Tensor) else type(value)]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    ("launch", "kernels"),
    [
        (project, 2),
        (cross_entropy, 2),
        (through_relu, 4),
        (batch_norm, 11),
        (rms_norm, 3),
    ],
)
def test_every_kernel_compiles(
    launch: Callable[[], None], kernels: int, compiled: list[str]
) -> None:
    launch()
    assert len(compiled) == kernels


def test_no_kernel_is_left_out(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        triton, "compile", lambda *args, **options: type("Made", (), {"asm": {"cubin": b"."}})
    )
    for launch in (project, cross_entropy, through_relu, batch_norm, rms_norm):
        launch()
    there = {
        name
        for module in (categorical, flash_net, relu)
        for name, value in vars(module).items()
        if isinstance(value, JITFunction)
    }
    helpers = {"_columns", "_norm", "_through"}  # compiled into those that call them
    assert set(compiled) == there - helpers
