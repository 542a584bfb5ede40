"""The set estimator against the list of all sets."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fleetfoot.ops import without_replacement as wr
from oracles.without_replacement import exact_gradient, set_probability, without


def logits_of(num_actions: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_actions, generator=generator, dtype=torch.float64)


def moments(logits: Tensor, f: Tensor, k: int, own_baseline: bool) -> tuple[Tensor, float]:
    """Mean and total variance of the estimate over all sets of k, by listing them."""
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    mean, square = torch.zeros_like(logits), 0.0
    for actions in combinations(range(len(logits)), k):
        chosen = torch.tensor(actions)
        factor = wr.set_coefficients(log_probs, chosen, f[chosen], own_baseline=own_baseline)
        # grad log pi(a) with respect to the logits is the unit vector of a minus pi.
        estimate = torch.zeros_like(logits).scatter(0, chosen, factor) - factor.sum() * probs
        probability = set_probability(probs.tolist(), actions)
        mean += probability * estimate
        square += probability * float(estimate.square().sum())
    return mean, square - float(mean.square().sum())


@pytest.mark.parametrize("integral", [False, True])
@pytest.mark.parametrize("own_baseline", [False, True])
@pytest.mark.parametrize("num_actions", [2, 3, 4, 5])
def test_the_mean_is_the_exact_gradient(
    num_actions: int, own_baseline: bool, integral: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if integral:
        monkeypatch.setattr(wr, "LARGEST_BY_RECURSION", 0)
    for seed in range(3):
        logits = logits_of(num_actions, seed=seed)
        f = logits_of(num_actions, scale=5.0, seed=seed + 100) + 7.0
        wanted = exact_gradient(logits, f)
        for k in range(1, num_actions + 1):
            mean, _ = moments(logits, f, k, own_baseline)
            assert (mean - wanted).abs().max() < 1e-10


def test_larger_sets_and_the_baseline_lower_the_variance() -> None:
    logits, f = logits_of(4, scale=1.0, seed=5), logits_of(4, scale=2.0, seed=6) + 5.0
    reinforce, two, two_with, three_with, all_four = (
        moments(logits, f, k, own)[1]
        for k, own in ((1, False), (2, False), (2, True), (3, True), (4, True))
    )
    assert reinforce > 2 * two > 4 * two_with > 8 * three_with > 0
    assert abs(all_four) < 1e-10


def test_two_actions_in_closed_form() -> None:
    log_probs = logits_of(6).log_softmax(-1)
    p = log_probs.exp()
    ratios = wr.set_ratios(log_probs, torch.tensor([4, 1]))
    both = 2 - p[4] - p[1]
    torch.testing.assert_close(ratios.weight, torch.stack([(1 - p[1]) / both, (1 - p[4]) / both]))
    f = torch.tensor([3.0, -2.0], dtype=torch.float64)
    coefficients = wr.set_coefficients(log_probs, torch.tensor([4, 1]), f, own_baseline=True)
    wanted = ratios.weight * torch.stack([(1 - p[4]) * 5.0, -(1 - p[1]) * 5.0])
    torch.testing.assert_close(coefficients, wanted)


def test_one_action_is_reinforce_and_all_are_the_exact_sum() -> None:
    log_probs = logits_of(5).log_softmax(-1)
    assert wr.set_ratios(log_probs, torch.tensor([3])).weight.tolist() == pytest.approx([1.0])
    ratios = wr.set_ratios(log_probs, torch.arange(5))
    torch.testing.assert_close(ratios.weight, log_probs.exp())


@pytest.mark.parametrize("integral", [False, True])
def test_ratios_are_those_of_the_listed_probabilities(
    integral: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if integral:
        monkeypatch.setattr(wr, "LARGEST_BY_RECURSION", 0)
    log_probs = logits_of(6).log_softmax(-1)
    probs, actions = log_probs.exp().tolist(), (5, 0, 3)
    ratios = wr.set_ratios(log_probs, torch.tensor(actions))
    for i, a in enumerate(actions):
        others = [b for b in actions if b != a]
        of_others = set_probability(without(probs, a), others)
        weight = probs[a] * of_others / set_probability(probs, actions)
        assert float(ratios.weight[i]) == pytest.approx(weight, rel=1e-10)
        for j, b in enumerate(actions):
            rest = [c for c in others if c != b]
            second = set_probability(without(probs, a, b), rest) / of_others if a != b else 1.0
            assert float(ratios.baseline[i, j]) == pytest.approx(probs[b] * second, rel=1e-10)


def test_recursion_and_integral_agree_on_large_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs = logits_of(18, scale=1.5).log_softmax(-1)
    actions = torch.arange(0, 16, 2)
    by_recursion = wr.set_ratios(log_probs, actions)
    monkeypatch.setattr(wr, "LARGEST_BY_RECURSION", 0)
    by_integral = wr.set_ratios(log_probs, actions)
    torch.testing.assert_close(by_recursion.weight, by_integral.weight, rtol=1e-10, atol=0)
    torch.testing.assert_close(by_recursion.baseline, by_integral.baseline, rtol=1e-10, atol=0)
    monkeypatch.undo()
    weight = wr.set_ratios(log_probs, torch.arange(17)).weight  # 17 of 18: never by recursion
    assert weight.isfinite().all()
    assert (weight >= log_probs[:17].exp()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_lost_where_the_mass_is_exhausted(dtype: torch.dtype) -> None:
    """One action has all but 1e-9 of the mass: 1 - p is zero in float32."""
    logits = torch.tensor([0.0, -21.0, -22.0, -30.0], dtype=dtype)
    ratios = wr.set_ratios(logits.log_softmax(-1), torch.tensor([0, 1]))
    p = logits.double().softmax(-1)
    outside_0, outside_1 = p[1:].sum(), p[0] + p[2] + p[3]
    wanted = torch.stack([outside_1, outside_0]) / (outside_0 + outside_1)
    torch.testing.assert_close(ratios.weight.double(), wanted, rtol=1e-5, atol=0)
    assert ratios.baseline.isfinite().all()


def test_frequencies_of_sets_are_plackett_luce() -> None:
    """Pearson's chi^2 over the ten sets of 3 out of 5: 9 degrees of freedom, 99.9 % of such values are below 27.9."""
    draws = 200_000
    log_probs = logits_of(5, scale=1.0).log_softmax(-1)
    uniform = torch.rand(draws, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for first in (None, drawn_once(log_probs, draws)):
        drawn = wr.gumbel_top_k(log_probs.expand(draws, 5), uniform, 3, first)
        if first is not None:
            assert torch.equal(drawn[:, 0], first)
        code = (1 << drawn).sum(-1)
        chi2 = 0.0
        for actions in combinations(range(5), 3):
            expected = draws * set_probability(log_probs.exp().tolist(), actions)
            count = int((code == sum(1 << a for a in actions)).sum())
            chi2 += (count - expected) ** 2 / expected
        assert chi2 < 27.9


def drawn_once(log_probs: Tensor, draws: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.multinomial(log_probs.exp(), draws, replacement=True, generator=generator)


def test_gumbels_are_finite_at_both_ends() -> None:
    noise = wr.gumbels(torch.tensor([0.0, 1.0 - 2.0**-24]))
    assert noise.isfinite().all()
    uniform = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = wr.gumbels(uniform)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.05)


class Called(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of all operations inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("k", [2, 3, 4])
def test_nothing_is_copied_from_the_host(k: int) -> None:
    """A list as an index would be a tensor on the host: the GPU waits for it, and no CUDA graph can be recorded."""
    with Called() as called:
        wr.set_ratios(logits_of(4).log_softmax(-1), torch.arange(k))
    assert "aten.logsumexp.default" in called.names
    assert "aten.index.Tensor" not in called.names
