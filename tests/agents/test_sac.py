from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetfoot import recipes, train
from fleetfoot.agents.sac import SAC, ReDoConfig, ResetsConfig, SACConfig
from fleetfoot.data import Batch, Discrete
from fleetfoot.errors import UserError
from fleetfoot.log import LogConfig
from fleetfoot.nn.linear import LayerNorm, Linear
from fleetfoot.nn.mlp import MLP, MLPConfig
from fleetfoot.nn.pessimism import FixedBoundConfig, LearnedBoundConfig
from fleetfoot.nn.spectral import SpectralLinear
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Result
from fleetfoot.recipes.sac import COMBINATIONS, combined
from support.made_up import CPU, make_batch, make_spec, make_transition
from support.train_until import train_until

QUIET = LogConfig(every_vec_steps=100_000, console=False)
NET = MLPConfig(hidden=(16, 16), start="orthogonal")
SMALL = SACConfig(policy_net=NET, critic_net=NET, alpha=0.2, tau=0.1)


def make_agent(cfg: SACConfig = SMALL, seed: int = 0, **spec: Any) -> SAC:
    return cfg.build(make_spec(**spec), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def make_combination(name: str, every: int = 5, lr: float = 3e-4) -> SAC:
    cfg = combined(SMALL, name, every)
    if isinstance(cfg.plasticity, ReDoConfig):
        cfg = replace(cfg, plasticity=ReDoConfig(every_updates=every))
    policy_optim, critic_optim = replace(cfg.policy_optim, lr=lr), replace(cfg.critic_optim, lr=lr)
    return make_agent(replace(cfg, policy_optim=policy_optim, critic_optim=critic_optim))


def run(agent: SAC, updates: int) -> dict[str, Tensor]:
    """Updates on random rows, with an episode of four vec steps in between."""
    found: dict[str, Tensor] = {}
    for seed in range(updates):
        step = make_transition(make_spec(), seed)
        ended = torch.full_like(step.terminated, seed % 4 == 3)
        agent.observe(step._replace(truncated=ended, terminated=~ended & ended))
        found |= agent.update(make_batch(make_spec(), rows=32, seed=seed)).metrics
    return found


def weights(agent: SAC) -> list[Tensor]:
    modules = (agent.gaussian, agent.critic, agent.critic_target, agent.alpha, agent.bound)
    return [t.detach().clone() for m in modules for t in (*m.parameters(), *m.buffers())]


def hidden_layers(agent: SAC) -> list[Linear]:
    assert isinstance(agent.critic.net, MLP)
    return [m for m in agent.critic.net.body if isinstance(m, Linear)]


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_one_update_by_hand(beta: float) -> None:
    cfg = replace(SMALL, bound=FixedBoundConfig(beta=beta))
    agent, batch = make_agent(cfg), make_batch(make_spec(), rows=8)
    noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    loss, _, aux = agent.critic_loss(batch, noise)
    gap = aux["gap"]
    with torch.no_grad():
        mean, log_std = agent.gaussian(batch.next_obs)
        action, log_prob = squashed_sample(mean, log_std, noise)
        next_q = agent.critic_target(batch.next_obs, action)[..., 0]
        q = agent.critic(batch.obs, batch.action)[..., 0]
    total = 0.0
    for row in range(8):
        one, two = next_q[0, row], next_q[1, row]
        value = min(one, two) if beta else (one + two) / 2
        y = batch.reward[row] + batch.discount[row] * (value - 0.2 * log_prob[row])
        total += float(batch.weight[row] * ((q[0, row] - y) ** 2 + (q[1, row] - y) ** 2)) / 8
        assert gap[row].item() == pytest.approx(float(y - q[:, row].mean()), abs=1e-5)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    torch.testing.assert_close(aux["td_error"], gap.abs())

    loss, metrics, _ = agent.policy_loss(batch.obs, noise)
    entropy = metrics["policy/entropy"]
    with torch.no_grad():
        mean, log_std = agent.gaussian(batch.obs)
        action, log_prob = squashed_sample(mean, log_std, noise)
        q = agent.critic(batch.obs, action)[..., 0]
        value = q.amin(0) if beta else q.mean(0)
    assert loss.item() == pytest.approx((0.2 * log_prob - value).mean().item(), rel=1e-4)
    assert entropy.item() == pytest.approx(-log_prob.mean().item(), rel=1e-5)
    assert agent.alpha_loss(entropy).item() == pytest.approx(0.2 * (entropy.item() + 1.0), rel=1e-5)


def test_an_update_changes_everything_once_and_the_target_slowly() -> None:
    agent, batch = make_agent(), make_batch(make_spec())
    old = [p.detach().clone() for p in agent.critic_target.parameters()]
    metrics = agent.update(batch).metrics
    for was, new, now in zip(
        old, agent.critic.parameters(), agent.critic_target.parameters(), strict=True
    ):
        torch.testing.assert_close(now, 0.9 * was + 0.1 * new)
    # Adam's first step has the length of the learning rate; alpha falls where the entropy is above its target, -1.
    step = math.copysign(3e-4, -1.0 - metrics["policy/entropy"].item())
    assert agent.alpha.log_alpha.item() == pytest.approx(math.log(0.2) + step, abs=1e-6)
    assert agent.updates == 1


def paid_by_action(rows: int, seed: int) -> Batch:
    """Single steps whose reward is the sum of the action, between -2 and 2."""
    batch = make_batch(make_spec(), rows=rows, seed=seed)
    return batch._replace(reward=batch.action.sum(-1), discount=torch.zeros(rows))


# Each two techniques are in one of these 16.
EVERY_PAIR = [COMBINATIONS[16 * i + 4 * j + (i + j) % 4] for i, j in product(range(4), repeat=2)]


@pytest.mark.parametrize(
    "names",
    [EVERY_PAIR, pytest.param(COMBINATIONS, marks=pytest.mark.slow)],
    ids=["every pair", "all"],
)
def test_combinations_learn(names: list[str]) -> None:
    """Critics come near the rewards and policies near the best action, in two dozen large steps; with resets, in the
    dozen after the last of them."""
    assert len(set(COMBINATIONS)) == 64
    examined = paid_by_action(256, seed=1_000)
    for name in names:
        agent = make_combination(name, every=12, lr=0.03)
        learned = []
        for seed in range(24):
            with torch.no_grad():
                q = agent.critic(examined.obs, examined.action)[..., 0]
                error = (q - examined.reward).square().mean().item()
                learned.append((error, agent.policy(examined.obs).sum(-1).mean().item()))
            agent.observe(make_transition(make_spec(), seed))
            agent.update(paid_by_action(64, seed))
        (error_before, action_before), (error_after, action_after) = learned[0], learned[-1]
        assert error_after < 0.4 * error_before, (name, learned)
        assert action_after > 2 * action_before > 0, (name, learned)


@pytest.mark.slow
def test_all_64_combinations_stay_finite_for_200_updates() -> None:
    for name in COMBINATIONS:
        agent = make_combination(name)
        found = run(agent, 200)
        assert all(value.isfinite().all() for value in found.values()), (name, found)
        assert all(each.isfinite().all() for each in weights(agent)), name


def test_layer_norm_is_between_layer_and_relu_of_the_critics() -> None:
    agent = make_combination("none+ln+none")
    assert isinstance(agent.critic.net, MLP)
    kinds = [type(m) for m in agent.critic.net.body]
    assert kinds == [Linear, LayerNorm, torch.nn.ReLU] * 2
    x = agent.critic.net.body[:2](torch.randn(50, 5))  # [E, B, H] before the ReLU
    torch.testing.assert_close(x.mean(-1), torch.zeros(2, 50), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(-1, correction=0), torch.ones(2, 50), atol=1e-2, rtol=0)


def test_spectral_norms_are_one_in_critic_and_target_also_while_learning() -> None:
    agent = make_combination("cdql+sn+none")
    run(agent, 20)
    assert isinstance(agent.critic_target.net, MLP)
    targets = [m for m in agent.critic_target.net.body if isinstance(m, SpectralLinear)]
    for layer in [*hidden_layers(agent), *targets]:
        assert isinstance(layer, SpectralLinear)
        norm = torch.linalg.matrix_norm(layer.normalized(), 2)
        torch.testing.assert_close(norm, torch.ones(2), atol=1e-3, rtol=0)
        assert torch.linalg.matrix_norm(layer.weight, 2).min() > 1.2


def test_weight_decay_shrinks_the_critics() -> None:
    sizes = {}
    for decay in (0.0, 50.0):
        optim = AdamWConfig(lr=3e-4, lr_end=3e-4, weight_decay=decay)
        agent = make_agent(replace(SMALL, critic_optim=optim))
        run(agent, 10)
        sizes[decay] = torch.cat([p.flatten() for p in agent.critic.parameters()]).norm().item()
    # Ten times 1 - 3e-4 * 50.
    assert sizes[50.0] / sizes[0.0] == pytest.approx((1 - 3e-4 * 50) ** 10, rel=0.02)
    recipe = recipes.get("sac/none+wd+none").agent
    assert isinstance(recipe, SACConfig)
    assert isinstance(recipe.critic_optim, AdamWConfig)
    assert recipe.critic_optim.weight_decay == 0.01


def test_resets_are_counted_in_updates_and_bring_back_everything_that_was_learned() -> None:
    agent, fresh = make_combination("gpl+ln+resets"), make_combination("gpl+ln+resets")
    step = make_transition(make_spec(), 0)
    for seed in range(4):
        agent.update(make_batch(make_spec(), rows=32, seed=seed))
        agent.observe(step)
    assert agent.resets is not None
    assert agent.resets.made == 0
    agent.update(make_batch(make_spec(), rows=32, seed=9))
    for _ in range(3):
        agent.observe(step)
        assert agent.resets.made == 1
    for name in ("gaussian", "critic", "critic_target", "alpha", "bound"):
        for now, then in zip(
            getattr(agent, name).parameters(), getattr(fresh, name).parameters(), strict=True
        ):
            assert torch.equal(now, then), name
    for stepper in (agent.step_critic, agent.step_policy, agent.step_alpha, agent.step_bound):
        assert stepper is not None
        state = stepper.optimizer.state
        assert all(not kept.any() for each in state.values() for kept in each.values())
    assert not agent.bound.get_buffer("running_slope").any()
    # From here on it learns as a new one does, but for the noise it has drawn.
    for noise in ("critic_noise", "policy_noise"):
        getattr(fresh, noise).load_state_dict(getattr(agent, noise).state_dict())
    batch = make_batch(make_spec(), rows=32, seed=3)
    for one in (agent, fresh):
        one.update(batch)
    for now, then in zip(agent.critic.parameters(), fresh.critic.parameters(), strict=True):
        torch.testing.assert_close(now, then, atol=1e-5, rtol=1e-4)


def test_redo_revives_killed_units_and_leaves_the_target_alone() -> None:
    net = MLPConfig(hidden=(100, 100), start="orthogonal")
    cfg = replace(SMALL, critic_net=net, plasticity=ReDoConfig(every_updates=10), tau=1e-6)
    agent = make_agent(cfg)
    big = make_batch(make_spec(), rows=256, seed=1)
    with torch.no_grad():
        for layer in hidden_layers(agent):
            assert layer.bias is not None
            layer.bias[:, :30] = -100.0
    found = agent.diagnose(big, None)
    assert found["critic/dormant"].item() == pytest.approx(0.30, abs=0.02)
    target = [p.clone() for p in agent.critic_target.parameters()]
    assert agent.periods == (10,)
    shares = {}
    for seed in range(30):
        metrics = agent.update(make_batch(make_spec(), rows=256, seed=seed)).metrics
        if "redo/restarted" in metrics:
            shares[agent.updates] = metrics["redo/restarted"].item()
    assert list(shares) == [10, 20, 30]
    assert shares[10] == pytest.approx(0.30, abs=0.02)
    assert shares[20] < 0.02
    assert agent.diagnose(big, None)["critic/dormant"].item() < 0.02
    for was, now in zip(target, agent.critic_target.parameters(), strict=True):
        torch.testing.assert_close(was, now, atol=1e-2, rtol=0)


def test_crelu_halves_the_units_and_keeps_the_features() -> None:
    agent = make_combination("none+none+crelu")
    assert [layer.weight.shape for layer in hidden_layers(agent)] == [(2, 5, 8), (2, 16, 8)]
    found = agent.diagnose(make_batch(make_spec(), rows=64), None)
    assert found["critic/dormant"].item() < 0.2


def test_gpl_moves_beta_towards_smaller_gaps() -> None:
    cfg = replace(
        SMALL,
        bound=LearnedBoundConfig(learns_from="batch", form="bias", beta=0.5, normalize=False),
        bound_optim=AdamConfig(lr=0.1),
    )
    for shift, sign in ((30.0, 1), (-30.0, -1)):
        agent = make_agent(cfg)
        batch = make_batch(make_spec(), rows=64)
        found = agent.update(batch._replace(reward=batch.reward + shift)).metrics
        assert found["bound/gap"].item() * sign > 0
        assert agent.bound.beta().item() == pytest.approx(0.5 + 0.1 * sign, abs=1e-3)


def test_beta_needs_two_rows_unless_its_loss_is_a_mean_of_squares() -> None:
    bias = LearnedBoundConfig(learns_from="batch", form="bias")
    for bound, rows in ((bias, 1), (replace(bias, form="mse"), 1), (bias, 2)):
        agent, batch = make_agent(replace(SMALL, bound=bound)), make_batch(make_spec(), rows=rows)
        if (bound, rows) == (bias, 1):
            with pytest.raises(UserError, match="two halves of the rows, of which there are 1"):
                agent.update(batch)
        else:
            assert all(value.isfinite().all() for value in agent.update(batch).metrics.values())


def test_noise_does_not_carry_the_beta_of_gpl_away() -> None:
    """Critics follow their targets, so nothing brings beta back where only noise has moved it."""
    cfg = recipes.get("sac/gpl+none+none").agent
    assert isinstance(cfg, SACConfig)
    bound = cfg.bound.build(1)
    step = cfg.bound_optim.build(bound, 2_000)
    noise = torch.Generator().manual_seed(0)
    seen = []
    for _ in range(2_000):
        loss, _, _ = bound.loss(torch.randn(64, generator=noise), torch.ones(64))
        step(loss)
        seen.append(bound.beta().item())
    assert max(seen) < 0.7
    assert min(seen) > 0.3


def test_rows_of_weight_zero_do_not_teach_beta() -> None:
    bound = LearnedBoundConfig(learns_from="batch", normalize=False)
    batch = make_batch(make_spec(), rows=8)
    batch = batch._replace(weight=torch.tensor([1.0, 0.0] * 4))
    found = []
    for lost in (0.0, 1e4):
        reward = torch.where(batch.weight > 0, batch.reward, lost)
        found.append(make_agent(replace(SMALL, bound=bound)).update(batch._replace(reward=reward)))
    for name in ("bound/gap", "bound/loss", "bound/beta"):
        assert found[0].metrics[name].item() == found[1].metrics[name].item(), name


def test_top_changes_its_arm_with_training_episodes_and_nothing_else() -> None:
    agent = make_combination("top+none+none")
    seen = set()
    for seed in range(60):
        step = make_transition(make_spec(), seed)
        ended = torch.full_like(step.terminated, seed % 2 == 1)
        before = agent.bound.beta().item()
        agent.observe(step._replace(truncated=ended, terminated=~ended & ended))
        assert agent.bound.beta().item() == before or ended.all()
        seen.add(agent.bound.beta().item())
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("name", ["gpl+sn+redo", "top+ln+resets", "none+wd+crelu"])
def test_saved_and_restored_agents_go_on_exactly(name: str) -> None:
    one, two = make_combination(name), make_combination(name)
    run(one, 6)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for agent in (one, two):
        run(agent, 6)
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))
    assert one.state_dict().get("resets") == two.state_dict().get("resets")


class Whole(torch.nn.Module):
    """The modules of an agent as one, so that all its weights can be replaced at once."""

    def __init__(self, agent: SAC):
        super().__init__()
        self.gaussian, self.critic, self.critic_target = (
            agent.gaussian,
            agent.critic,
            agent.critic_target,
        )
        self.alpha, self.bound = agent.alpha, agent.bound
        self.agent = (agent,)  # not a module

    def forward(self, batch: Batch, noise: Tensor) -> tuple[Tensor, ...]:
        (agent,) = self.agent
        loss, _, aux = agent.critic_loss(batch, noise)
        found = [loss, agent.policy_loss(batch.obs, noise).loss]
        if agent.step_bound is not None:
            found.append(agent.bound_loss(aux["gap"], aux["slope"], batch.weight).loss)
        if agent.redo is not None:
            found.append(torch.stack(agent.activity(batch.obs, batch.action)).sum())
        return tuple(found)


@pytest.mark.parametrize("name", ["gpl+sn+redo", "top+ln+none", "none+none+crelu"])
def test_the_losses_of_several_seeds_can_be_computed_as_one(name: str) -> None:
    cfg = combined(SMALL, name, 5)
    wholes = [Whole(make_agent(cfg, seed)) for seed in (0, 1, 2)]
    weights, buffers = torch.func.stack_module_state(wholes)
    batch, noise = make_batch(make_spec()), torch.randn(6, 2)

    def one(w: dict[str, Tensor], b: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(wholes[0], (w, b), (batch, noise))

    together = torch.func.vmap(one)(weights, buffers)
    for i, whole in enumerate(wholes):
        for found, alone in zip(together, whole(batch, noise), strict=True):
            torch.testing.assert_close(found[i], alone, rtol=1e-4, atol=1e-5)


def test_names_of_recipes() -> None:
    for name in COMBINATIONS:
        recipe = recipes.get(f"sac/dog-stand/{name}")
        assert recipe.name == f"sac/dog-stand/{name}"
    assert recipes.get("sac/cdql+ln+resets").env == recipes.get("sac/pendulum").env
    plain = recipes.get("sac/dog-stand").agent
    assert plain == recipes.get("sac/dog-stand/cdql+none+none").agent
    agent = recipes.get("sac/none+ln+resets").agent
    assert isinstance(agent, SACConfig)
    assert agent.bound == FixedBoundConfig(beta=0.0)
    assert isinstance(agent.plasticity, ResetsConfig)
    assert sum(name.startswith("sac/") for name in recipes.names()) < 15
    for wrong, said in (
        ("sac/cdql+lm+resets", r"Did you mean .*cdql\+ln\+resets"),
        ("sac/dog-stnd/cdql+ln+none", "sac/dog-stand"),
        ("sac/dog-stand/ln", r"CRITIC\+NETWORK\+PLASTICITY"),
        ("sac/pendulum/none+ln+none/x", "no recipe"),
    ):
        with pytest.raises(UserError, match=said):
            recipes.get(wrong)


def test_wrong_input() -> None:
    for changes, said in (
        ({"tau": 0.0}, "tau"),
        ({"num_critics": 1}, "critics"),
        ({"plasticity": ReDoConfig(every_updates=0)}, "every_updates"),
        ({"bound": LearnedBoundConfig()}, "held-out"),
    ):
        with pytest.raises(UserError, match=said):
            make_agent(replace(SMALL, **changes))
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(action=Discrete(3))


def swing_up(name: str, folder: Path, **changes: Any) -> Result:
    recipe = replace(recipes.get(name), log=QUIET, device="cpu", threads=1, **changes)
    return train(recipe, folder)


@pytest.mark.learning
def test_it_swings_the_pendulum_up(tmp_path: Path) -> None:
    pace = PaceConfig(
        updates_per_vec_step=2.0, warmup_vec_steps=50
    )  # half the recipe's: less to compute
    recipe = replace(recipes.get("sac/pendulum"), log=QUIET, device="cpu", threads=1)
    recipe = replace(recipe, pace=pace, total_vec_steps=500)
    assert train_until(recipe, tmp_path / "run", -250, every=50).best_return >= -250


@pytest.mark.slow
def test_no_technique_breaks_learning(tmp_path: Path) -> None:
    """Two by two by two on the pendulum, 10,000 env steps each: last returns within a fifth of each other."""
    slots = (("none", "cdql"), ("none", "ln"), ("none", "resets"))
    found = {}
    for name in map("+".join, product(*slots)):
        found[name] = swing_up(f"sac/{name}", tmp_path / name).last_return
    assert min(found.values()) > 1.2 * max(found.values()), found
