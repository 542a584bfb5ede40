from __future__ import annotations

import copy
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies.reward_units import OtherUnitsConfig
from fleetfoot import checkpoint, recipes
from fleetfoot.agents.contract import every, periods
from fleetfoot.agents.flash_sac import FlashSAC, FlashSACConfig, joint
from fleetfoot.api import load_policy, resume, train, train_seeds
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.data import Batch, Discrete, EnvSpec, Obs
from fleetfoot.diagnose.units import capture_outputs
from fleetfoot.errors import UserError
from fleetfoot.execution import updater
from fleetfoot.explore import AsSampledConfig, HeldNoiseConfig
from fleetfoot.nn import flash
from fleetfoot.nn.batch_norm import BatchNorm, running, statistics
from fleetfoot.nn.flash import FlashNet, FlashNetConfig, RMSNorm, UnitLinear
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import Network
from fleetfoot.nn.xqc import XQCNetConfig
from fleetfoot.ops import categorical, flash_net
from fleetfoot.ops.schedules import cosine
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.rng import RandomStream
from fleetfoot.topologies import synchronous as synchronous_module
from oracles import flash_sac as plain_flash
from oracles import xqc as plain_xqc
from support.made_up import CPU, make_batch, make_spec, make_transition, parameters, small_run
from support.runs import agent_state, assert_same, interrupted_at, tensors
from support.train_until import train_until

MOVING = AdamConfig(lr=3e-3, lr_end=1e-3)
SMALL = FlashSACConfig(
    num_atoms=11,
    alpha=0.2,
    tau=0.1,
    policy_net=FlashNetConfig(width=8, blocks=1),
    critic_net=FlashNetConfig(width=16, blocks=2),
    policy_optim=MOVING,
    critic_optim=MOVING,
    alpha_optim=MOVING,
)
# The shift of XQC's first BatchNorm has no gradient but rounding errors, which Adam would take for one.
STEADY = replace(MOVING, eps=1e-4)
XQC = replace(
    SMALL,
    policy_every=3,
    policy_net=XQCNetConfig(width=8, layers=2),
    critic_net=XQCNetConfig(width=16, layers=2),
    policy_optim=STEADY,
    critic_optim=STEADY,
    alpha_optim=STEADY,
)
SEES_MORE: dict[str, Any] = {"critic_shape": (5,)}
ROWS = 12


def pattern(agent: FlashSAC, count: int) -> tuple[bool, ...]:
    """Which of the coming updates change the policy, as the learner sees it."""
    ((period, phase),) = periods(agent) or ()
    return every(period, agent.updates, count, phase)


def make_agent(cfg: FlashSACConfig = SMALL, seed: int = 0, **spec: Any) -> FlashSAC:
    return cfg.build(make_spec(**spec), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def rows_of(agent: FlashSAC, batch: Batch, noise: Tensor) -> Tensor:
    """The target distributions of a batch."""
    with torch.no_grad():
        action, log_prob = agent.gaussian.sample(batch.next_obs, noise)
        obs, both = joint(batch.obs, batch.next_obs), torch.cat([batch.action, action])
        logits = agent.critic_target(obs, both, [])[:, len(action) :]
        return agent.target_distribution(batch, logits, log_prob)[0]


@pytest.mark.parametrize(
    ("cfg", "spec", "trunk", "tensors_of"),
    [
        (SMALL, {}, plain_flash.Trunk, plain_flash.tensors_of),
        (SMALL, SEES_MORE, plain_flash.Trunk, plain_flash.tensors_of),
        (XQC, SEES_MORE, plain_xqc.PlainXQC, plain_xqc.tensors_of),
    ],
    ids=["flash", "sees more", "xqc"],
)
def test_four_updates_equal_those_of_plain_layers(
    cfg: FlashSACConfig, spec: dict[str, Any], trunk: Any, tensors_of: Any
) -> None:
    """The order of the steps, the mode of every forward, joint statistics, schedules: all as the oracle has them."""
    agent = make_agent(cfg, **spec)
    for seed in range(5):
        agent.observe(make_transition(make_spec(**spec), seed))
    divisor = float(agent.reward_scale.divisor)
    assert divisor != 1.0
    oracle = plain_flash.Oracle(agent, divisor, total_updates=100, trunk=trunk)
    policy_noise, critic_noise = RandomStream(0, CPU), RandomStream(1, CPU)
    for update in range(4):
        batch = make_batch(make_spec(**spec), ROWS, seed=update)
        drawn = policy_noise.normal(ROWS, 2) if update % cfg.policy_every == 0 else None
        oracle.update(batch, drawn, critic_noise.normal(ROWS, 2))
        agent.update(batch)
    near: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-4}
    pairs = [(tensors_of(agent.gaussian.net, None), oracle.actor.tensors())]
    for member, critic in enumerate(oracle.critics):
        pairs.append((tensors_of(agent.critic.net, member), critic.tensors()))
    for found, wanted in pairs:
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two, **near)
    for member, slow in enumerate(oracle.targets):
        own = [p[member] for p in agent.critic_target.net.parameters()]
        theirs = [p.T if p.dim() == 2 else p for p in slow.parameters()]
        assert {tuple(p.shape) for p in own} == {tuple(p.shape) for p in theirs}
        sums = [sorted(float(p.detach().double().sum()) for p in each) for each in (own, theirs)]
        assert sums[0] == pytest.approx(sums[1], abs=1e-3)
    torch.testing.assert_close(agent.alpha.log_alpha, oracle.log_alpha, **near)


def assert_on_spheres(network: FlashNet) -> None:
    for module in network.modules():
        if isinstance(module, UnitLinear):
            length = module.weight.norm(dim=-2)
            torch.testing.assert_close(length, torch.ones_like(length), atol=1e-6, rtol=0)
        if isinstance(module, BatchNorm | RMSNorm):
            squares = module.weight.square().sum(-1)
            if isinstance(module, BatchNorm):
                squares = squares + module.bias.square().sum(-1)
            width = torch.full_like(squares, module.weight.shape[-1])
            torch.testing.assert_close(squares, width, atol=0, rtol=1e-5)


def test_after_every_update_all_weights_are_where_they_belong() -> None:
    agent = make_agent()
    for seed in range(3):
        agent.update(make_batch(rows=ROWS, seed=seed))
        for network in (agent.gaussian.net, agent.critic.net):
            assert isinstance(network, FlashNet)
            assert_on_spheres(network)
    lengths = [
        m.weight.norm(dim=-2) for m in agent.critic_target.modules() if isinstance(m, UnitLinear)
    ]
    assert all(float(each.max()) < 1 + 1e-6 for each in lengths)  # inside the sphere, as published
    assert any(float(each.min()) < 1 - 1e-6 for each in lengths)
    projected = make_agent(replace(SMALL, project_target=True))
    projected.update(make_batch(rows=ROWS))
    assert isinstance(projected.critic_target.net, FlashNet)
    assert_on_spheres(projected.critic_target.net)


@contextmanager
def watched(agent: FlashSAC) -> Iterator[list[tuple[str, bool, int]]]:
    """Which network was called, in training mode or not, with how many rows."""
    calls: list[tuple[str, bool, int]] = []
    nets = {
        "policy": agent.gaussian.net,
        "critic": agent.critic.net,
        "target": agent.critic_target.net,
    }
    hooks = [
        net.register_forward_pre_hook(
            lambda _, args, name=name: calls.append((name, args[1] is not None, len(args[0])))
        )
        for name, net in nets.items()
    ]
    yield calls
    for hook in hooks:
        hook.remove()


def test_the_mode_and_the_rows_of_each_forward() -> None:
    agent = make_agent()
    with watched(agent) as calls:
        agent.update(make_batch(rows=6))
        first = list(calls)
        calls.clear()
        agent.update(make_batch(rows=6))
    policy_step = [("policy", True, 12), ("critic", False, 6)]
    critic_step = [("policy", False, 6), ("target", True, 12), ("critic", True, 12)]
    assert first == policy_step + critic_step
    assert calls == critic_step
    with watched(agent) as calls:
        obs = make_batch(rows=6).obs
        agent.policy(obs)
        agent.behaviour(obs, torch.zeros(6, 2))
        agent.q(obs, torch.zeros(6, 2))
    assert calls == [("policy", False, 6), ("policy", False, 6), ("critic", False, 6)]


def test_the_first_update_changes_the_policy_and_the_second_does_not() -> None:
    agent = make_agent()
    assert pattern(agent, 4) == (True, False, True, False)
    before = parameters(agent.gaussian, agent.alpha)
    found = agent.update(make_batch(rows=ROWS))
    assert "policy/loss" in found.metrics
    after = parameters(agent.gaussian, agent.alpha)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert pattern(agent, 3) == (False, True, False)
    running = [s.clone() for s in statistics(agent.gaussian)]
    found = agent.update(make_batch(rows=ROWS, seed=1))
    assert "policy/loss" not in found.metrics
    again = parameters(agent.gaussian, agent.alpha)
    assert all(torch.equal(a, b) for a, b in zip(after, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(running, statistics(agent.gaussian), strict=True))


def test_losses_change_nothing() -> None:
    agent, batch = make_agent(), make_batch(rows=ROWS)
    before = copy.deepcopy(agent.state_dict())
    noise = torch.randn(ROWS, 2)
    fresh = running(agent.critic_loss(batch, noise).aux)
    assert [tuple(f.shape[1:]) for f in fresh] == [tuple(s.shape) for s in statistics(agent.critic)]
    fresh = running(agent.policy_loss(batch.obs, batch.next_obs, noise).aux)
    assert len(fresh) == len(statistics(agent.gaussian))
    assert_same(tensors(before), tensors(agent.state_dict()))


def test_only_running_statistics_of_the_online_networks_move() -> None:
    agent = make_agent()
    agent.update(make_batch(rows=ROWS))
    for network, moved in (
        (agent.gaussian, True),
        (agent.critic, True),
        (agent.critic_target, False),
    ):
        for norm in (m for m in network.modules() if isinstance(m, BatchNorm)):
            assert bool((norm.mean != 0).any()) == moved
            assert bool((norm.variance != 1).any()) == moved


def test_gradients_reach_the_next_observations_through_joint_statistics_alone() -> None:
    agent, batch = make_agent(), make_batch(rows=ROWS)
    later = batch.next_obs.actor.clone().requires_grad_()
    moved = batch._replace(next_obs=Obs(later, later))
    loss = agent.critic_loss(moved, torch.zeros(ROWS, 2)).loss
    (through,) = torch.autograd.grad(loss, later)
    assert float(through.abs().min()) > 0
    actor, both = agent.gaussian, Obs(*[torch.cat([batch.obs.actor, later])] * 2)
    modes: tuple[Any, ...] = ([], None)
    for fresh in modes:
        mean, _ = actor(both, fresh)
        (through,) = torch.autograd.grad(mean[:ROWS].square().sum(), later, allow_unused=True)
        assert (float(through.abs().sum()) > 0) == (fresh is not None)


def test_with_neither_future_nor_entropy_the_target_is_the_scaled_reward() -> None:
    agent = make_agent()
    for seed in range(3):
        agent.observe(make_transition(make_spec(), seed))
    batch = make_batch(rows=ROWS)
    batch = batch._replace(discount=torch.zeros(ROWS))
    target = rows_of(agent, batch, torch.zeros(ROWS, 2))
    scaled = (batch.reward / float(agent.reward_scale.divisor)).clamp(-5, 5)
    torch.testing.assert_close(categorical.mean(target, agent.z), scaled, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(target.sum(-1), torch.ones(ROWS))
    assert int((target > 1e-6).sum(-1).max()) <= 2  # a point, between two atoms


def test_terminated_rows_ignore_what_follows_and_the_rest_do_not() -> None:
    agent, batch = make_agent(), make_batch(rows=ROWS)
    noise = torch.randn(ROWS, 2)
    target = rows_of(agent, batch, noise)
    changed = batch.next_obs.actor.clone()
    changed[3] += 5.0
    discount = batch.discount.clone()
    discount[3] = 0.0
    one = batch._replace(discount=discount)
    two = one._replace(next_obs=Obs(changed, changed))
    torch.testing.assert_close(rows_of(agent, one, noise)[3], rows_of(agent, two, noise)[3])
    alive = batch._replace(next_obs=Obs(changed, changed), discount=torch.full((ROWS,), 0.9))
    assert not torch.allclose(rows_of(agent, alive, noise)[3], target[3], atol=1e-3)


def test_the_target_is_that_of_the_member_with_the_smaller_value_row_by_row() -> None:
    agent, batch = make_agent(), make_batch(rows=ROWS)
    batch = batch._replace(discount=torch.full((ROWS,), 0.9))
    noise = torch.randn(ROWS, 2)
    with torch.no_grad():
        action, log_prob = agent.gaussian.sample(batch.next_obs, noise)
        rows = torch.cat([batch.obs.actor, batch.next_obs.actor])
        inputs = torch.cat([rows, torch.cat([batch.action, action])], 1)
        heads = agent.critic_target.net(inputs, [])[:, ROWS:].softmax(-1)
    target = rows_of(agent, batch, noise)
    y = batch.reward.unsqueeze(1) + 0.9 * (agent.z - 0.2 * log_prob.unsqueeze(1))
    means = (heads * y.clamp(-5, 5)).sum(-1)
    assert 0 < int((means[0] < means[1]).sum()) < ROWS  # both are the smaller one somewhere
    torch.testing.assert_close(
        categorical.mean(target, agent.z), means.amin(0), atol=1e-4, rtol=1e-4
    )


def test_the_target_entropy_is_that_of_a_gaussian() -> None:
    agent = make_agent()
    normal: Any = torch.distributions.Normal(0.0, torch.tensor(0.15, dtype=torch.float64))
    assert agent.target_entropy / 2 == pytest.approx(float(normal.entropy()), abs=1e-6)
    assert agent.target_entropy / 2 == pytest.approx(-0.47818, abs=1e-5)


def test_the_temperature_falls_above_the_target_entropy_and_rises_below_it() -> None:
    for std, sign in ((1e-9, -1), (1e9, 1)):
        agent = make_agent(replace(SMALL, target_std=std))
        before = agent.alpha().item()
        agent.update(make_batch(rows=ROWS))
        assert math.copysign(1, agent.alpha().item() - before) == sign


def test_the_slope_of_the_temperature_s_loss_is_proportional_to_it() -> None:
    agent, entropy = make_agent(), torch.tensor(1.0)
    (slope,) = torch.autograd.grad(agent.alpha_loss(entropy).loss, agent.alpha.log_alpha)
    wanted = float(agent.alpha().detach()) * (1.0 - agent.target_entropy)
    assert float(slope) == pytest.approx(wanted, rel=1e-5)


def test_all_schedules_count_all_updates() -> None:
    agent = make_agent()
    for seed in range(10):
        agent.update(make_batch(rows=ROWS, seed=seed))
    for step, made in ((agent.step_policy, 5), (agent.step_alpha, 5), (agent.step_critic, 10)):
        wanted = cosine(3e-3, 1e-3, torch.tensor(made / 100, dtype=torch.float64))
        assert float(step.lr) == pytest.approx(float(wanted), rel=1e-6)


def test_what_smoothness_adds_to_the_loss() -> None:
    agent, batch = make_agent(replace(SMALL, smoothness=3.0)), make_batch(rows=ROWS)
    noise = torch.zeros(ROWS, agent.action_size)
    smooth = agent.policy_loss(batch.obs, batch.next_obs, noise).loss
    agent.cfg = SMALL
    plain = agent.policy_loss(batch.obs, batch.next_obs, noise).loss
    here, after = agent.gaussian(joint(batch.obs, batch.next_obs), [])[0].tanh().chunk(2)
    wanted = 3.0 * float((here - after).detach().square().mean())
    assert float((smooth - plain).detach()) == pytest.approx(wanted, rel=1e-3)


def test_time_limits_do_not_close_returns_and_tasks_are_scaled_apart() -> None:
    spec = make_spec(tasks=("one", "two"))
    agent = make_agent(tasks=spec.tasks)
    for step in range(100):
        fresh = make_transition(spec, seed=step)
        assert fresh.obs.task is not None
        reward = torch.where(fresh.obs.task == 0, 1.0, 100.0)
        truncated = torch.full((spec.num_envs,), step % 3 == 2)
        never = torch.zeros_like(truncated)
        agent.observe(fresh._replace(reward=reward, terminated=never, truncated=truncated))
    # 1 / (1 - gamma) rewards of 1 and of 100 fill the support of 5
    torch.testing.assert_close(
        agent.reward_scale.divisor, torch.tensor([2.0, 200.0]), rtol=1e-2, atol=0
    )
    batch = make_batch(spec, ROWS)._replace(discount=torch.zeros(ROWS))
    assert batch.obs.task is not None
    wanted = (batch.reward / agent.reward_scale.divisor[batch.obs.task]).clamp(-5, 5)
    found = categorical.mean(rows_of(agent, batch, torch.zeros(ROWS, 2)), agent.z)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_units_of_reward_do_not_matter() -> None:
    """A thousand times the reward: the same actions, once there are returns to divide by."""
    agents = [make_agent(), make_agent()]
    for agent, unit in zip(agents, (1.0, 1000.0), strict=True):
        for seed in range(12):
            fresh = make_transition(make_spec(), seed)
            agent.observe(fresh._replace(reward=unit * fresh.reward))
            batch = make_batch(rows=ROWS, seed=seed)
            if seed >= 2:
                agent.update(batch._replace(reward=unit * batch.reward))
    obs = make_batch(rows=50).obs
    one, two = (agent.policy(obs) for agent in agents)
    torch.testing.assert_close(one, two, atol=2e-3, rtol=0)
    assert not torch.allclose(one, make_agent().policy(obs), atol=2e-3)
    action = torch.zeros(50, 2)
    small, large = (agent.q(obs, action) for agent in agents)
    torch.testing.assert_close(1000 * small, large, atol=20.0, rtol=1e-2)


def test_a_constant_reward_fills_the_support_and_no_return_leaves_it() -> None:
    """gamma 0.97: the return tends to r / 0.03, and the divisor to a fifth of it."""
    agent = SMALL.build(make_spec(), gamma=0.97, total_updates=1, seed=0, device=CPU)
    fresh = make_transition(make_spec())._replace(reward=torch.full((4,), 2.0))
    returns, total = [], 0.0
    for _ in range(600):
        agent.observe(fresh)
        total = 0.97 * total + 2.0
        returns.append(total)
        assert total / float(agent.reward_scale.divisor) <= 5.0 + 1e-5
    spread = float(torch.tensor(returns, dtype=torch.float64).std(correction=0))
    wanted = max(spread, 2.0 / 0.03 / 5)
    assert float(agent.reward_scale.divisor) == pytest.approx(wanted, rel=1e-5)


def test_scaling_a_window_of_rewards_is_scaling_each() -> None:
    """Raw rewards are stored and folded; what a batch is divided by is the divisor of now."""
    spec, agent, cfg = make_spec(), make_agent(), ReplayConfig(capacity=400, n_step=3)
    replays = [cfg.build(spec, gamma=0.9, seed=0, device=CPU) for _ in range(2)]
    steps = [make_transition(spec, seed) for seed in range(20)]
    for fresh in steps:
        agent.observe(fresh)
    divisor = agent.reward_scale.divisor
    for fresh in steps:
        replays[0].append(fresh)
        replays[1].append(fresh._replace(reward=fresh.reward / divisor))
    raw, scaled = (replay.sample(64) for replay in replays)
    torch.testing.assert_close(agent.reward_scale(raw.reward, None), scaled.reward)


@pytest.mark.parametrize("cfg", [SMALL, replace(XQC, policy_every=2)], ids=["flash", "xqc"])
def test_saved_and_restored_agents_go_on_exactly(cfg: FlashSACConfig) -> None:
    one, two = make_agent(cfg, seed=0), make_agent(cfg, seed=1)
    for seed in range(3):
        one.observe(make_transition(make_spec(), seed))
        one.update(make_batch(seed=seed, rows=ROWS))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert pattern(two, 2) == pattern(one, 2) == (False, True)
    for seed in range(3, 7):
        for agent in (one, two):
            agent.observe(make_transition(make_spec(), seed))
            agent.update(make_batch(rows=ROWS, seed=seed))
    assert_same(tensors(one.state_dict()), tensors(two.state_dict()))


def test_running_statistics_travel_with_the_policy() -> None:
    one, two = make_agent(seed=0), make_agent(seed=1)
    for seed in range(3):
        one.update(make_batch(rows=ROWS, seed=seed))
    two.policy.load_state_dict(one.state_dict()["policy"])
    obs = make_batch(rows=9).obs
    assert torch.equal(one.policy(obs), two.policy(obs))
    assert all(bool((s != 0).any()) for s in statistics(two.policy))


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on CPU")
@pytest.mark.slow
@pytest.mark.parametrize("cfg", [SMALL, XQC], ids=["flash", "xqc"])
def test_compiled_equals_eager(cfg: FlashSACConfig) -> None:
    compiled, eager = make_agent(cfg), make_agent(cfg)
    update = updater(compiled, precision="float32", mode="compiled", device=CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing may fall back
        for seed in range(4):
            batch = make_batch(rows=ROWS, seed=seed)
            found, wanted = update(batch), eager.update(batch)
            for name, value in wanted.metrics.items():
                torch.testing.assert_close(found.metrics[name], value, atol=1e-4, rtol=1e-3)
    one, two = tensors(compiled.state_dict()), tensors(eager.state_dict())
    for name, value in two.items():
        if value.is_floating_point():
            torch.testing.assert_close(one[name], value, atol=1e-4, rtol=1e-3)


def test_diagnoses_see_every_relu_and_change_nothing() -> None:
    agent, batch = make_agent(), make_batch(rows=ROWS)
    agent.update(batch)
    before = copy.deepcopy(agent.state_dict())
    with capture_outputs(agent.critic) as seen:
        agent.critic(batch.obs, batch.action)
    assert [tuple(each.shape) for each in seen] == [(2, ROWS, 64), (2, ROWS, 16)] * 2
    assert all(float(each.min()) == 0.0 for each in seen)
    found = agent.diagnose(batch, make_batch(rows=ROWS, seed=1))
    assert 0.0 <= float(found["critic/dormant"]) <= 1.0
    assert float(found["overfitting"]) > 0.0
    assert_same(tensors(before), tensors(agent.state_dict()))


def small_recipe(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "agent": replace(SMALL, critic_net=FlashNetConfig(width=8, blocks=1)),
        "explorer": HeldNoiseConfig(exponent=0.0, random_vec_steps=3),
        "replay": ReplayConfig(capacity=400, n_step=3),
        "pace": PaceConfig(updates_per_vec_step=3, warmup_vec_steps=5),
        "checkpoint": CheckpointConfig(every_vec_steps=10),
        "total_vec_steps": 20,
    }
    return small_run("flash_sac/pendulum", **(fields | changes))


@pytest.mark.parametrize("agent", [{}, {"agent": XQC}], ids=["flash", "xqc"])
def test_a_run_that_goes_on_equals_one_without_a_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any]
) -> None:
    """Weights, running statistics, held noise: after an odd number of updates, and in the middle of a held noise."""
    whole = train(small_recipe(**agent), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(synchronous_module, "rollout", interrupted_at(12))
        assert not train(small_recipe(**agent), tmp_path / "broken").finished
    state = checkpoint.load(tmp_path / "broken").state
    assert state["agent"]["updates"] == 21
    assert int(state["explorer"]["left"]) > 0
    broken = resume(tmp_path / "broken")
    assert broken.counters.updates == whole.counters.updates == 45
    assert_same(agent_state(tmp_path / "broken"), agent_state(tmp_path / "whole"))
    policy, _ = load_policy(tmp_path / "broken")
    for name, value in policy.network.state_dict().items():
        assert torch.equal(value, whole.policy.state_dict()[name])


@pytest.mark.parametrize("agent", [{}, {"agent": XQC}], ids=["flash", "xqc"])
def test_two_seeds_as_one_equal_each_alone(tmp_path: Path, agent: dict[str, Any]) -> None:
    recipe = replace(small_recipe(**agent), seed=3)
    together = train_seeds(recipe, 2, tmp_path / "both")
    for seed, result in zip((3, 4), together, strict=True):
        own = replace(recipe, seed=seed)
        alone = own.topology.run(own, tmp_path / f"alone-{seed}", None)
        assert result.counters.updates == alone.counters.updates == 45
        theirs = alone.policy.state_dict()
        for name, weight in result.policy.state_dict().items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-4)
    one, two = (result.policy.state_dict() for result in together)
    assert any(not torch.equal(one[name], two[name]) for name in one)


def test_wrong_input() -> None:
    for wrong in ({"v_max": 0.0}, {"tau": 0.0}, {"num_atoms": 1}, {"target_std": -1.0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            make_agent(replace(SMALL, **wrong))
    spec: EnvSpec = make_spec(action=Discrete(3))
    with pytest.raises(UserError, match="continuous actions"):
        SMALL.build(spec, gamma=0.9, total_updates=1, seed=0, device=CPU)


@pytest.mark.parametrize("field", ["policy_net", "critic_net"])
def test_networks_without_batch_norms_are_refused(field: str) -> None:
    nets: dict[str, Any] = {field: MLPConfig(hidden=(8,))}
    with pytest.raises(UserError, match=rf"agent\.{field} cannot be MLPConfig") as caught:
        make_agent(replace(SMALL, **nets))
    assert "\n" not in str(caught.value)


class Disordered(Network):
    """Two BatchNorms, made in the order given and called as first, second."""

    batch_statistics = True

    def __init__(self, inputs: int, outputs: int, order: str, ensemble_size: int | None) -> None:
        super().__init__()
        for name in order.split():
            self.add_module(name, BatchNorm(inputs, ensemble_size))
        self.head = UnitLinear(inputs, outputs, ensemble_size)

    def forward(self, x: Tensor, fresh: list[Tensor] | None = None) -> Tensor:
        called = [getattr(self, name) for name in ("first", "second") if hasattr(self, name)]
        for norm in called:
            x = norm(x, fresh)
        out: Tensor = self.head(x)
        return out


@dataclass(frozen=True)
class DisorderedConfig:
    order: str

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        return Disordered(inputs, outputs, self.order, ensemble_size)


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("first second", None),
        ("second first", r"agent\.critic_net: the network of DisorderedConfig must call each"),
        ("first unused", "must call each"),
        ("", r"agent\.critic_net cannot be DisorderedConfig"),
    ],
)
def test_statistics_of_a_network_of_your_own(order: str, line: str | None) -> None:
    """What a call appends is stored by position, so a network in another order would learn from wrong statistics."""
    cfg = replace(SMALL, critic_net=DisorderedConfig(order))
    if line is None:
        agent = make_agent(cfg)
        agent.update(make_batch(rows=ROWS))
        assert all(float(s.abs().sum()) > 0 for s in statistics(agent.critic))
        return
    with pytest.raises(UserError, match=line):
        make_agent(cfg)


def shaken_agent(**spec: Any) -> FlashSAC:
    """With a target critic far from the critic."""
    agent = make_agent(**spec)
    with torch.no_grad():
        for number, weight in enumerate(agent.critic_target.parameters()):
            generator = torch.Generator().manual_seed(number)
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return agent


@pytest.mark.parametrize("tasks", [(), ("one", "two")])
def test_both_critics_see_all_rows_each_with_its_own_vectors_of_tasks(
    tasks: tuple[str, ...],
) -> None:
    spec = make_spec(tasks=tasks)
    agent, batch = shaken_agent(tasks=tasks), make_batch(spec, ROWS)
    obs, action = joint(batch.obs, batch.next_obs), torch.cat([batch.action, batch.action])
    fresh: list[Tensor] = []
    found = agent.critic.with_frozen(agent.critic_target, obs, action, fresh)
    wanted_fresh: list[Tensor] = []
    of_critic = agent.critic(obs, action, wanted_fresh)[:, :ROWS]
    of_target = agent.critic_target(obs, action, [])[:, ROWS:]
    assert torch.equal(found[0], of_critic)
    assert torch.equal(found[1], of_target)
    assert found[0].requires_grad
    assert not found[1].requires_grad
    assert all(map(torch.equal, fresh, wanted_fresh))
    assert float((of_critic - agent.critic_target(obs, action, [])[:, :ROWS]).abs().max()) > 0.01


def test_with_tasks_gradients_reach_their_vectors() -> None:
    """So such networks are never one operation, which has none for its input."""
    agent = make_agent(tasks=("one", "two"))
    assert agent.gaussian.net.learned_inputs
    assert agent.critic.net.learned_inputs
    embeds: list[Any] = [network.encoder.embed for network in (agent.gaussian, agent.critic)]
    before = [embed.weight.detach().clone() for embed in embeds]
    agent.update(make_batch(make_spec(tasks=("one", "two")), ROWS))
    assert not any(torch.equal(old, new.weight) for old, new in zip(before, embeds, strict=True))


@pytest.mark.parametrize("factor", [2.0**10, 2.0**-10])
def test_in_other_units_of_reward_a_run_is_the_same_to_the_last_bit(
    factor: float, tmp_path: Path
) -> None:
    """A power of two: not even a rounding error differs. So with any factor, only rounding errors do."""
    states = []
    for unit in (1.0, factor):
        recipe = small_run("flash_sac/pendulum", agent=SMALL, total_vec_steps=60)
        env = OtherUnitsConfig(env=recipe.env, factor=unit)
        train(replace(recipe, env=env), tmp_path / str(unit))
        states.append(load_policy(tmp_path / str(unit), "last").policy.network.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_networks_may_be_of_two_kinds() -> None:
    agent = make_agent(replace(SMALL, policy_net=XQC.policy_net))
    before = [s.clone() for s in statistics(agent.gaussian)]
    found = agent.update(make_batch(rows=ROWS))
    assert bool(found.metrics["critic/loss"].isfinite())
    assert not any(map(torch.equal, before, statistics(agent.gaussian)))


def test_recipes_of_xqc_have_its_settings() -> None:
    """As in its authors' code, where a setting of FlashSAC can say it."""
    recipe = recipes.get("flash_sac/humanoid-run-xqc")
    agent: Any = recipe.agent
    assert (agent.policy_net, agent.critic_net) == (XQCNetConfig(width=256), XQCNetConfig())
    assert XQCNetConfig() == XQCNetConfig(width=512, layers=4)
    assert (agent.v_max, agent.num_atoms, agent.num_critics) == (5.0, 101, 2)
    assert (agent.tau, agent.policy_every, agent.alpha) == (0.005, 3, 0.01)
    rates = AdamConfig(lr=3e-4, lr_end=3e-5, schedule="linear")
    assert agent.policy_optim == agent.critic_optim == agent.alpha_optim == rates
    assert (recipe.num_envs, recipe.batch_size, recipe.gamma) == (1, 256, 0.99)
    assert recipe.pace == PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=5_000)
    assert recipe.explorer == AsSampledConfig(random_vec_steps=5_000)
    env: Any = recipe.env
    assert recipe.total_vec_steps * env.action_repeat == 1_000_000
    small: Any = recipes.get("flash_sac/pendulum-xqc").agent
    for cfg in (agent, small):
        built = make_agent(replace(SMALL, target_std=cfg.target_std))
        assert built.target_entropy / 2 == pytest.approx(-0.5, abs=1e-4)
    assert (small.policy_every, small.policy_net.layers) == (3, 4)


def test_networks_of_the_pendulums_are_about_as_large() -> None:
    flash, xqc = (recipes.get(f"flash_sac/pendulum{end}").agent for end in ("", "-xqc"))
    for field, inputs, outputs in (("policy_net", 3, 2), ("critic_net", 4, 101)):
        one, two = (
            sum(p.numel() for p in getattr(agent, field).build(inputs, outputs).parameters())
            for agent in (flash, xqc)
        )
        assert 0.8 < two / one < 1.0


def test_recipes_of_robots_learn_as_much_as_published() -> None:
    """At 50 million env steps: 97,600 updates of at least 2,048 rows, however many robots there are."""
    names = [name for name in recipes.names() if name.startswith("flash_sac/")]
    robots = [recipes.get(name) for name in names if "joystick" in name or "mjlab" in name]
    assert len(robots) == 16
    for recipe in robots:
        updates = recipe.pace.updates_after(recipe.total_vec_steps)
        assert recipe.total_vec_steps * recipe.num_envs == pytest.approx(50e6, rel=1e-3)
        assert updates == pytest.approx(97_656 - 196, rel=2e-3)
        assert recipe.batch_size >= 2_048
        random: Any = recipe.explorer
        started = random.random_vec_steps * recipe.num_envs
        assert 100_000 <= started < 100_000 + recipe.num_envs
        assert random.random_vec_steps == recipe.pace.warmup_vec_steps


@pytest.mark.learning
@pytest.mark.slow  # twice as long as any other; what an update does is compared with an oracle above
@pytest.mark.parametrize("name", ["flash_sac/pendulum", "flash_sac/pendulum-xqc"])
def test_learns_the_pendulum(tmp_path: Path, name: str) -> None:
    recipe = replace(recipes.get(name), threads=1, device="cpu")
    assert train_until(recipe, tmp_path / "run", -200.0).best_return >= -200.0


@pytest.mark.parametrize("rows", [64, 100])  # of which the second does not fit, and runs as modules
@pytest.mark.parametrize(
    "changes", [{}, {"smoothness": 0.3}, {"num_critics": 1}, {"project_target": True}]
)
def test_updates_with_networks_as_one_operation_are_the_same(
    changes: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compiled code does on a GPU, but eagerly on a CPU, and without rounding to bf16."""
    net = FlashNetConfig(width=64, blocks=2)
    optim = {"policy_optim": STEADY, "critic_optim": STEADY, "alpha_optim": STEADY}
    cfg = replace(SMALL, policy_net=net, critic_net=net, **optim, **changes)  # type: ignore[arg-type]
    calls, one_operation = [], flash_net.flash_net

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return one_operation(*given, **options, dtype=torch.float32)

    monkeypatch.setattr(flash_net, "flash_net", counted)
    agents = []
    for fused in (False, True):
        monkeypatch.setattr(flash, "is_fused", lambda x, fused=fused: fused)
        agents.append(agent := make_agent(cfg))
        for seed in range(2):
            metrics = agent.update(make_batch(seed=seed, rows=rows)).metrics
        assert len(calls) == (3 if fused and rows == 64 else 0)  # two critics' and a policy's
        assert math.isfinite(float(metrics["critic/loss"]))
    for name in ("policy", "critic", "critic_target"):
        one, two = (getattr(agent, name).state_dict() for agent in agents)
        for key, value in one.items():
            # A unit within a rounding error of zero may be on for one and off for the other.
            off = ~torch.isclose(two[key], value, atol=2e-4, rtol=1e-3)
            assert float(off.float().mean()) < 0.02, f"{name}.{key}"
            assert float((two[key] - value).abs().max()) < 0.02, f"{name}.{key}"
