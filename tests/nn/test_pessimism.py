from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot.errors import UserError
from fleetfoot.nn.pessimism import (
    BanditBoundConfig,
    Bound,
    FixedBoundConfig,
    LearnedBound,
    LearnedBoundConfig,
)
from fleetfoot.optim import AdamConfig, SGDConfig

GAMMA = 0.9


def test_beta_zero_is_the_mean_and_beta_one_the_smaller_of_two() -> None:
    q = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(FixedBoundConfig(beta=0.0).build(1)(q), q.mean(0))
    torch.testing.assert_close(FixedBoundConfig(beta=1.0).build(1)(q), q.amin(0))
    half = FixedBoundConfig(beta=0.5).build(1)(q)
    torch.testing.assert_close(half, q.mean(0) - 0.25 * (q[0] - q[1]).abs())


@pytest.mark.parametrize("cfg", [FixedBoundConfig(), LearnedBoundConfig(), BanditBoundConfig()])
def test_gradients_are_finite_where_critics_agree(
    cfg: FixedBoundConfig | LearnedBoundConfig | BanditBoundConfig,
) -> None:
    q = torch.ones(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(cfg.build(1)(q).sum(), q)
    assert gradient.isfinite().all()


def settle(bound: Bound, steps: int, gap_at_zero: torch.Tensor, slope: torch.Tensor) -> float:
    """Steps of the agent's loop on rows whose targets fall by `slope` per unit of beta."""
    step = AdamConfig(lr=0.02, beta1=0.5).build(bound, steps)
    noise = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(slope), (256,), generator=noise)
        gap = gap_at_zero[rows] - bound.beta() * slope[rows]
        loss, _, mean_slope = bound.loss(gap, slope[rows])
        step(loss)
        bound.follow_(mean_slope)
    return float(bound.beta())


@pytest.mark.parametrize("form", ["bias", "mse"])
@pytest.mark.parametrize("c", [0.5, -0.5])
def test_targets_above_predictions_raise_beta_until_they_meet(form: Any, c: float) -> None:
    # Spread 1 everywhere; at beta 1 the targets are c above the predictions.
    slope = torch.full((1000,), GAMMA)
    bound = replace(LearnedBoundConfig(), form=form).build(1)
    assert settle(bound, 200, GAMMA + torch.full((1000,), c), slope) == pytest.approx(
        1 + c / GAMMA, abs=0.02
    )


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_beta_finds_the_overestimation_planted_in_a_table(scale: float) -> None:
    """Five states, two actions: Q of a uniform policy by solving its equations; the target critics are too high by 0.7
    spreads on average, the predictions are right."""
    draw = np.random.default_rng(0)
    states, actions = 5, 2
    move = draw.dirichlet(np.ones(states), size=(states, actions))  # [S, A, S]
    reward = scale * draw.normal(size=(states, actions))
    onward = np.einsum("xay,b->xayb", move, np.full(actions, 1 / actions)).reshape(10, 10)
    q_pi = np.linalg.solve(np.eye(10) - GAMMA * onward, reward.reshape(10))
    rows = 4000
    at = draw.integers(10, size=rows)
    then = np.array([draw.choice(10, p=onward[i] / onward[i].sum()) for i in at])
    spread = scale * draw.uniform(0.5, 1.5, size=rows)
    too_high = 0.7 * spread + scale * draw.normal(0.0, 0.3, size=rows)
    target = reward.reshape(10)[at] + GAMMA * (q_pi[then] + too_high)
    gap = torch.tensor(target - q_pi[at], dtype=torch.float32)
    slope = torch.tensor(GAMMA * spread, dtype=torch.float32)
    for start in (-1.0, 3.0):
        bound = LearnedBoundConfig(beta=start, form="bias").build(1)
        assert settle(bound, 500, gap, slope) == pytest.approx(0.7, abs=0.1)


def follow(bound: Bound, steps: int, error: float) -> tuple[float, float]:
    """Critics that follow their targets, one state and reward 0: Q <- y_beta on rows to learn from, and `error` more on
    rows held out, so the values are true where Q is 0. Returns beta and Q."""
    step = SGDConfig(lr=0.02).build(bound, steps)
    q, spread, noise = 0.0, 1.0, torch.Generator().manual_seed(1)
    for _ in range(steps):
        y = GAMMA * (q - float(bound.beta()) * spread)
        q += 0.2 * (y + error - q)
        gap = y - q + 0.1 * torch.randn(64, generator=noise)
        loss, _, mean_slope = bound.loss(gap, torch.full((64,), GAMMA * spread))
        step(loss)
        bound.follow_(mean_slope)
    return float(bound.beta()), q


STARTS, ERRORS = (-1.0, 1.0, 3.0), (0.5, 0.0, -0.5)
IN_SUITE = set(
    zip(STARTS, ERRORS, strict=True)
)  # each start and each error once; all pairs are slow


@pytest.mark.parametrize(
    ("start", "error"),
    [
        pair if pair in IN_SUITE else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in product(STARTS, ERRORS)
    ],
)
def test_where_critics_follow_their_targets_beta_makes_values_true(
    start: float, error: float
) -> None:
    """What rows held out are overrated by, each time, is what pessimism takes away again: from any start beta is
    error / (gamma spread) and values are right. The forms that trust predictions go the other way, or nowhere."""
    beta, q = follow(LearnedBoundConfig(beta=start).build(1), 1_000, error)
    assert beta == pytest.approx(error / GAMMA, abs=0.05)
    assert q == pytest.approx(0.0, abs=0.1)
    beta, _ = follow(LearnedBoundConfig(beta=start, form="bias").build(1), 1_000, error)
    if error != 0.0:
        assert beta == (-2.0 if error > 0 else 5.0)
    else:
        assert abs(beta - start) < 1.5


def test_the_bias_form_is_the_square_of_the_mean_and_its_gradient_is_unbiased() -> None:
    bound = LearnedBoundConfig(normalize=False, form="bias").build(1)
    gap, slope = torch.tensor([1.0, 3.0, -2.0, 6.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    loss, mean_gap, mean_slope = bound.loss(gap, slope)
    assert loss.item() == pytest.approx(0.5 * 2.0 * 2.0)
    (gradient,) = torch.autograd.grad(loss, list(bound.parameters()))
    assert gradient.item() == pytest.approx(-0.5 * (1.5 * 2.0 + 3.5 * 2.0))
    assert (mean_gap.item(), mean_slope.item()) == (2.0, 2.5)
    mse = LearnedBoundConfig(normalize=False, form="mse").build(1)
    loss, _, _ = mse.loss(gap, slope)
    assert loss.item() == pytest.approx(0.5 * (1 + 9 + 4 + 36) / 4)
    (gradient,) = torch.autograd.grad(loss, list(mse.parameters()))
    assert gradient.item() == pytest.approx(-(1 + 6 - 6 + 24) / 4)
    unbiased = LearnedBoundConfig(normalize=False, beta=2.0).build(1)
    loss, _, _ = unbiased.loss(gap, slope)
    one, two = 2.0 + 2.0 * 1.5, 2.0 + 2.0 * 3.5  # of either half
    assert loss.item() == pytest.approx(0.5 * one * two)
    (gradient,) = torch.autograd.grad(loss, list(unbiased.parameters()))
    assert gradient.item() == pytest.approx(0.5 * (1.5 * two + 3.5 * one))


def test_the_normalised_loss_does_not_know_the_scale_of_rewards() -> None:
    gap, slope = torch.randn(64), torch.rand(64)
    losses = []
    for scale in (1.0, 1000.0):
        bound = LearnedBoundConfig().build(1)
        assert isinstance(bound, LearnedBound)
        for _ in range(3):
            loss, _, mean_slope = bound.loss(scale * gap, scale * slope)
            bound.follow_(mean_slope)
        losses.append(loss.item())
        assert bound.running_slope.item() == pytest.approx(scale * slope.mean().item(), rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def drift(optim: SGDConfig | AdamConfig, updates: int, gap: float, *, wait: int = 0) -> float:
    """How far beta goes if it cannot close the gap, `gap` spreads on average; no rows for the first `wait` updates."""
    bound = LearnedBoundConfig(form="bias").build(1)
    step = optim.build(bound, updates)
    noise = torch.Generator().manual_seed(0)
    for update in range(wait + updates):
        rows = torch.full((64,), float(update >= wait))
        found = gap + torch.randn(64, generator=noise)
        loss, _, mean_slope = bound.loss(found, torch.ones(64), rows)
        step(loss)
        bound.follow_(mean_slope)
    return float(bound.beta()) - 1.0


def test_plain_steps_are_as_long_as_the_gap_is_large() -> None:
    """Held-out rows are few, so small gaps stay whatever beta is. They must not carry it off at full speed."""
    lr, updates = 3e-4, 1000
    for gap in (0.0, 0.1, -0.5):
        assert drift(SGDConfig(lr=lr), updates, gap) == pytest.approx(gap * lr * updates, abs=0.01)
    assert drift(AdamConfig(lr=lr, beta1=0.5), updates, 0.1) > 4 * 0.1 * lr * updates


def test_a_wait_without_rows_does_not_make_the_first_steps_longer() -> None:
    lr = 3e-4
    assert drift(SGDConfig(lr=lr), 1, 1.0, wait=300) == pytest.approx(lr, rel=0.3)
    assert drift(AdamConfig(lr=lr, beta1=0.5), 1, 1.0, wait=300) > 5 * lr


def test_beta_stays_in_its_range_and_nothing_else_learns() -> None:
    bound = LearnedBoundConfig(form="bias").build(1)
    assert settle(bound, 500, torch.full((10,), 100.0), torch.full((10,), 1e-8)) == 5.0
    q = torch.randn(2, 8, requires_grad=True)
    loss, _, _ = bound.loss(q.sum(0), bound.spread(q))
    (gradient,) = torch.autograd.grad(loss, q, allow_unused=True)
    assert gradient is None
    with pytest.raises(UserError, match="beta_max"):
        LearnedBoundConfig(beta=9.0).build(1)


class PlainBandit:
    """The same rule, one episode at a time, in plain Python."""

    def __init__(self) -> None:
        self.w, self.arm = [0.0, 0.0], 0
        self.changes: list[float] = []
        self.last: float | None = None

    def episode(self, total: float, uniform: float) -> None:
        if self.last is not None:
            self.changes = [*self.changes, total - self.last][-5:]
            x = np.array(self.changes)
            f = (x[-1] - x.mean()) / (x.std() + 1e-4)
            w = (
                0.9 * self.w[self.arm]
            )  # TOP's code decays the weight first, and divides by what is left
            self.w[self.arm] = w + 0.1 * float(f) / max(math.exp(w), 1e-4)
        self.last = total
        p = math.exp(self.w[0]) / (math.exp(self.w[0]) + math.exp(self.w[1]))
        self.arm = 0 if uniform < p else 1


def test_the_bandit_follows_its_rule_episode_by_episode() -> None:
    bound, plain = BanditBoundConfig().build(1), PlainBandit()
    draw = np.random.default_rng(0)
    arms = set()
    for _ in range(40):
        total = 0.0
        for t in range(4):
            reward, uniform = float(draw.normal()), float(draw.uniform())
            total += reward
            bound.observe(
                torch.tensor([reward]).float(), torch.tensor([t == 3]), torch.tensor(uniform)
            )
        plain.episode(total, uniform)
        torch.testing.assert_close(
            bound.get_buffer("weights"), torch.tensor(plain.w).float(), atol=1e-4, rtol=1e-3
        )
        assert bound.beta().item() == (1.0, 0.0)[plain.arm]
        arms.add(plain.arm)
    assert arms == {0, 1}


def test_the_bandit_learns_which_arm_pays() -> None:
    """Returns rise while beta is 0 and fall while it is 1."""
    bound, draw = BanditBoundConfig().build(3), torch.Generator().manual_seed(0)
    level, chosen = 0.0, []
    for _ in range(600):
        level += 1.0 if bound.beta().item() == 0.0 else -1.0
        reward = level + torch.randn(3, generator=draw)
        bound.observe(reward, torch.ones(3, dtype=torch.bool), torch.rand((), generator=draw))
        chosen.append(bound.beta().item())
    assert sum(beta == 0.0 for beta in chosen[100:]) > 280
    torch.testing.assert_close(bound.get_buffer("returns"), torch.zeros(3))


def test_several_bounds_can_be_computed_as_one() -> None:
    bounds = [LearnedBoundConfig(beta=b).build(1) for b in (0.0, 1.0, 2.0)]
    weights, buffers = torch.func.stack_module_state(bounds)
    gap, slope = torch.randn(3, 8), torch.rand(3, 8)

    def one(w: dict[str, Any], b: dict[str, Any], g: torch.Tensor, s: torch.Tensor) -> Any:
        module = Calls(bounds[0])
        return torch.func.functional_call(
            module, {f"bound.{k}": v for k, v in (w | b).items()}, (g, s)
        )

    together = torch.func.vmap(torch.func.grad(one), in_dims=(0, 0, 0, 0))(
        weights, buffers, gap, slope
    )
    for i, bound in enumerate(bounds):
        loss, _, _ = bound.loss(gap[i], slope[i])
        (alone,) = torch.autograd.grad(loss, list(bound.parameters()))
        torch.testing.assert_close(together["level"][i], alone)


class Calls(torch.nn.Module):
    def __init__(self, bound: Bound):
        super().__init__()
        self.bound = bound

    def forward(self, gap: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        return self.bound.loss(gap, slope)[0]
