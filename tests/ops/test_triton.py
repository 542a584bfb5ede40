"""The kernels against the definitions they stand for: on a GPU, or else slowly through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetfoot.ops import affine, categorical
from fleetfoot.ops.batch_norm import batch_norm, in_kernels
from fleetfoot.ops.project import Projector, root_length_, unit_columns_

pytest.importorskip("triton")

from fleetfoot.ops.triton import batch_norm as norm_kernels
from fleetfoot.ops.triton import categorical as kernels
from fleetfoot.ops.triton import relu

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # must be set before the kernels are read
DEVICE = torch.device("cuda" if GPU and not INTERPRETED else "cpu")

kernel = pytest.mark.skipif(not (GPU or INTERPRETED), reason="runs in the interpreter, below")


@pytest.mark.skipif(GPU or INTERPRETED, reason="the kernels run here")
def test_all_of_this_through_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def moves() -> tuple[Tensor, Tensor]:
    """Bases and slopes: no slope, hardly any, all of it; at an atom, beyond either end; and some others."""
    slopes = (0.0, 1e-30, 1e-6, 0.01, 0.3, 0.99, 1.0)
    bases = (-1e6, -50.0, -10.0, -0.4, 0.0, 0.37, 10.0, 50.0, 1e6)
    pairs = torch.tensor([(b, s) for b in bases for s in slopes], device=DEVICE)
    return pairs[:, 0].contiguous(), pairs[:, 1].contiguous()


@kernel
@pytest.mark.parametrize("lowest", [True, False])
@pytest.mark.parametrize(("ensemble_size", "atoms"), [(1, 2), (2, 16), (3, 51)])
def test_projection(ensemble_size: int, atoms: int, lowest: bool) -> None:
    z = categorical.support(-10.0, 10.0, atoms, DEVICE)
    base, slope = moves()
    logits = (
        3 * normal(ensemble_size, len(base), 64)[:, :, :atoms]
    )  # rows lie further apart than long
    out = kernels.project_shifted(logits, base, slope, z, lowest)
    wanted = categorical.project_shifted(logits, base, slope, z, lowest=lowest)
    if lowest:  # rows whose heads come to the same means but for rounding may keep either
        each = categorical.project_shifted(logits, base, slope, z, lowest=False)
        means = categorical.mean(each, z).sort(0).values
        clear = (means[1:2] - means[:1] > 1e-4).any(0) | (ensemble_size == 1)
        assert clear.float().mean() > 0.3
        out, wanted = out[clear], wanted[clear]
    torch.testing.assert_close(out, wanted, atol=2e-5, rtol=0)
    torch.testing.assert_close(out.sum(-1), torch.ones_like(out[..., 0]), atol=1e-5, rtol=0)


@kernel
@pytest.mark.parametrize("lowest", [True, False])
def test_projection_of_what_is_not_a_number_shows_in_its_row_alone(lowest: bool) -> None:
    z = categorical.support(-10.0, 10.0, 51, DEVICE)
    logits, base, slope = normal(2, 9, 51), normal(9), torch.full((9,), 0.9, device=DEVICE)
    base[1], slope[3], logits[0, 5, 7] = float("nan"), float("nan"), float("nan")
    slope[6] = 0.0
    spoiled = kernels.project_shifted(logits, base, slope, z, lowest).isnan().any(-1)
    assert (spoiled if lowest else spoiled.any(0)).nonzero().flatten().tolist() == [1, 3, 5]


@kernel
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("ensemble_size", "atoms"), [(1, 2), (2, 51), (3, 101)])
def test_cross_entropy_and_its_gradient(ensemble_size: int, atoms: int, shared: bool) -> None:
    z = categorical.support(-10.0, 10.0, atoms, DEVICE)
    logits = (5 * normal(ensemble_size, 37, 128)[:, :, :atoms]).requires_grad_()
    target = normal(*(() if shared else (ensemble_size,)), 37, atoms, seed=1).abs()
    by = normal(ensemble_size, 37, seed=2)
    loss, q = categorical.cross_entropy(logits, target, z)
    (wanted,) = torch.autograd.grad(loss, logits, by)
    found_loss, found_q, lse = kernels.cross_entropy(logits.detach(), target, z)
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(found_loss, loss.detach(), **near)
    torch.testing.assert_close(found_q, q, **near)
    found = kernels.cross_entropy_backward(logits.detach(), target, lse, by)
    torch.testing.assert_close(found, wanted, **near)


@kernel
def test_cross_entropy_of_logits_in_another_order_of_memory() -> None:
    z = categorical.support(-10.0, 10.0, 51, DEVICE)
    turned = normal(2, 51, 19).transpose(1, 2)
    target = normal(51, 19, seed=1).abs().T
    found = kernels.cross_entropy(turned, target, z)
    wanted = kernels.cross_entropy(turned.contiguous(), target.contiguous(), z)
    assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    by = normal(2, 19, seed=2)
    gradient = kernels.cross_entropy_backward(turned, target, found[2], by)
    plain = (turned.contiguous(), target.contiguous(), found[2], by)
    assert torch.equal(gradient, kernels.cross_entropy_backward(*plain))


@kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_logits(dtype: torch.dtype) -> None:
    z = categorical.support(-10.0, 10.0, 51, DEVICE)
    logits, target = normal(2, 9, 51).to(dtype), normal(9, 51, seed=1).softmax(-1)
    loss, q, lse = kernels.cross_entropy(logits, target, z)
    gradient = kernels.cross_entropy_backward(logits, target, lse, torch.ones_like(loss))
    assert (loss.dtype, q.dtype, gradient.dtype) == (torch.float32, torch.float32, dtype)
    torch.testing.assert_close(loss, categorical.cross_entropy(logits, target, z)[0])


@kernel
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("ensemble_size", "rows", "columns"), [(1, 1, 3), (2, 301, 70), (3, 64, 64)]
)
def test_backward_through_relu(
    ensemble_size: int, rows: int, columns: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wide`: members side by side in memory, as behind one wide product."""
    if INTERPRETED:
        monkeypatch.setattr(relu, "SHARES", 4)  # 128 programs, one after the other, take long
    out, above = (
        normal(ensemble_size, rows, columns).relu(),
        normal(ensemble_size, rows, columns, seed=1),
    )
    if wide:
        out = out.transpose(0, 1).contiguous().transpose(0, 1)
    through, total = relu.relu_backward(above, out)
    wanted = above * (out > 0)
    assert torch.equal(through, wanted)
    assert through.stride() == out.stride()
    torch.testing.assert_close(total, wanted.sum(1), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(relu.sum_rows(above), above.sum(1), atol=1e-4, rtol=1e-5)
    assert torch.equal(relu.sum_rows(above.mT.contiguous().mT), relu.sum_rows(above))


@kernel
def test_projections_of_many_weights_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetfoot.ops.triton import project

    monkeypatch.setattr(project, "ELEMENTS", 128)  # several programs for each matrix
    shapes = [(7, 20), (2, 8, 33), (3, 2, 30, 5), (16, 1)]
    weights = [3 * normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    vectors = [(normal(2, 9, seed=7), normal(2, 9, seed=8)), (normal(5, seed=9),)]
    wanted = [w.clone() for w in weights], [tuple(v.clone() for v in pair) for pair in vectors]
    for weight in wanted[0]:
        unit_columns_(weight)
    for pair in wanted[1]:
        root_length_(*pair)
    projector = Projector(weights, vectors)
    projector.by_kernels()

    def same() -> None:
        for one, two in zip(weights, wanted[0], strict=True):
            torch.testing.assert_close(one, two)
        for one, two in zip(sum(vectors, ()), sum(wanted[1], ()), strict=True):
            torch.testing.assert_close(one, two)

    same()
    moved = weights[1].data_ptr()
    weights[1].data = 5 * weights[1]  # elsewhere in memory
    assert weights[1].data_ptr() != moved
    projector.by_kernels()
    same()
    with pytest.raises(ValueError, match="contiguous"):
        Projector([normal(4, 3).T], vectors).by_kernels()


@kernel
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("form", ["members", "shared", "plus"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (70, 20), (300, 5)])
def test_batch_norm_and_its_gradients(
    rows: int, columns: int, form: str, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that do not fill a tile, several tiles in a share, shares that are empty at the end, and far from zero."""
    monkeypatch.setattr(norm_kernels, "ROWS", 16)
    monkeypatch.setattr(norm_kernels, "MOST_SHARES", 8)
    members = 2
    x = 30 + 2 * normal(*(() if form == "shared" else (members,)), rows, columns)
    weight, bias = normal(members, columns, seed=1), normal(members, columns, seed=2)
    mean, variance = normal(members, columns, seed=3), normal(members, columns, seed=4).abs()
    plus = normal(members, rows, 2 * columns, seed=5)[:, :, :columns] if form == "plus" else None
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    options: dict[str, Any] = {"momentum": 0.1, "eps": 1e-5, "relu": relu}
    wanted = batch_norm(x, weight, bias, mean, variance, plus=plus, **options)
    above = normal(members, rows, columns, seed=6)
    slopes = torch.autograd.grad(wanted[0], leaves, above)
    given: list[Any] = [t.detach() for t in (x, weight, bias)]
    kernels: Any = norm_kernels
    found = kernels.batch_norm(*given, mean, variance, plus, *options.values())
    near: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-4}
    for one, two in zip(found, wanted, strict=False):
        torch.testing.assert_close(one, two.detach(), **near)
    backward = kernels.batch_norm_backward(above, *given, *found[3:], relu, True)
    if form == "shared":
        backward = (backward[0].sum(0), *backward[1:])
    for one, two in zip(backward, slopes, strict=True):
        torch.testing.assert_close(one, two, atol=2e-3, rtol=1e-3)
    frozen = kernels.batch_norm_backward(above, *given, *found[3:], relu, False)
    assert frozen[0].numel() == 0
    assert torch.equal(frozen[1], backward[1])


@kernel
@pytest.mark.parametrize("form", ["single", "members", "shared"])
def test_batch_norm_as_an_operation_of_autograd(form: str) -> None:
    lead = () if form == "single" else (2,)
    x = normal(*(lead if form == "members" else ()), 9, 4)
    own = [normal(*lead, 4, seed=seed).abs() for seed in range(1, 5)]
    plus = normal(*lead, 9, 4, seed=5)
    leaves = [t.requires_grad_() for t in (x, *own[:2], plus)]
    wanted = batch_norm(x, *own, momentum=0.1, eps=1e-5, relu=True, plus=plus)
    kernels: Any = in_kernels
    found = kernels(x, *own, plus, 0.1, 1e-5, True)
    above = normal(*lead, 9, 4, seed=6)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
        assert one.requires_grad == two.requires_grad
    slopes = [torch.autograd.grad(out[0], leaves, above) for out in (found, wanted)]
    for one, two in zip(*slopes, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    (frozen,) = torch.autograd.grad(
        kernels(x.detach(), *own, None, 0.1, 1e-5, True)[0], own[0], above
    )
    torch.testing.assert_close(frozen, slopes[1][1], atol=1e-4, rtol=1e-4)


@kernel
def test_batch_norm_of_half_precision_features() -> None:
    x = (normal(2, 40, 8) + 1).bfloat16()
    own = [normal(2, 8, seed=seed).abs() for seed in range(1, 5)]
    kernels: Any = norm_kernels
    out, *_, mean, rate = kernels.batch_norm(x, *own, x, 0.01, 1e-5, True)
    wanted = batch_norm(x, *own, momentum=0.01, eps=1e-5, relu=True, plus=x)[0]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wanted, atol=0.03, rtol=0.02)
    found = kernels.batch_norm_backward(out, x, *own[:2], mean, rate, True, True)
    assert [t.dtype for t in found] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_compiled_layers_on_a_gpu_use_them_and_stay_close(shared: bool, biased: bool) -> None:
    x = normal(33, 70) if shared else normal(2, 33, 70)
    leaves = [x, normal(2, 70, 101, seed=1) / 8, normal(2, 101, seed=2)]
    above = normal(2, 33, 101, seed=3)

    def gradients(function: object) -> list[Tensor]:
        own = [t.clone().requires_grad_() for t in leaves]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = function(own[0], own[1], own[2] if biased else None, True)  # type: ignore[operator]
        out.float().backward(above)
        return [out.float().detach(), *(t.grad for t in own if t.grad is not None)]

    found, wanted = gradients(torch.compile(affine.affine)), gradients(affine.affine)
    for one, two in zip(found, wanted, strict=True):
        assert (one - two).norm() < 0.03 * two.norm()
