"""The kernels against the definitions they stand for: on a GPU, or else slowly through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetfoot.ops import categorical
from fleetfoot.ops import flash_net as operation
from fleetfoot.ops import flash_net_plain as plain

pytest.importorskip("triton")

from fleetfoot.ops.triton import categorical as kernels
from fleetfoot.ops.triton import flash_net, relu

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


LEARNING, FROZEN, NORM_ROWS = 2, 2, 256  # members, and rows of their batch


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize(
    ("groups", "learning", "columns", "width"),
    [(1, 2, 13, 64), (2, 2, 13, 64), (2, 4, 13, 64), (4, 2, 192, 192)],
)
@kernel
def test_batch_norm(groups: int, learning: int, columns: int, width: int, plus: bool) -> None:
    """Of features that members share, all of them or those of a seed, fewer than there is room for, and of their own;
    far from zero."""
    members = 2 * learning
    y = 3 * normal(groups, NORM_ROWS, columns) + 50
    norm = [normal(members, columns, seed=seed) for seed in range(4)]
    more = normal(members, NORM_ROWS, width) if plus and columns == width else None
    options: dict[str, Any] = {"relu": plus, "learning": learning, "momentum": 0.01, "eps": 1e-5}
    found, wanted = (torch.empty(members, NORM_ROWS, width, device=DEVICE) for _ in range(2))
    stats = flash_net.normalise(y, norm, more, found, **options)
    of_plain = plain.normalise(y, norm, more, wanted, **options)
    torch.testing.assert_close(stats, of_plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("groups", "learning", "columns"), [(1, 2, 13), (2, 4, 13), (2, 2, 192)])
@kernel
def test_batch_norm_backward(groups: int, learning: int, columns: int) -> None:
    """Of the input, which is shared, only the sums; of other features in place."""
    through = groups == learning
    y = 3 * normal(groups, NORM_ROWS, columns)
    above = normal(learning, NORM_ROWS, 192)
    stats = torch.stack([normal(2 * learning, columns, seed=seed).abs() for seed in range(4)])
    norm = [normal(2 * learning, columns, seed=seed) for seed in (5, 6)]
    found, wanted = (
        [torch.empty(learning, columns, device=DEVICE) for _ in range(2)] for _ in "12"
    )
    ways: list[Any] = [
        (above.clone(), flash_net.norm_backward, found),
        (above.clone(), plain.norm_backward, wanted),
    ]
    for gradient, backward, sums in ways:
        backward(gradient, y, [stats, *norm], sums, gradient if through else None)
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-4)
    torch.testing.assert_close(ways[0][0], ways[1][0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("counting", [NORM_ROWS, NORM_ROWS // 2])
@kernel
def test_rms_norm(counting: int) -> None:
    """Of all rows, or of the first half and, for those that are frozen, of the second; and backward."""
    members, width = LEARNING + FROZEN, 64
    x, weight = 2 * normal(members, NORM_ROWS, width), normal(members, width, seed=1)
    results = []
    for run in (flash_net, plain):
        out = torch.empty(members, counting, width, device=DEVICE)
        root = torch.empty(members, counting, device=DEVICE)
        run.rms(x, weight, 1e-6, out, root, LEARNING)
        above = normal(LEARNING, counting, width, seed=2)
        down = torch.zeros(LEARNING, NORM_ROWS, width, device=DEVICE)
        to_weight = torch.empty(LEARNING, width, device=DEVICE)
        run.rms_backward(above, x[:LEARNING], root[:LEARNING], weight, down, to_weight)
        results.append((out, root, down, to_weight))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


@kernel
def test_the_whole_network_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two critics of one block and their frozen twins, as the operation puts the kernels together."""
    inputs, width, outputs, rows, members = 65, 64, 101, 128, 2
    x, above = 3 * normal(rows, inputs) + 1, normal(members, rows // 2, outputs, seed=1)

    def network(seed: int) -> operation.Parameters:
        layers = [(inputs, width), (width, 4 * width), (4 * width, width), (width, outputs)]
        norms = (inputs, 4 * width, width)
        learned = [
            *(0.3 * normal(members, *layer, seed=seed + at) for at, layer in enumerate(layers)),
            *(normal(members, norm, seed=seed + 10 + at) for at, norm in enumerate(2 * norms)),
            normal(members, width, seed=seed + 20),
            normal(members, outputs, seed=seed + 21),
        ]
        learned = [value.requires_grad_() for value in learned]
        running = [normal(members, norm, seed=seed + 30).abs() for norm in norms for _ in "12"]
        weights, scales, shifts = learned[:4], learned[4:7], learned[7:10]
        return operation.Parameters(weights, scales, shifts, learned[10], learned[11], running)

    results = []
    for of in (flash_net, plain):
        monkeypatch.setattr(operation, "_kernels", lambda _, of=of: of)
        learning, frozen = network(100), network(200)
        options = {"momentum": 0.1, "eps": 1e-5, "rms_eps": 1e-6, "dtype": torch.float32}
        out, beside, fresh = operation.flash_net(x, learning, frozen, **options)  # type: ignore[arg-type]
        leaves = [*learning.weights, *learning.scales, *learning.shifts, learning.rms_scale]
        gradients = torch.autograd.grad((out * above).sum(), leaves)
        results.append([out.detach(), beside, *fresh, *gradients])
    for found, wanted in zip(*results, strict=True):
        near = 2e-5 * float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, atol=near, rtol=1e-3)
