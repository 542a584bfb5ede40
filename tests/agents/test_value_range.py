"""Value ranges of categorical critics: found by themselves (auto), or given, and then watched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fleetfoot import recipes
from fleetfoot.agents.contract import traits
from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.config import from_json, to_json
from fleetfoot.data import Continuous, Discrete, EnvSpec
from fleetfoot.errors import Notice, UserError
from fleetfoot.log import ClippingNotice, Counters
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.ops import categorical
from support.made_up import CPU, make_batch, make_spec, make_transition, parameters

NETS: dict[str, Any] = {
    "policy_net": MLPConfig(hidden=(8,)),
    "critic_net": MLPConfig(hidden=(8,)),
    "num_atoms": 11,
}
CONFIGS: dict[str, Any] = {
    "fast_td3": FastTD3Config(**NETS),
    "fast_sac": FastSACConfig(**NETS),
    "ddpg": DDPGConfig(**NETS, num_critics=2),
    "dqn": DQNConfig(num_atoms=11, torso=MLPTorsoConfig(hidden=(8,)), head=MLPConfig(hidden=(8,))),
}


def spec_for(name: str) -> EnvSpec:
    return make_spec(action=Discrete(3) if name == "dqn" else Continuous(2))


def train(name: str, factor: float, seed: int = 0) -> Any:
    """A few updates on made-up rows whose rewards are multiplied by `factor`."""
    spec = spec_for(name)
    agent = CONFIGS[name].build(spec, gamma=0.9, total_updates=9, seed=seed, device=CPU)
    for step in range(6):
        fresh = make_transition(spec, seed=step)
        agent.observe(fresh._replace(reward=fresh.reward * factor))
        batch = make_batch(spec, rows=16, seed=step)
        agent.update(batch._replace(reward=batch.reward * factor))
    return agent


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("factor", [2.0**10, 2.0**-10])
def test_with_auto_the_unit_of_rewards_does_not_matter(name: str, factor: float) -> None:
    """A power of two, so that not even the last bit changes."""
    one, other = train(name, 1.0), train(name, factor)
    for a, b in zip(
        parameters(one.policy, one.critic), parameters(other.policy, other.critic), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CONFIGS)
def test_without_auto_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, name, replace(CONFIGS[name], v_min=-5.0, v_max=5.0))
    one, other = train(name, 1.0), train(name, 2.0**10)
    assert not all(
        torch.equal(a, b)
        for a, b in zip(parameters(one.critic), parameters(other.critic), strict=True)
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_the_scale_is_saved_and_stated(name: str) -> None:
    cfg = CONFIGS[name]
    assert traits(cfg).follows_episodes
    assert from_json(to_json(cfg)) == cfg
    agent, fresh = (
        train(name, 100.0),
        cfg.build(spec_for(name), gamma=0.9, total_updates=9, seed=1, device=CPU),
    )
    fresh.load_state_dict(agent.state_dict())
    scales = [getattr(a, "return_scale", None) or a.reward_scale for a in (agent, fresh)]
    assert scales[0].divisor.item() > 1.0
    assert torch.equal(scales[0].divisor, scales[1].divisor)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_range_holds_values_beyond_the_ends_that_the_clock_makes(name: str) -> None:
    """One reward per step forever is worth 10 at a discount of 0.9, also where each episode has three steps."""
    spec = spec_for(name)
    agent = CONFIGS[name].build(spec, gamma=0.9, total_updates=9, seed=0, device=CPU)
    for step in range(100):
        fresh = make_transition(spec, seed=step)
        none, ends = (
            torch.zeros_like(fresh.terminated),
            torch.full_like(fresh.terminated, step % 3 == 2),
        )
        reward = torch.ones_like(fresh.reward)
        agent.observe(fresh._replace(reward=reward, terminated=none, truncated=ends))
    scale = getattr(agent, "return_scale", None) or agent.reward_scale
    assert 10.0 / scale.divisor.item() == pytest.approx(float(agent.z[-1]), rel=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_bound_alone_cannot_be_auto(name: str) -> None:
    cfg = replace(CONFIGS[name], v_min=-1.0)
    with pytest.raises(UserError, match="both auto or both numbers"):
        cfg.build(spec_for(name), gamma=0.9, total_updates=9, seed=0, device=CPU)


def test_clipped_mass_by_hand() -> None:
    z = categorical.support(-1.0, 1.0, 3)
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(2, 4, 3)
    base = torch.tensor([0.0, 0.5, 3.0, -1.0])
    slope = torch.tensor([1.0, 1.0, 0.0, 0.5])
    # Nothing; the last atom; everything, since it all moves to 3; the first atom (to -1.5).
    share = categorical.clipped_mass(logits, base, slope, z)
    assert share.item() == pytest.approx((0.0 + 0.5 + 1.0 + 0.2) / 4)


def test_atoms_that_rounding_moves_over_the_edge_are_not_clipped() -> None:
    z = categorical.support(-10.0, 10.0, 101)
    logits = torch.randn(2, 64, 101, generator=torch.Generator().manual_seed(0))
    slope = torch.rand(64, generator=torch.Generator().manual_seed(1))
    assert categorical.clipped_mass(logits, 10.0 * (1.0 - slope), slope, z).item() == 0.0


def counters() -> Iterator[Counters]:
    at = 0
    while True:
        at += 1
        yield Counters(vec_steps=at, env_steps=at, updates=at, train_seconds=0.0)


def notices(shares: list[float | None], recwarn: pytest.WarningsRecorder) -> list[str]:
    sink = ClippingNotice(-10.0, 10.0)
    for at, share in zip(counters(), shares, strict=False):
        sink.write(at, {} if share is None else {"critic/clipped": share})
    return [str(w.message) for w in recwarn.list if issubclass(w.category, Notice)]


def test_a_range_that_stays_too_narrow_is_named_once(recwarn: pytest.WarningsRecorder) -> None:
    (message,) = notices([0.2] * 20, recwarn)
    assert "20.0%" in message
    assert "from -10 to 10" in message
    assert "--agent.v-min" in message


@pytest.mark.parametrize(
    "shares", [[0.2] * 4 + [0.0, 0.2, 0.2, 0.2, 0.2], [0.009] * 20, [None] * 20]
)
def test_a_range_that_fits_is_not(
    shares: list[float | None], recwarn: pytest.WarningsRecorder
) -> None:
    assert notices(shares, recwarn) == []


@pytest.mark.parametrize(
    "name", ["fast_td3/halfcheetah", "fast_td3/walker2d", "fast_sac/halfcheetah"]
)
def test_recipes_that_may_be_given_another_task_choose_no_range(name: str) -> None:
    agent: Any = recipes.get(name).agent
    assert (agent.v_min, agent.v_max) == ("auto", "auto")
