from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.explore import (
    AsSampledConfig,
    EpsilonAnnealConfig,
    EpsilonLadderConfig,
    GreedyConfig,
    HeldNoiseConfig,
    NoiseLadderConfig,
)

CPU = torch.device("cpu")


def make_spec(num_envs: int, action: Any = None) -> EnvSpec:
    return EnvSpec("made-up", num_envs, (2,), action or Continuous(3), CPU)


class Fixed(nn.Module):
    """A policy that always says the same."""

    def __init__(self, value: float):
        super().__init__()
        self.value = value

    def forward(self, obs: Obs, *noise: torch.Tensor) -> torch.Tensor:
        return torch.full((obs.actor.shape[0], 3), self.value) + sum(noise)


def obs(n: int) -> Obs:
    x = torch.zeros(n, 2)
    return Obs(x, x)


def test_noise_strength_changes_only_where_an_episode_ended() -> None:
    explorer = NoiseLadderConfig(std_min=0.1, std_max=0.4).build(make_spec(50), seed=0, device=CPU)
    first = explorer.std.clone()
    assert 0.1 <= first.min() < first.max() <= 0.4
    explorer.restart(torch.zeros(50, dtype=torch.bool))
    assert torch.equal(explorer.std, first)
    ended = torch.arange(50) < 10
    explorer.restart(ended)
    assert torch.equal(explorer.std[10:], first[10:])
    assert bool((explorer.std[:10] != first[:10]).all())


def test_a_fixed_ladder_is_evenly_spaced() -> None:
    cfg = NoiseLadderConfig(std_min=0.05, std_max=0.8, redraw="never")
    explorer = cfg.build(make_spec(101), seed=0, device=CPU)
    assert explorer.std[0].item() == pytest.approx(0.05)
    assert explorer.std[50].item() == pytest.approx(0.425)
    assert explorer.std[100].item() == pytest.approx(0.8)
    explorer.restart(torch.ones(101, dtype=torch.bool))
    assert explorer.std[50].item() == pytest.approx(0.425)


def test_noise_has_the_strength_of_its_environment_and_actions_stay_inside() -> None:
    cfg = NoiseLadderConfig(std_min=0.0, std_max=0.3, redraw="never")
    explorer = cfg.build(make_spec(3), seed=0, device=CPU)
    drawn = torch.stack([explorer.act(Fixed(0.1), obs(3)) for _ in range(4000)])
    assert drawn.std((0, 2)).tolist() == pytest.approx([0.0, 0.15, 0.3], rel=0.03, abs=1e-6)
    assert float(explorer.act(Fixed(1.0), obs(3)).max()) <= 1.0


@pytest.mark.parametrize(
    "cfg",
    [
        NoiseLadderConfig(random_vec_steps=2),
        AsSampledConfig(random_vec_steps=2),
        HeldNoiseConfig(random_vec_steps=2, shared=False),
    ],
)
def test_random_start_then_the_policy_and_exact_restore(cfg: Any) -> None:
    explorer = cfg.build(make_spec(2000), seed=3, device=CPU)
    spread = explorer.act(Fixed(0.9), obs(2000)).std()
    assert spread.item() == pytest.approx(2 / 12**0.5, rel=0.05)  # uniform on [-1, 1]
    state = explorer.state_dict()
    again = cfg.build(make_spec(2000), seed=4, device=CPU)
    again.load_state_dict(state)
    for _ in range(3):
        assert torch.equal(explorer.act(Fixed(0.0), obs(2000)), again.act(Fixed(0.0), obs(2000)))
    high, low = (float(explorer.act(Fixed(v), obs(2000)).mean()) for v in (0.9, -0.9))
    assert high > 0.5
    assert low < -0.5


def test_noise_is_held_for_lengths_of_a_zeta_law() -> None:
    cfg = HeldNoiseConfig(shared=False)
    explorer = cfg.build(make_spec(100_000), seed=0, device=CPU)
    lengths = explorer._lengths()
    assert (int(lengths.min()), int(lengths.max())) == (1, 16)
    for k, share in enumerate((0.6313, 0.1578, 0.0701, 0.0395), start=1):
        spread = (share * (1 - share) / 100_000) ** 0.5
        assert float((lengths == k).double().mean()) == pytest.approx(share, abs=3 * spread)
    assert float(lengths.double().mean()) == pytest.approx(2.13, abs=0.03)


@pytest.mark.parametrize("shared", [True, False])
def test_noise_stays_the_same_within_a_run_and_is_new_after_it(shared: bool) -> None:
    explorer = HeldNoiseConfig(shared=shared).build(make_spec(40), seed=0, device=CPU)
    before, left = torch.zeros(40, 3), torch.zeros(40 if not shared else 1, 1)
    together = []
    for _ in range(300):
        ends = (left == 0).expand(40, 1)
        noise = explorer.noise()[0].clone()
        kept = (noise == before).all(1, keepdim=True)
        assert torch.equal(kept, ~ends)
        together.append(bool(ends.all()) or not bool(ends.any()))
        explorer.restart(torch.ones(40, dtype=torch.bool))  # the end of an episode changes nothing
        before, left = noise, explorer.left.clone()
    assert all(together) == shared  # one length for all, or one for each
    assert noise.std().item() == pytest.approx(1.0, abs=0.3)  # each environment has its own noise


def test_held_noise_goes_on_in_the_middle_of_a_run() -> None:
    cfg = HeldNoiseConfig(exponent=0.0)
    explorer, other = (cfg.build(make_spec(5), seed=seed, device=CPU) for seed in (0, 1))
    while int(explorer.left) < 3:
        explorer.noise()
    other.load_state_dict(explorer.state_dict())
    for _ in range(40):
        assert torch.equal(explorer.act(Fixed(0.0), obs(5)), other.act(Fixed(0.0), obs(5)))


class FixedValues(nn.Module):
    """q-values of which action 1 of 4 is the largest."""

    def forward(self, obs: Obs) -> torch.Tensor:
        return torch.tensor([0.0, 3.0, 1.0, -2.0]).expand(obs.actor.shape[0], 4)


CHOICE = Discrete(4)


def shares(explorer: Any, num_envs: int, steps: int) -> torch.Tensor:
    """How often each environment did something else than action 1."""
    drawn = torch.stack([explorer.act(FixedValues(), obs(num_envs)) for _ in range(steps)])
    assert drawn.dtype == torch.int64
    return (drawn != 1).double().mean(0)


def test_the_ladder_of_eight() -> None:
    explorer = EpsilonLadderConfig().build(make_spec(8, CHOICE), seed=0, device=CPU)
    wanted = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    assert explorer.epsilon.tolist() == pytest.approx(wanted, abs=1e-6)
    assert explorer.epsilon.tolist() == pytest.approx(wanted, rel=1e-6)
    explorer.restart(torch.ones(8, dtype=torch.bool))
    assert explorer.epsilon.tolist() == pytest.approx(wanted, abs=1e-6)


def test_workers_take_their_parts_of_one_ladder() -> None:
    whole = EpsilonLadderConfig().build(make_spec(12, CHOICE), seed=0, device=CPU).epsilon
    parts = [
        EpsilonLadderConfig(first=4 * w, total=12).build(make_spec(4, CHOICE), seed=w, device=CPU)
        for w in range(3)
    ]
    assert torch.equal(torch.cat([part.epsilon for part in parts]), whole)
    one = EpsilonLadderConfig().build(make_spec(1, CHOICE), seed=0, device=CPU)
    assert one.epsilon.tolist() == pytest.approx([0.4])  # a ladder of one rung


def test_random_actions_are_as_frequent_as_epsilon_says() -> None:
    explorer = EpsilonLadderConfig(epsilon=0.8, alpha=1.0).build(
        make_spec(3, CHOICE), seed=0, device=CPU
    )
    # A random action is the greedy one in a quarter of all cases.
    wanted = [0.75 * e for e in (0.8, 0.8**1.5, 0.64)]
    assert shares(explorer, 3, 6000).tolist() == pytest.approx(wanted, abs=0.02)
    always = EpsilonLadderConfig(epsilon=1.0).build(make_spec(9000, CHOICE), seed=0, device=CPU)
    counts = torch.bincount(always.act(FixedValues(), obs(9000)), minlength=4) / 9000
    assert counts.tolist() == pytest.approx([0.25] * 4, abs=0.02)


def test_greedy_never_explores() -> None:
    explorer = GreedyConfig().build(make_spec(50, CHOICE), seed=0, device=CPU)
    assert shares(explorer, 50, 200).sum() == 0


def test_annealing_is_linear_and_then_stays() -> None:
    cfg = EpsilonAnnealConfig(start=0.9, end=0.1, over_vec_steps=8, random_vec_steps=3)
    explorer = cfg.build(make_spec(4000, CHOICE), seed=0, device=CPU)
    for _ in range(3):
        assert explorer.epsilon() == pytest.approx(0.9)
        counts = torch.bincount(explorer.act(FixedValues(), obs(4000)), minlength=4) / 4000
        assert counts.tolist() == pytest.approx([0.25] * 4, abs=0.03)
    for step in range(12):
        epsilon = max(0.1, 0.9 - 0.1 * step)
        assert explorer.epsilon() == pytest.approx(epsilon)
        seen = shares(explorer, 4000, 1).mean().item()
        assert seen == pytest.approx(0.75 * epsilon, abs=0.03)


@pytest.mark.parametrize(
    "cfg",
    [
        EpsilonAnnealConfig(over_vec_steps=6, random_vec_steps=2),
        EpsilonLadderConfig(random_vec_steps=2),
        GreedyConfig(random_vec_steps=2),
    ],
)
@pytest.mark.parametrize("before", [1, 4])
def test_restored_explorers_of_discrete_actions_go_on_exactly(cfg: Any, before: int) -> None:
    one, two = (cfg.build(make_spec(50, CHOICE), seed=s, device=CPU) for s in (0, 1))
    for _ in range(before):
        one.act(FixedValues(), obs(50))
    two.load_state_dict(one.state_dict())
    for _ in range(8):
        a, b = (explorer.act(FixedValues(), obs(50)) for explorer in (one, two))
        assert torch.equal(a, b)


def test_draws_do_not_depend_on_data() -> None:
    class Other(nn.Module):
        def forward(self, obs: Obs) -> torch.Tensor:
            values: torch.Tensor = FixedValues()(obs)
            return -values

    one, two = (
        EpsilonLadderConfig(epsilon=0.5, alpha=0.0).build(make_spec(50, CHOICE), seed=0, device=CPU)
        for _ in range(2)
    )
    for _ in range(20):
        a, b = one.act(FixedValues(), obs(50)), two.act(Other(), obs(50))
        assert torch.equal((a != 1) & (a != b), torch.zeros(50, dtype=torch.bool))


def test_streams_of_continuous_explorers_are_those_of_the_first_version() -> None:
    """Recorded draws: equal recipes must go on giving equal runs."""
    ladder = NoiseLadderConfig(random_vec_steps=1).build(make_spec(2), seed=7, device=CPU)
    random = torch.Generator().manual_seed(7)
    std = 0.001 + torch.rand(2, generator=random) * (0.4 - 0.001)
    assert torch.equal(ladder.std, std)
    start = torch.rand(2, 3, generator=random) * 2 - 1
    assert torch.equal(ladder.act(Fixed(0.0), obs(2)), start)
    noise = std.unsqueeze(1) * torch.randn(2, 3, generator=random)
    assert torch.equal(ladder.act(Fixed(0.0), obs(2)), noise.clamp(-1, 1))
    sampled = AsSampledConfig().build(make_spec(2), seed=7, device=CPU)
    noise = torch.randn(2, 3, generator=torch.Generator().manual_seed(7))
    assert torch.equal(sampled.act(Fixed(0.0), obs(2)), noise.clamp(-1, 1))


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="std_max must be at least"):
        NoiseLadderConfig(std_min=0.5, std_max=0.1).build(make_spec(2), seed=0, device=CPU)
    with pytest.raises(UserError, match="discrete"):
        AsSampledConfig().build(make_spec(2, Discrete(4)), seed=0, device=CPU)


@pytest.mark.parametrize(
    ("cfg", "action", "says"),
    [
        (EpsilonLadderConfig(), Continuous(3), "NoiseLadderConfig"),
        (EpsilonAnnealConfig(), Continuous(3), "NoiseLadderConfig"),
        (GreedyConfig(), Continuous(3), "NoiseLadderConfig"),
        (NoiseLadderConfig(), CHOICE, "EpsilonLadderConfig"),
        (EpsilonLadderConfig(first=7, total=8), CHOICE, "no room"),
    ],
)
def test_explorers_that_cannot_work_are_refused(cfg: Any, action: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        cfg.build(make_spec(2, action), seed=0, device=CPU)
    assert "\n" not in str(caught.value)
