"""The control variate: its mean by enumeration, its variance, and the random numbers of executed actions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fleetfoot.ops.control_variate import Regression, coefficients, gumbels_given
from fleetfoot.ops.without_replacement import gumbels
from oracles.without_replacement import exact_gradient

ONE = torch.tensor(1.0, dtype=torch.float64)


def numbers(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def estimates(
    logits: Tensor,
    f: Tensor,
    model: Tensor,
    value: float,
    alpha: Tensor,
    beta: Tensor,
    **more: float,
) -> Tensor:
    """[D, D]: the estimated gradient with respect to the logits, for each action that may be executed."""
    log_probs = logits.log_softmax(-1)
    rows = []
    for executed in range(len(logits)):
        others = [a for a in range(len(logits)) if a != executed]
        actions = torch.tensor([executed, *others])
        error, guesses = f[executed] - value, model[actions] - value
        factor, _ = coefficients(log_probs, actions, error, guesses, alpha, beta, **more)
        # grad log pi(a) with respect to the logits is the unit vector of a minus pi.
        rows.append(
            torch.zeros_like(logits).scatter(0, actions, factor) - factor.sum() * log_probs.exp()
        )
    return torch.stack(rows)


@pytest.mark.parametrize("num_actions", [2, 3, 4, 5])
def test_no_model_changes_the_mean(num_actions: int) -> None:
    for seed in range(5):
        logits = numbers(num_actions, scale=2.0, seed=seed)
        f = numbers(num_actions, scale=5.0, seed=seed + 100) + 7.0
        model = numbers(num_actions, scale=50.0, seed=seed + 200)  # has nothing to do with f
        wanted = exact_gradient(logits, f)
        for alpha, beta in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.3, 0.8), (1.0, 1.0)):
            each = estimates(logits, f, model, 3.0, alpha * ONE, beta * ONE)
            mean = (logits.softmax(-1).unsqueeze(-1) * each).sum(0)
            assert (mean - wanted).abs().max() < 1e-10


def test_a_perfect_model_leaves_no_variance_and_no_model_leaves_actor_critic() -> None:
    logits, f = numbers(4), numbers(4, scale=5.0, seed=1)
    perfect = estimates(logits, f, f, 3.0, ONE, ONE)
    for row in perfect:
        torch.testing.assert_close(row, exact_gradient(logits, f))
    without = estimates(logits, f, numbers(4, seed=2), 3.0, 0.0 * ONE, 0.0 * ONE)
    for action, row in enumerate(without):
        direction = torch.eye(4, dtype=torch.float64)[action] - logits.softmax(-1)
        torch.testing.assert_close(row, (f[action] - 3.0) * direction)


def test_with_less_weight_on_the_rest_the_mean_lies_between_that_of_the_model_and_the_real_one() -> (
    None
):
    logits, f, model = numbers(4), numbers(4, scale=5.0, seed=1), numbers(4, seed=2)
    each = estimates(logits, f, model, 3.0, ONE, ONE, real_weight=0.25)
    mean = (logits.softmax(-1).unsqueeze(-1) * each).sum(0)
    wanted = 0.25 * exact_gradient(logits, f) + 0.75 * exact_gradient(logits, model)
    torch.testing.assert_close(mean, wanted)


def drawn(log_probs: Tensor, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Actions, and Gumbel numbers that belong to them."""
    generator = torch.Generator().manual_seed(seed)
    action = torch.multinomial(log_probs.exp(), rows, replacement=True, generator=generator)
    uniform = torch.rand(rows, len(log_probs), generator=generator, dtype=torch.float64)
    return action, gumbels_given(log_probs, action, gumbels(uniform))


def test_the_numbers_of_an_action_lead_to_it_and_are_gumbel_numbers_on_average() -> None:
    log_probs, rows = numbers(4, scale=1.5).log_softmax(-1), 40_000
    action, g = drawn(log_probs, rows, seed=1)
    assert torch.equal((log_probs + g).argmax(-1), action)
    uniform = (-(-g).exp()).exp()
    expected = rows / 20
    for column in uniform.unbind(-1):
        counts = torch.histc(column, 20, 0.0, 1.0)
        assert ((counts - expected).square() / expected).sum() < 43.8  # 19 degrees, 1 in 1,000
    assert (torch.corrcoef(uniform.T) - torch.eye(4)).abs().max() < 5 / rows**0.5


def test_with_the_numbers_of_what_followed_a_wrong_model_still_changes_no_mean() -> None:
    """Two steps: the second state, its policy and its action depend on the first action."""
    rows, first, second = 200_000, numbers(3).log_softmax(-1), numbers(3, 3, seed=1).log_softmax(-1)
    f, model = numbers(3, 3, scale=2.0, seed=2), numbers(3, 3, scale=2.0, seed=3)
    in_model = numbers(3, 3, seed=4).log_softmax(-1)  # of the states that the model predicts
    generator = torch.Generator().manual_seed(5)
    a = torch.multinomial(first.exp(), rows, replacement=True, generator=generator)
    b = torch.multinomial(second[a].exp(), 1, generator=generator).squeeze(-1)
    uniform = torch.rand(rows, 3, generator=generator, dtype=torch.float64)
    g = gumbels_given(second[a], b, gumbels(uniform))
    follows = (in_model + g.unsqueeze(1)).argmax(-1)  # [rows, 3]: after each first action
    guesses = model.expand(rows, 3, 3).gather(-1, follows.unsqueeze(-1)).squeeze(-1)
    actions = (a.unsqueeze(-1) + torch.arange(3)) % 3
    guesses = guesses.gather(-1, actions)
    factor, _ = coefficients(first.expand(rows, 3), actions, f[a, b], guesses, 0.7 * ONE, 0.9 * ONE)
    each = torch.zeros(rows, 3, dtype=torch.float64).scatter(1, actions, factor)
    each = each - factor.sum(-1, keepdim=True) * first.exp()
    wanted = exact_gradient(first, (second.exp() * f).sum(-1))
    distance = (each.mean(0) - wanted).abs() / (each.std(0) / rows**0.5)
    assert distance.max() < 4


def test_the_regression_finds_how_much_the_model_knows() -> None:
    rows = 20_000
    mean, advantage, noise = numbers(3, rows).unbind()
    error = 0.5 * mean + 0.8 * advantage + noise
    log_probs = torch.full((rows, 2), 0.5, dtype=torch.float64).log()
    actions = torch.tensor([0, 1]).expand(rows, 2)
    f = mean.unsqueeze(-1) + torch.stack([advantage, -advantage], -1)
    regression = Regression().double()
    assert [float(x) for x in regression()] == [0.0, 0.0]
    for sign in (1.0, 0.0):
        planted = error if sign else noise
        _, sums = coefficients(log_probs, actions, planted, f, 0.0 * ONE, 0.0 * ONE)
        for _ in range(200):
            regression.update(sums.mean(0))
        alpha, beta = regression()
        assert float(alpha) == pytest.approx(0.5 * sign, abs=0.03)
        assert float(beta) == pytest.approx(0.8 * sign, abs=0.03)
