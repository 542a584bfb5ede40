from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetfoot import recipes
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.dac import DAC, DACConfig
from fleetfoot.data import Continuous, Discrete, Obs
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.log.sinks import read_lines
from fleetfoot.nn.gaussian import Sampled
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.optimist import DeltaConfig, Independent, IndependentConfig
from fleetfoot.nn.scalar import ExpConfig
from fleetfoot.nn.spectral import SpectralLinear
from fleetfoot.optim import AdamConfig
from fleetfoot.replay.replay import Replay
from fleetfoot.run.build import open_run
from fleetfoot.topologies.synchronous import in_turns
from support.made_up import CPU, make_batch, make_spec, make_transition

TINY = MLPConfig(hidden=(16,), start="orthogonal")
SMALL = DACConfig(
    policy_net=TINY,
    optimist=IndependentConfig(net=TINY),
    critic_net=replace(TINY, layer_norm=True),
)


def make_agent(cfg: DACConfig = SMALL, seed: int = 0, **spec: Any) -> DAC:
    return cfg.build(make_spec(**spec), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def weights(agent: DAC) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": p.detach().clone()
        for name, part in vars(agent).items()
        if name in ("gaussian", *agent.state_attrs)
        and isinstance(part, nn.Module)
        and name != "policy"
        for key, p in part.named_parameters()
    }


def test_one_update_by_hand() -> None:
    """Every loss written out with the formulas of the paper; plain Adam's first step is the sign of the gradient."""
    lr, tau, alpha = 3e-4, 0.25, 0.5
    agent = make_agent(replace(SMALL, tau=tau, alpha=alpha))
    batch = make_batch(make_spec(), rows=5)
    old = copy.deepcopy(agent)
    draws = [old.critic_noise.normal(5, 2), old.policy_noise.normal(5, 2)]
    draws.append(old.optimist_noise.normal(5, 2))
    found = agent.update(batch).metrics

    def stepped(module: nn.Module, loss: Tensor, new: nn.Module) -> None:
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for before, gradient, after in zip(
            module.parameters(), gradients, new.parameters(), strict=True
        ):
            wanted = before - lr * gradient / (gradient.abs() + 1e-8)
            torch.testing.assert_close(after.detach(), wanted.detach(), atol=2e-6, rtol=1e-5)

    with torch.no_grad():
        action, log_prob = old.gaussian.sample(batch.next_obs, draws[0])
        low = old.critic_target(batch.next_obs, action)[..., 0].amin(0)
        y = batch.reward + batch.discount * (low - alpha * log_prob)  # (1)
    q1, q2 = old.critic(batch.obs, batch.action)[..., 0]
    critic_loss = (batch.weight * ((q1 - y) ** 2 + (q2 - y) ** 2)).mean()  # (2)
    assert found["critic/loss"].item() == pytest.approx(critic_loss.item(), rel=1e-4)
    stepped(old.critic, critic_loss, agent.critic)
    pairs = zip(
        old.critic_target.parameters(),
        agent.critic.parameters(),
        agent.critic_target.parameters(),
        strict=True,
    )
    for before, critic, after in pairs:  # (3)
        torch.testing.assert_close(after, ((1 - tau) * before + tau * critic).detach())

    action, log_prob = old.gaussian.sample(batch.obs, draws[1])
    low = agent.critic(batch.obs, action)[..., 0].amin(0)
    stepped(old.gaussian, (alpha * log_prob - low).mean(), agent.gaussian)  # (4)

    with torch.no_grad():
        mu, log_sigma = agent.gaussian(batch.obs)
    assert isinstance(old.optimist, Independent)
    mu_o, log_sigma_o = old.optimist.gaussian(batch.obs)
    action = torch.tanh(mu_o + 1.25 * log_sigma_o.exp() * draws[2])
    q1, q2 = agent.critic(batch.obs, action)[..., 0]
    upper = (q1 + q2) / 2 - 0.5 * (q1 - q2).abs() / 2
    sigma, sigma_o = log_sigma.exp(), log_sigma_o.exp()
    kl = (sigma / sigma_o).log() + (sigma_o**2 + (mu_o - mu) ** 2) / (2 * sigma**2) - 0.5
    kl = kl.sum(-1).mean()
    stepped(old.optimist, -upper.mean() + 1.0 * kl, agent.optimist)  # (5)
    assert found["optimist/kl"].item() == pytest.approx(kl.item(), rel=1e-3)

    sign = math.copysign(1, -log_prob.mean().item() + 1.0)
    assert agent.alpha().log().item() == pytest.approx(math.log(alpha) - lr * sign, abs=1e-6)
    sign = math.copysign(1, kl.item() / 2 - 0.5)
    for name, direction in (("optimism", -1), ("kl_weight", 1)):
        before, after = (getattr(a, name).raw.item() for a in (old, agent))
        assert after - before == pytest.approx(direction * sign * 3e-5, rel=0.02)


def test_the_adjusters_follow_the_divergence() -> None:
    agent = make_agent()
    assert agent.optimism().item() == pytest.approx(-0.5)
    assert agent.kl_weight().item() == pytest.approx(1.0)
    for kl, rises in ((5.0, False), (0.0, True), (0.99, True)):  # KL* is 0.5 for each of two
        agent = make_agent()
        for _ in range(10):
            agent.step_adjusters(agent.adjuster_loss(torch.tensor(kl)))
        assert (agent.optimism() > -0.5) == rises
        assert (agent.kl_weight() < 1.0) == rises


@pytest.mark.parametrize("low", [0.0, 0.5, 1.0])
def test_pessimism_is_the_policys_and_the_lower_end_of_optimism(low: float) -> None:
    """Targets keep the smaller critic, as the published code does; b_up = exp(x) - b_low begins at 0.5 - b_low."""
    agent, batch = make_agent(replace(SMALL, pessimism=low)), make_batch(make_spec())
    noise = torch.zeros(6, 2)
    with torch.no_grad():
        action, log_prob = agent.gaussian.sample(batch.next_obs, noise)
        smaller = agent.critic_target(batch.next_obs, action)[..., 0].amin(0)
        y = batch.reward + batch.discount * (smaller - agent.alpha() * log_prob)
        torch.testing.assert_close(agent.target(batch, noise), y)  # (1)
        action, log_prob = agent.gaussian.sample(batch.obs, noise)
        q1, q2 = agent.critic(batch.obs, action)[..., 0]
        value = (q1 + q2) / 2 - low * (q1 - q2).abs() / 2
        wanted = (agent.alpha() * log_prob - value).mean()  # (4)
        assert agent.policy_loss(batch.obs, noise).loss.item() == pytest.approx(
            wanted.item(), rel=1e-4
        )
    assert agent.optimism().item() == pytest.approx(0.5 - low)
    with torch.no_grad():
        agent.optimism.get_parameter("raw").fill_(-100.0)
    assert agent.optimism().item() == pytest.approx(-low), "the lower end"
    # Near its lower end b_up is pushed up, whatever the divergence says.
    with torch.no_grad():
        agent.optimism.get_parameter("raw").fill_(math.log(5e-4))
    (slope,) = torch.autograd.grad(
        agent.adjuster_loss(torch.tensor(1.0)), list(agent.optimism.parameters())
    )
    assert slope < 0


def test_optimism_does_not_collapse_and_may_stay_negative() -> None:
    cfg = replace(SMALL, adjuster_optim=AdamConfig(lr=0.3, beta1=0.5))
    agent = make_agent(cfg)
    lowest = 0.0
    for _ in range(300):
        agent.step_adjusters(agent.adjuster_loss(torch.tensor(2.0)))  # half above its target
        lowest = min(lowest, agent.optimism().item())
    assert -1.0 < lowest < -0.99
    assert agent.optimism() > -0.99999


def test_the_weight_of_the_divergence_is_clipped_in_the_optimists_loss_alone() -> None:
    obs, noise = make_batch(make_spec()).obs, torch.zeros(6, 2)
    losses = []
    for start in (20.0, 500.0):
        agent = make_agent(replace(SMALL, kl_weight=ExpConfig(start=start)))
        losses.append(agent.optimist_loss(obs, noise).loss.item())
        (slope,) = torch.autograd.grad(
            agent.adjuster_loss(torch.tensor(3.0)), list(agent.kl_weight.parameters())
        )
        assert slope.item() == pytest.approx(-start * (1.5 - 0.5), rel=1e-4)
    assert losses[0] == losses[1]


class MadeUpCritic(nn.Module):
    """Two critics with no common opinion: +spread(a) and -spread(a)."""

    def __init__(self, kind: str, scale: float):
        super().__init__()
        self.kind, self.scale = kind, scale

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        size = action.abs() if self.kind == "both sides" else action.relu()
        spread = self.scale * size.sum(-1, keepdim=True)
        return torch.stack([spread, -spread])


def quiet(agent: Any, log_std: float) -> None:
    """Make the policy the same Gaussian everywhere."""
    with torch.no_grad():
        head = agent.gaussian.net.head
        head.weight.zero_()
        raw = math.atanh((log_std + 10.0) / 6.0 - 1.0)
        head.bias.copy_(torch.tensor([0.0] * agent.action_size + [raw] * agent.action_size))


def test_the_divergence_settles_at_its_target() -> None:
    """Q_spread proportional to |a|, the policy held: optimism and weight meet where KL / A = KL*."""
    cfg = replace(
        SMALL,
        optimist=IndependentConfig(net=MLPConfig(hidden=(8,), start="orthogonal")),
        renew="initial",
        optimist_optim=AdamConfig(lr=3e-3),
        adjuster_optim=AdamConfig(lr=3e-3, beta1=0.5),
    )
    agent = make_agent(cfg, action=Continuous(1))
    agent.critic = MadeUpCritic("both sides", 3.0)  # type: ignore[assignment]
    quiet(agent, math.log(0.3))
    obs = make_batch(make_spec(action=Continuous(1)), rows=32).obs
    tail = []
    for step in range(2_000):
        loss, found, _ = agent.optimist_loss(obs, agent.optimist_noise.normal(32, 1))
        agent.step_optimist(loss)
        agent.step_adjusters(agent.adjuster_loss(found["optimist/kl"]))
        if step >= 1_500:
            tail.append(found["optimist/kl"])
    assert torch.stack(tail).mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", ["independent", "delta"])
def test_the_optimist_goes_where_the_critics_disagree(kind: str) -> None:
    """They disagree on the right half: the optimist's mean ends up to the right of the policy's."""
    delta = DeltaConfig(net=replace(TINY, hidden=(16,)))
    cfg = replace(SMALL, renew="initial", optimism=ExpConfig(start=2.0))
    cfg = replace(cfg, optimist=delta) if kind == "delta" else cfg
    fast = AdamConfig(lr=3e-3)
    cfg = replace(cfg, policy_optim=fast, optimist_optim=fast)
    agent = make_agent(cfg, action=Continuous(1))
    agent.critic = MadeUpCritic("right", 1.0)  # type: ignore[assignment]
    quiet(agent, math.log(0.7))
    obs = make_batch(make_spec(action=Continuous(1)), rows=32).obs
    for _ in range(200):
        agent.update_actors(obs)
    with torch.no_grad():
        mean, log_std = agent.gaussian(obs)
        moved, _ = agent.optimist(obs, mean, log_std)
    assert moved.mean() > mean.mean() + 0.1
    assert mean.mean() < 0.05  # the cautious one avoids what nobody agrees about
    acted = agent.behaviour(obs, torch.zeros(32, 1))
    assert acted.mean() > agent.policy(obs).mean() + 0.05


def test_the_optimists_loss_trains_nobody_else() -> None:
    agent, obs = make_agent(), make_batch(make_spec()).obs
    loss, *_ = agent.optimist_loss(obs, torch.zeros(6, 2))
    others = [*agent.gaussian.parameters(), *agent.optimism.parameters()]
    others += [*agent.kl_weight.parameters(), *agent.alpha.parameters()]
    gradients = torch.autograd.grad(loss, others, allow_unused=True)
    assert all(gradient is None for gradient in gradients)
    critic = {k: v.clone() for k, v in agent.critic.state_dict().items()}
    agent.update_actors(obs)
    assert all(torch.equal(v, critic[k]) for k, v in agent.critic.state_dict().items())


@pytest.mark.parametrize("renew", ["copy", "initial"])
def test_the_optimist_is_renewed(renew: Any) -> None:
    agent = make_agent(replace(SMALL, renew=renew, renew_every=8))
    fresh = weights(agent)
    for seed in range(2):  # 8 env steps
        agent.observe(make_transition(make_spec(), seed))
        agent.update(make_batch(make_spec(), seed=seed))
    before = weights(agent)
    agent.observe(make_transition(make_spec(), 2))  # the 9th is one of these
    after = weights(agent)
    for name, value in after.items():
        part = name.split(".")[0]
        if part in ("optimism", "kl_weight"):
            assert torch.equal(value, fresh[name])
            assert not torch.equal(value, before[name])
        elif part == "optimist":
            own = name.replace("optimist.gaussian", "gaussian")
            assert torch.equal(value, after[own] if renew == "copy" else fresh[name])
            assert not torch.equal(value, before[name])
        else:
            assert torch.equal(value, before[name])
    for stepper in (agent.step_optimist, agent.step_adjusters):
        assert stepper.steps == 0
    assert agent.step_critic.steps == 2
    agent.update(make_batch(make_spec()))
    agent.observe(make_transition(make_spec(), 3))
    assert agent.step_optimist.steps == 1


def actors(agent: DAC) -> tuple[list[Tensor], list[Tensor]]:
    assert isinstance(agent.optimist, Independent)
    optimist = agent.optimist.gaussian
    return list(agent.gaussian.parameters()), list(optimist.parameters())


@pytest.mark.parametrize("renew", ["copy", "initial"])
def test_the_optimist_begins_as_it_is_renewed_also_after_a_full_reset(renew: Any) -> None:
    agent = make_agent(replace(SMALL, renew=renew, renew_every=0, resets=(9,)))

    def same() -> bool:
        return all(torch.equal(a, b) for a, b in zip(*actors(agent), strict=True))

    assert same() == (renew == "copy")
    for seed in range(2):  # 8 env steps
        agent.observe(make_transition(make_spec(), seed))
        agent.update(make_batch(make_spec(), seed=seed))
    assert not same()
    agent.observe(make_transition(make_spec(), 2))
    assert same() == (renew == "copy")


@pytest.mark.parametrize("cfg", [SMALL, BROConfig(optimist=None, policy_net=TINY)])
def test_spectral_norms_of_the_target_are_one_while_learning(cfg: Any) -> None:
    net, optim = replace(TINY, spectral_norm=True), replace(cfg.critic_optim, lr=0.1)
    cfg = replace(cfg, critic_net=net, critic_optim=optim, tau=0.5)
    agent = cfg.build(make_spec(), gamma=0.9, total_updates=100, seed=0, device=CPU)
    for _ in range(5):
        agent.update(make_batch(make_spec(), rows=5))
    layer = next(m for m in agent.critic_target.modules() if isinstance(m, SpectralLinear))
    norm = torch.linalg.matrix_norm(layer.normalized(), 2)
    torch.testing.assert_close(norm, torch.ones(2), atol=1e-3, rtol=0)


def test_a_full_reset() -> None:
    agent = make_agent(replace(SMALL, resets=(12,)))  # the third vec step of four environments
    fresh = weights(agent)
    for seed in range(2):
        agent.observe(make_transition(make_spec(), seed))
        agent.update(make_batch(make_spec(), seed=seed))
    assert not all(torch.equal(v, fresh[k]) for k, v in weights(agent).items())
    agent.observe(make_transition(make_spec(), 2))
    assert all(torch.equal(v, fresh[k]) for k, v in weights(agent).items())
    assert all(getattr(agent, name).steps == 0 for name in agent.state_attrs if "step_" in name)


def test_the_published_settings() -> None:
    recipe = recipes.get("dac/hopper-hop")
    cfg = recipe.agent
    assert isinstance(cfg, DACConfig)
    assert cfg.resets[:3] == (50_001, 250_001, 500_001)
    assert cfg.resets[-3:] == (1_500_001, 2_000_001, 2_500_001)
    agent = cfg.build(make_spec(), gamma=0.99, total_updates=1, seed=0, device=CPU)
    layers = [m for m in agent.critic.net.modules() if type(m).__name__ == "LayerNorm"]
    assert len(layers) == 3
    assert not [m for m in agent.gaussian.net.modules() if type(m).__name__ == "LayerNorm"]
    head = agent.gaussian.net.get_submodule("head").get_parameter("weight")
    gains = [torch.linalg.matrix_norm(half, 2).item() for half in head.chunk(2, -1)]
    assert gains == pytest.approx([math.sqrt(2.0), 1.0], rel=1e-4)


def test_saved_and_restored_agents_go_on_exactly() -> None:
    cfg = replace(SMALL, renew_every=16, resets=(25,))
    one, two = make_agent(cfg), make_agent(cfg)
    for seed in range(3):
        one.observe(make_transition(make_spec(), seed))
        one.update(make_batch(make_spec(), seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 8):
        for agent in (one, two):
            agent.observe(make_transition(make_spec(), seed))
            agent.update(make_batch(make_spec(), seed=seed))
    second = weights(two)
    assert all(torch.equal(value, second[name]) for name, value in weights(one).items())


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="renew initial otherwise"):
        make_agent(replace(SMALL, optimist=DeltaConfig()))
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(action=Discrete(3))
    with pytest.raises(UserError, match="kl_target"):
        make_agent(replace(SMALL, kl_target=0.0))
    assert BROConfig().std_factor == 0.75  # the other user of the same parts


@torch.no_grad()
def visited(behaviour: nn.Module) -> Tensor:
    """The standard deviation of each observed number over an episode of 64 pendulums."""
    env = TensorConfig(task="pendulum").build(64, 123, CPU)
    obs, random, seen = env.reset(), torch.Generator().manual_seed(0), []
    for _ in range(200):
        seen.append(obs.actor)
        obs = env.step(behaviour(obs, torch.randn(64, 1, generator=random))).obs
    return torch.cat(seen).std(0)


@pytest.mark.learning
@pytest.mark.slow
def test_learns_the_pendulum_and_explores_more_widely_than_its_policy_would(tmp_path: Path) -> None:
    recipe = replace(recipes.get("dac/pendulum"), threads=1)
    with open_run(recipe, tmp_path, None) as (journal, parts):
        agent = parts.agent
        assert isinstance(agent, DAC)
        steps = in_turns(journal, parts, parts.learner(journal))
        wider = []
        for step in range(1, recipe.total_vec_steps + 1):
            next(steps)
            if step >= 400 and step % 100 == 0:
                # From the same weights, so that how well either has learned plays no part.
                optimist, policy = visited(agent.behaviour), visited(Sampled(agent.gaussian))
                wider.append(float(optimist.sum() / policy.sum()))
        steps.close()
    assert sum(wider) / len(wider) > 1.05, "at one moment either may be the wider"
    assert journal.best_return >= -200


def six_thousand_steps(folder: Path, seed: int, *, policy_acts: bool) -> tuple[float, float]:
    """Two updates per env step; the standard deviation of the actions in the replay, and the mean of the last two
    returns. With `policy_acts` nothing differs but who explores: soft actor-critic."""
    base = recipes.get("dac/pendulum")
    agent: Any = base.agent
    # From one renewal to the next the adjusters go as far as 3e-5 takes them in the published 3 * 25,000 updates.
    adjuster = replace(agent.adjuster_optim, lr=3e-5 * 3 * 25_000 / (2 * agent.renew_every))
    recipe = replace(
        base,
        agent=replace(agent, adjuster_optim=adjuster),
        pace=replace(base.pace, updates_per_vec_step=2.0 * base.num_envs),
        evaluation=replace(base.evaluation, every_vec_steps=500, episodes=32),
        log=replace(base.log, console=False),
        total_vec_steps=6_000 // base.num_envs,
        threads=1,
        seed=seed,
    )
    with open_run(recipe, folder, None) as (journal, parts):
        assert isinstance(parts.agent, DAC)
        if policy_acts:
            parts.agent.behaviour = Sampled(parts.agent.gaussian)  # type: ignore[assignment]
        steps = in_turns(journal, parts, parts.learner(journal))
        for _ in range(recipe.total_vec_steps):
            next(steps)
        steps.close()
    assert isinstance(parts.replay, Replay)
    rows = parts.replay.sample(120_000)  # of 6,000: each some 20 times
    seen = [
        line["eval/return"]
        for line in read_lines(folder / "metrics.jsonl")
        if "eval/return" in line
    ]
    return float(rows.action.std()), sum(seen[-2:]) / 2


@pytest.mark.slow
@pytest.mark.learning
def test_whole_runs_try_more_actions_than_those_in_which_the_policy_explores(
    tmp_path: Path,
) -> None:
    """The states of whole runs say nothing: their spread is that of the other run to 2 %, whoever explores."""
    wider = []
    for seed in (0, 1):
        wide, earned = six_thousand_steps(tmp_path / f"dac-{seed}", seed, policy_acts=False)
        narrow, other = six_thousand_steps(tmp_path / f"sac-{seed}", seed, policy_acts=True)
        wider.append(wide / narrow)
        assert earned >= other - 0.05 * abs(other)
    assert min(wider) > 1.03
    assert sum(wider) / 2 > 1.06
