from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.explore import AsSampledConfig, NoiseLadderConfig
from fleetfoot.part import UserError

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
    "cfg", [NoiseLadderConfig(random_vec_steps=2), AsSampledConfig(random_vec_steps=2)]
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


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="std_min"):
        NoiseLadderConfig(std_min=0.5, std_max=0.1).build(make_spec(2), seed=0, device=CPU)
    with pytest.raises(UserError, match="discrete"):
        AsSampledConfig().build(make_spec(2, Discrete(4)), seed=0, device=CPU)
