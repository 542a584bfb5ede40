from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fleetfoot.errors import UserError
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops.optimizers import laid_out_like
from fleetfoot.ops.schedules import cosine
from fleetfoot.optim import (
    AdaGradConfig,
    AdamConfig,
    AdamWConfig,
    RMSPropConfig,
)
from fleetfoot.pace import PaceConfig
from fleetfoot.topologies.apex.lead import Lead


@given(ratio=st.floats(0.01, 10), warmup=st.integers(0, 20), steps=st.integers(0, 200))
def test_updates_add_up_to_the_ratio(ratio: float, warmup: int, steps: int) -> None:
    cfg = PaceConfig(updates_per_vec_step=ratio, warmup_vec_steps=warmup)
    pace = cfg.build()
    owed = [pace.owed() for _ in range(steps)]
    # A ratio that is a whole number but for rounding counts as one.
    due = int(max(0, steps - warmup) * ratio + 1e-6)
    assert sum(owed) == due == cfg.updates_after(steps)
    assert all(abs(o - ratio) < 1 + 1e-6 for o in owed[warmup:])
    assert not any(owed[:warmup])


def test_negative_ratio() -> None:
    with pytest.raises(UserError, match="must be at least 0"):
        PaceConfig(updates_per_vec_step=-1.0).build()


def test_first_adamw_step_by_hand() -> None:
    """The first step of AdamW is -lr * sign(gradient), after the weight has shrunk by lr * decay."""
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    step = AdamWConfig(lr=0.1, lr_end=0.1, weight_decay=0.5).build(nn.ParameterList([weight]), 10)
    norm = step((weight * torch.tensor([3.0, -4.0])).sum())
    assert norm.item() == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([1 * 0.95 - 0.1, -2 * 0.95 + 0.1], abs=1e-6)


def test_clipping_scales_the_whole_gradient() -> None:
    """Seen in the second moment: after one step it is (1 - beta2) g^2."""
    weight = nn.Parameter(torch.zeros(2))
    cfg = AdamWConfig(weight_decay=0.0, beta2=0.5, max_grad_norm=1.0)
    step = cfg.build(nn.ParameterList([weight]), 10)
    step((weight * torch.tensor([3.0, 4.0])).sum())
    second = step.optimizer.state[weight]["exp_avg_sq"]
    assert second.tolist() == pytest.approx([0.5 * 0.36, 0.5 * 0.64], rel=1e-4)


def test_cosine_schedule() -> None:
    for progress, wanted in ((0.0, 1.0), (0.5, 0.55), (7.0, 0.1)):
        assert float(cosine(1.0, 0.1, torch.tensor(progress))) == pytest.approx(wanted)
    weight = nn.Parameter(torch.zeros(1))
    step = AdamWConfig(lr=1e-2, lr_end=1e-3).build(nn.ParameterList([weight]), 4)
    rates = []
    for _ in range(4):
        step((weight - 1).square().sum())
        rates.append(step.optimizer.param_groups[0]["lr"].item())
    by_hand = [1e-3 + 0.5 * 9e-3 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3, 4)]
    assert rates == pytest.approx(by_hand, rel=1e-5)


def test_who_makes_no_step_has_no_optimiser() -> None:
    """With its first one a process loads torch's compiler, for about a second."""
    weight = nn.Parameter(torch.zeros(2))
    step = AdamConfig().build(nn.ParameterList([weight]), 10)
    step.gradients(weight.sum())
    assert "optimizer" not in vars(step)
    step(weight.sum())
    assert "optimizer" in vars(step)


def test_restored_steppers_go_on_exactly() -> None:
    def make() -> tuple[nn.Parameter, object]:
        weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        return weight, AdamWConfig(lr=1e-2, lr_end=1e-4).build(nn.ParameterList([weight]), 20)

    one, step_one = make()
    two, step_two = make()
    for _ in range(5):
        step_one(one.square().sum())  # type: ignore[operator]
    step_two.load_state_dict(copy.deepcopy(step_one.state_dict()))  # type: ignore[attr-defined]
    with torch.no_grad():
        two.copy_(one)
    for _ in range(5):
        step_one(one.square().sum())  # type: ignore[operator]
        step_two(two.square().sum())  # type: ignore[operator]
    assert torch.equal(one, two)


def descend(make: Any, steps: int = 50, parts: int = 1) -> torch.Tensor:
    """Weights after some noisy steps. `make` turns parameters into something that steps down a loss."""
    random = torch.Generator().manual_seed(0)
    whole = torch.randn(30, generator=random)
    weights = [nn.Parameter(chunk.clone()) for chunk in whole.tensor_split(parts)]
    step = make(weights)
    for _ in range(steps):
        noise = torch.randn(30, generator=random)
        step((torch.cat(list(weights)) * (noise + 0.5)).sum())
    return torch.cat([w.detach() for w in weights])


def by_torch(kind: Any, **options: Any) -> Any:
    def make(weights: list[nn.Parameter]) -> Any:
        optimizer = kind(weights, **options)

        def step(loss: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    return make


def by_us(cfg: Any) -> Any:
    return lambda weights: cfg.build(nn.ParameterList(weights), 100)


@pytest.mark.parametrize(
    ("cfg", "reference"),
    [
        (
            RMSPropConfig(lr=1e-2, eps_inside=False),
            by_torch(torch.optim.RMSprop, lr=1e-2, alpha=0.95, eps=1.5e-7, centered=True),
        ),
        (
            RMSPropConfig(lr=1e-2, decay=0.9, eps=1e-3, eps_inside=False, centred=False),
            by_torch(torch.optim.RMSprop, lr=1e-2, alpha=0.9, eps=1e-3),
        ),
        (AdaGradConfig(), by_torch(torch.optim.Adagrad, lr=1e-2, eps=1e-10)),
        (AdamConfig(lr=1e-2, eps=1e-3), by_torch(torch.optim.Adam, lr=1e-2, eps=1e-3)),
    ],
)
def test_optimisers_agree_with_torch(cfg: Any, reference: Any) -> None:
    torch.testing.assert_close(descend(by_us(cfg)), descend(reference), rtol=1e-4, atol=1e-5)


def test_centred_rmsprop_by_hand() -> None:
    """eps belongs under the root, as in the published systems."""
    gradients = np.array([0.3, -0.1, 0.2, 0.2])
    weight, square, mean = 1.0, 0.0, 0.0
    parameter = nn.Parameter(torch.tensor([1.0]))
    step = RMSPropConfig(lr=0.01, decay=0.9, eps=0.01).build(nn.ParameterList([parameter]), 10)
    for g in gradients:
        square, mean = 0.9 * square + 0.1 * g * g, 0.9 * mean + 0.1 * g
        weight -= 0.01 * g / math.sqrt(square - mean**2 + 0.01)
        step(parameter.sum() * float(g))
        assert parameter.item() == pytest.approx(weight, rel=1e-6)


def test_centred_rmsprop_survives_gradients_that_never_change() -> None:
    """Their variance is zero, and rounding makes it less: a root of it would be no number."""
    for inside in (True, False):
        weight = nn.Parameter(torch.linspace(0.1, 3.0, 500))
        scale = torch.linspace(0.1, 3.0, 500)
        step = RMSPropConfig(lr=1e-3, eps_inside=inside, eps=1e-5).build(
            nn.ParameterList([weight]), 10
        )
        for _ in range(1000):
            step((weight * scale).sum())
        assert bool(torch.isfinite(weight).all())


def test_the_two_halves_of_a_step_are_the_whole() -> None:
    for cfg in (AdamWConfig(max_grad_norm=0.5), AdaGradConfig(), RMSPropConfig(max_grad_norm=0.5)):

        def halves(weights: list[nn.Parameter], cfg: Any = cfg) -> Any:
            step = cfg.build(nn.ParameterList(weights), 100)

            def both(loss: torch.Tensor) -> None:
                before = [w.detach().clone() for w in weights]
                gradients = step.gradients(loss)
                assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
                assert [g.shape for g in gradients] == [w.shape for w in weights]
                step.apply([g.clone() for g in gradients])

            return both

        assert torch.equal(descend(halves, parts=3), descend(by_us(cfg), parts=3))


@pytest.mark.parametrize("parts", [2, 7])
def test_adagrad_gives_the_same_weights_however_they_are_split(parts: int) -> None:
    cfg = AdaGradConfig()
    assert torch.equal(descend(by_us(cfg), parts=parts), descend(by_us(cfg)))


def test_adamw_is_what_it_was_before_steps_had_halves() -> None:
    def reference(weights: list[nn.Parameter]) -> Any:
        lr = torch.tensor(3e-4)
        optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.1, fused=True)

        def step(loss: torch.Tensor) -> None:
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = gradient
            optimizer.step()

        return step

    assert torch.equal(descend(by_us(AdamWConfig()), parts=2), descend(reference, parts=2))


@pytest.mark.parametrize("cfg", [AdaGradConfig(), RMSPropConfig(lr_end=1e-5), AdamConfig()])
def test_every_optimiser_goes_on_exactly(cfg: Any) -> None:
    one, two = (nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
    step_one, step_two = (cfg.build(nn.ParameterList([weight]), 20) for weight in (one, two))
    for _ in range(5):
        step_one(one.square().sum())
    step_two.load_state_dict(copy.deepcopy(step_one.state_dict()))
    with torch.no_grad():
        two.copy_(one)
    for _ in range(5):
        step_one(one.square().sum())
        step_two(two.square().sum())
    assert torch.equal(one, two)
    assert step_one.lr.item() == pytest.approx(step_two.lr.item())


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        (AdamWConfig(weight_decay=-1.0), "weight_decay"),
        (AdamConfig(beta2=1.0), "beta1 and beta2"),
        (AdamConfig(lr=0.0), "learning rates"),
        (AdamConfig(lr_end=-1.0), "learning rates"),
        (RMSPropConfig(decay=1.0), "decay"),
        (AdaGradConfig(max_grad_norm=0.0), "max_grad_norm"),
    ],
)
def test_optimisers_that_cannot_work_are_refused(cfg: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        cfg.build(nn.ParameterList([nn.Parameter(torch.zeros(1))]), 10)


def test_a_lead_is_bounded_by_what_arrives_and_does_not_pile_up() -> None:
    lead = Lead(2.0, rows=100, most_at_once=16)
    learned = 0
    for _ in range(50):  # slow actors: three rows at a time, so six may be learned from
        lead.earn(3)
        while lead.allows(16):
            lead.spend(16)
            learned += 16
    assert 2 * 150 - 16 < learned <= 2 * 150
    lead.earn(10_000)  # a slow learner, and then no actors
    left = 0
    while lead.allows(16):
        lead.spend(16)
        left += 16
    assert left == 2 * 100 // 16 * 16
    small = Lead(0.1, rows=10, most_at_once=16)  # never stuck for good
    small.earn(1_000)
    assert small.allows(16)


@pytest.mark.parametrize(
    "cfg",
    [
        AdamConfig(lr=0.01, lr_end=0.001, max_grad_norm=0.5),
        AdamWConfig(lr=0.01, lr_end=0.001, weight_decay=0.3),
    ],
)
@pytest.mark.parametrize(
    "make", [partial(FlashNetConfig(width=8, blocks=1).build, 5, 3), partial(Temperature, 0.1)]
)
def test_steps_in_plain_operations_are_the_same(
    make: Callable[[], nn.Module], cfg: AdamConfig | AdamWConfig
) -> None:
    """Of a network that is projected after each step, or of a single number; with clipping, decay and a schedule."""
    network = make()
    twin = copy.deepcopy(network)
    one, other = cfg.build(network, 8), cfg.build(twin, 8)
    random = torch.Generator().manual_seed(3)
    for _ in range(6):
        gradients = [torch.randn(p.shape, generator=random) for p in one.parameters]
        norm = one.apply([gradient.clone() for gradient in gradients])
        torch.testing.assert_close(other.apply_in_plain_operations(gradients), norm)
    for mine, theirs in zip(twin.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert other.lr == one.lr
    assert other.steps == one.steps == 6
    for mine, theirs in zip(
        other.optimizer.state.values(), one.optimizer.state.values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_replicas_on_several_ranks_keep_the_steps_of_torch() -> None:
    """Each rank would compile code of its own, which may round otherwise."""
    stepper = AdamConfig(lr=0.1).build(nn.Linear(2, 2), 10)
    assert stepper.compilable
    stepper.reduce = lambda gradients: [gradient / 2 for gradient in gradients]
    assert not stepper.compilable


@pytest.mark.parametrize("cfg", [AdamConfig(lr=0.1), AdamWConfig(lr=0.1)])
def test_an_optimiser_of_ones_own_is_not_replaced(cfg: AdamConfig | AdamWConfig) -> None:
    """What it changes about Adam is not known to the compiled steps."""

    class Own(type(cfg)):  # type: ignore[misc]
        pass

    assert cfg.build(nn.Linear(2, 2), 10).compilable
    assert not Own(lr=0.1).build(nn.Linear(2, 2), 10).compilable


@pytest.mark.parametrize("cfg", [AdamConfig(lr=0.1), AdamWConfig(lr=0.1)])
def test_gradients_with_the_channels_last_are_taken(cfg: AdamConfig | AdamWConfig) -> None:
    plain, strange = (nn.Parameter(torch.ones(4, 3, 2, 2)) for _ in range(2))
    gradient = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    cfg.build(nn.ParameterList([plain]), 10).apply([gradient.clone()])
    cfg.build(nn.ParameterList([strange]), 10).apply(
        [gradient.clone().to(memory_format=torch.channels_last)]
    )
    assert strange.grad is None
    torch.testing.assert_close(strange, plain, rtol=0, atol=0)
    assert laid_out_like(plain, gradient.to(memory_format=torch.channels_last)).is_contiguous()
