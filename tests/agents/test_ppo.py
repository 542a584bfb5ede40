from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fleetfoot import recipes
from fleetfoot.agents.ppo import PPO, PPOConfig
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Rollout, Transition
from fleetfoot.errors import UserError
from fleetfoot.nn.adaptive_rate import AdaptiveRate
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.optim import AdamConfig, SGDConfig
from support.runs import QUIET
from support.train_until import train_until

CPU = torch.device("cpu")
GAMMA, LAMBDA = 0.9, 0.8
TWO = Continuous(2)


def made(action: Continuous | Discrete = TWO, **changes: Any) -> PPO:
    """No hidden layers: mean (or logits) and value are affine."""
    spec = EnvSpec("made up", 3, (2,), action, CPU, critic_shape=(3,))
    fields: dict[str, Any] = {
        "gae_lambda": LAMBDA,
        "epochs": 1,
        "minibatches": 1,
        "value_coef": 0.7,
        "entropy_coef": 0.03,
        "value_clip": 0.1,
        "target_kl": None,
        "normalize_obs": False,
        "head_gain": None,
        "policy_net": MLPConfig(hidden=()),
        "critic_net": MLPConfig(hidden=()),
        "policy_optim": AdamConfig(lr=0.1, max_grad_norm=0.4),
    }
    cfg = PPOConfig(**(fields | changes))
    return cfg.build(spec, gamma=GAMMA, total_updates=10, seed=1, device=CPU)


def rollout(discrete: bool = False, steps: int = 4) -> Rollout:
    random = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    ended = torch.zeros(steps, 3, dtype=torch.bool)
    ended[1, 0] = ended[2, 1] = True
    discount = torch.full((steps, 3), GAMMA)
    discount[1, 0] = 0.0
    action = (normal(steps, 3) > 0).long() if discrete else normal(steps, 3, 2)
    return Rollout(
        obs=Obs(normal(steps, 3, 2), normal(steps, 3, 3)),
        action=action,
        reward=normal(steps, 3),
        discount=discount,
        ended=ended,
        next_obs=Obs(normal(steps, 3, 2), normal(steps, 3, 3)),
    )


def advantages_by_hand(data: Rollout, value: Any, next_value: Any) -> Any:
    reward, discount, ended = (np.asarray(x) for x in (data.reward, data.discount, data.ended))
    advantage = np.zeros_like(reward)
    for n in range(reward.shape[1]):
        trace = 0.0
        for t in reversed(range(len(reward))):
            delta = reward[t, n] + discount[t, n] * next_value[t, n] - value[t, n]
            trace = delta + (0.0 if ended[t, n] else LAMBDA * discount[t, n] * trace)
            advantage[t, n] = trace
    return advantage


def numbers(module: torch.nn.Module, name: str) -> Any:
    return module.get_parameter(name).detach().double().numpy().copy()


def test_two_steps_of_one_update_by_hand() -> None:
    """Everything written out in numpy: GAE, the clipped losses, their gradients, the clipped norm and Adam. The second
    epoch sees a ratio that is not 1, and values that have moved."""
    agent, data = made(epochs=2), rollout()
    weight, bias = numbers(agent.actor, "net.head.weight"), numbers(agent.actor, "net.head.bias")
    log_std = numbers(agent.actor, "log_std")
    v_weight, v_bias = (
        numbers(agent.critic, "net.head.weight"),
        numbers(agent.critic, "net.head.bias"),
    )
    x, c = (
        data.obs.actor.double().numpy().reshape(12, 2),
        data.obs.critic.double().numpy().reshape(12, 3),
    )
    c_next, a = data.next_obs.critic.double().numpy(), data.action.double().numpy().reshape(12, 2)

    old_value = (c @ v_weight + v_bias)[:, 0]
    next_value = (c_next @ v_weight + v_bias)[..., 0]
    raw = advantages_by_hand(data, old_value.reshape(4, 3), next_value).reshape(12)
    returns = raw + old_value
    adv = (raw - raw.mean()) / (raw.std() + 1e-8)

    def log_prob(mean: Any) -> Any:
        z = (a - mean) / np.exp(log_std)
        return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(1)

    old_log_prob = log_prob(x @ weight + bias)
    moments = [np.zeros_like(p) for p in (log_std, weight, bias, v_weight, v_bias)]
    squares = [np.zeros_like(p) for p in moments]
    for step in (1, 2):
        mean = x @ weight + bias
        ratio = np.exp(log_prob(mean) - old_log_prob)
        # The gradient of min(rho A, clip(rho) A) is rho A grad log pi, or zero where the clipped term is smaller.
        active = ratio * adv <= np.clip(ratio, 0.8, 1.2) * adv
        pull = -(ratio * adv * active) / 12
        z = (a - mean) / np.exp(log_std)
        g_mean = pull[:, None] * z / np.exp(log_std)
        g_log_std = (pull[:, None] * (z**2 - 1)).sum(
            0
        ) - 0.03  # the entropy's gradient is 1 for each component
        value = (c @ v_weight + v_bias)[:, 0]
        far, near = (
            (value - returns) ** 2,
            (old_value + np.clip(value - old_value, -0.1, 0.1) - returns) ** 2,
        )
        inside = np.abs(value - old_value) <= 0.1
        g_value = np.where((far >= near) | inside, 2 * (value - returns), 0.0) * 0.7 / 12
        gradients = [
            g_log_std,
            x.T @ g_mean,
            g_mean.sum(0),
            c.T @ g_value[:, None],
            g_value.sum(keepdims=True),
        ]
        norm = math.sqrt(sum((g**2).sum() for g in gradients))
        scale = min(1.0, 0.4 / (norm + 1e-6))
        assert scale < 1.0
        parameters = [log_std, weight, bias, v_weight, v_bias]
        for p, g, m, s in zip(parameters, gradients, moments, squares, strict=True):
            g = g * scale
            m += 0.1 * (g - m)
            s += 0.001 * (g**2 - s)
            p -= 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
    assert not active.all()  # the second step has clipped rows
    assert not inside.all()

    result = agent.update(data)
    for module, name, wanted in (
        (agent.actor, "log_std", log_std),
        (agent.actor, "net.head.weight", weight),
        (agent.actor, "net.head.bias", bias),
        (agent.critic, "net.head.weight", v_weight),
        (agent.critic, "net.head.bias", v_bias),
    ):
        np.testing.assert_allclose(
            module.get_parameter(name).detach(), wanted, rtol=2e-4, atol=2e-5
        )
    assert agent.updates == 1
    assert result.td_error is None
    assert {"policy/kl", "policy/clipped", "critic/explained_variance"} <= result.metrics.keys()


def test_a_discrete_policy_learns_the_better_action() -> None:
    agent, data = made(Discrete(2), epochs=4, minibatches=3), rollout(discrete=True)
    data = data._replace(
        reward=data.action.float(),
        ended=torch.ones(4, 3, dtype=torch.bool),
        discount=torch.zeros(4, 3),
    )
    before = agent.actor(Obs(torch.zeros(1, 2), torch.zeros(1, 3)))[0].exp()
    for _ in range(3):
        agent.update(data)
    after = agent.actor(Obs(torch.zeros(1, 2), torch.zeros(1, 3)))[0].exp()
    assert after[0, 1] > before[0, 1] + 0.1


def test_a_rollout_of_one_row_has_finite_metrics() -> None:
    one: Rollout = tree_map(lambda x: None if x is None else x[:1, :1], rollout())
    metrics = made().update(one).metrics
    assert all(value.isfinite() for value in metrics.values())


def test_each_epoch_takes_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, data = made(epochs=2, minibatches=5), rollout()
    seen: list[Tensor] = []
    true_loss = agent.loss

    def loss(data: Rollout, targets: Any, index: Tensor) -> Any:
        seen.append(index)
        return true_loss(data, targets, index)

    monkeypatch.setattr(agent, "loss", loss)
    agent.update(data)
    assert [len(index) for index in seen] == [3, 3, 2, 2, 2] * 2
    for epoch in (seen[:5], seen[5:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))
    assert not torch.equal(torch.cat(seen[:5]), torch.cat(seen[5:]))


def moved_since(agent: PPO, data: Rollout) -> tuple[Any, Any, Any]:
    """The targets, the parameters that pi_old had, and those of a policy that has moved."""
    targets, _ = agent.prepare(data)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.add_(torch.linspace(-0.2, 0.3, parameter.numel()).view_as(parameter))
        obs = Obs(*(view.flatten(0, 1) for view in (data.obs.actor, data.obs.critic)))
        return targets, targets.params, agent.actor(obs)


def test_advantages_are_standardized_within_each_minibatch() -> None:
    agent, data = made(normalize_advantage="minibatch"), rollout()
    targets, old, new = moved_since(agent, data)
    index = torch.tensor([7, 0, 3, 5])
    action = data.action.flatten(0, 1)
    ratio = (agent.actor.log_prob(new, action) - agent.actor.log_prob(old, action)).exp()[index]
    raw = targets.advantage[index]
    advantage = (raw - raw.mean()) / raw.std(correction=0)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    found = agent.loss(data, targets, index).metrics["policy/loss"]
    assert found.item() == pytest.approx(-gain.mean().item(), abs=1e-5)


def test_the_divergence_is_that_of_the_new_policy_from_the_old() -> None:
    agent, data = made(), rollout()
    targets, old, new = moved_since(agent, data)
    normal = torch.distributions.Normal
    one, two = (normal(mean, log_std.exp()) for mean, log_std in (old, new))
    wanted = torch.distributions.kl_divergence(one, two).sum(-1).mean().item()
    found = agent.loss(data, targets, torch.arange(12)).metrics["policy/kl"]
    assert found.item() == pytest.approx(wanted, rel=1e-4)


def test_a_schedule_counts_the_steps_of_the_whole_run() -> None:
    falling = AdamConfig(lr=1e-2, lr_end=0.0, schedule="linear")
    agent = made(epochs=2, minibatches=3, policy_optim=falling)  # of 10 updates
    for rate in (0.9e-2, 0.8e-2):
        agent.update(rollout())
        assert agent.step.lr.item() == pytest.approx(rate)


@pytest.mark.parametrize("clip", [None, 2.0])
def test_normalised_observations_are_clipped_for_policy_and_critic(clip: float | None) -> None:
    agent = made(normalize_obs=True, clip_obs=clip)
    far, farther = (Obs(torch.full((1, 2), x), torch.full((1, 3), x)) for x in (30.0, 60.0))
    assert torch.equal(agent.actor(far)[0], agent.actor(farther)[0]) == (clip is not None)
    assert torch.equal(agent.critic(far), agent.critic(farther)) == (clip is not None)


def test_a_mean_may_be_bounded() -> None:
    far = Obs(torch.full((1, 2), 1e3), torch.full((1, 3), 1e3))
    assert made().actor(far)[0].abs().max() > 1.0
    assert made(tanh_mean=True).actor(far)[0].abs().max() <= 1.0


def test_the_adaptive_rate_follows_the_divergence() -> None:
    rate = AdaptiveRate(1e-3, 0.01)
    for kl, factor in ((0.021, 1 / 1.5), (0.019, 1.0), (0.006, 1.0), (0.004, 1.5), (0.0, 1.0)):
        before = float(rate.lr)
        assert float(rate.update(torch.tensor(kl))) == pytest.approx(before * factor)
    for _ in range(30):
        rate.update(torch.tensor(1.0))
    assert float(rate.lr) == pytest.approx(1e-5)
    for _ in range(60):
        rate.update(torch.tensor(1e-6))
    assert float(rate.lr) == pytest.approx(1e-2)


def test_divergences_are_those_of_torch() -> None:
    continuous, discrete = made().actor, made(Discrete(4)).actor
    old, new = ((torch.randn(5, 2), torch.randn(5, 2)) for _ in range(2))
    kl = torch.distributions.kl_divergence
    wanted = kl(*(torch.distributions.Normal(m, s.exp()) for m, s in (old, new))).sum(-1)
    torch.testing.assert_close(continuous.kl(old, new), wanted)
    assert (continuous.kl(old, old) == 0.0).all()
    one, two = (torch.randn(5, 4).log_softmax(-1) for _ in range(2))
    wanted = kl(*(torch.distributions.Categorical(logits=x) for x in (one, two)))
    torch.testing.assert_close(discrete.kl((one,), (two,)), wanted)
    same: Any = torch.distributions.Categorical(logits=one)
    torch.testing.assert_close(discrete.entropy((one,)), same.entropy())


def test_discrete_samples_have_their_probabilities() -> None:
    policy = made(Discrete(4)).actor
    log_probs = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(40_000, 4)
    noise = torch.rand(40_000, 4, generator=torch.Generator().manual_seed(0))
    found = policy.sample((log_probs,), noise).bincount(minlength=4) / 40_000
    torch.testing.assert_close(found, torch.tensor([0.1, 0.2, 0.3, 0.4]), rtol=0.0, atol=0.01)


def test_the_adapted_rate_is_that_of_the_step_and_of_the_state() -> None:
    agent = made(target_kl=1e-6, epochs=3, policy_optim=AdamConfig(lr=1e-3))
    result = agent.update(rollout())
    assert agent.rate is not None
    assert float(agent.rate.lr) == pytest.approx(
        1e-3 / 1.5**2
    )  # at the first step nothing has moved
    assert float(agent.step.lr) == float(agent.rate.lr)
    assert float(result.metrics["policy/lr"]) == pytest.approx(
        1e-3 * (1 + 1 / 1.5 + 1 / 1.5**2) / 3
    )
    other = made(target_kl=1e-6, epochs=3, policy_optim=AdamConfig(lr=1e-3))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    one, two = agent.update(rollout()), other.update(rollout())
    for name, value in one.metrics.items():
        assert torch.equal(value, two.metrics[name])


def test_statistics_take_effect_after_the_update() -> None:
    agent, data = made(normalize_obs=True), rollout()
    for t in range(4):
        obs, next_obs = (Obs(o.actor[t] + 7, o.critic[t]) for o in (data.obs, data.next_obs))
        flags = torch.zeros(3, dtype=torch.bool)
        agent.observe(Transition(obs, data.action[t], data.reward[t], flags, flags, next_obs, {}))
    norm = agent.norms.actor
    assert isinstance(norm, RunningNorm)
    assert float(norm.shift.abs().max()) == 0.0
    agent.update(data)
    torch.testing.assert_close(norm.shift, data.obs.actor.flatten(0, 1).mean(0) + 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, r"agent\.epochs"),
        ({"minibatches": 0}, r"agent\.minibatches"),
        ({"clip": 0.0}, r"agent\.clip"),
        ({"value_clip": -1.0}, r"agent\.value_clip"),
        ({"target_kl": 0.0}, r"agent\.target_kl"),
        ({"std": 0.0}, r"agent\.std"),
        ({"gae_lambda": 1.1}, r"agent\.gae_lambda"),
        ({"target_kl": 0.01, "policy_optim": AdamConfig(lr_end=1e-5)}, "either follows"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        made(**changes)
    assert "\n" not in str(caught.value)


def test_images_are_refused() -> None:
    spec = EnvSpec("pictures", 1, (1, 8, 8), Discrete(2), CPU)
    with pytest.raises(UserError, match="PPO needs flat observations"):
        PPOConfig().build(spec, gamma=0.9, total_updates=1, seed=0, device=CPU)


def test_a_linear_schedule_ends_at_zero() -> None:
    net = torch.nn.Linear(1, 1)
    step = SGDConfig(lr=1.0, lr_end=0.0, schedule="linear").build(net, 4)
    rates = []
    for _ in range(4):
        rates.append(float(step.lr))
        step(net(torch.ones(1, 1)).sum())
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert float(step.lr) == 0.0


@pytest.mark.learning
@pytest.mark.parametrize(
    ("name", "least"),
    [("ppo/cartpole", 475.0), pytest.param("ppo/pendulum", -200.0, marks=pytest.mark.slow)],
)
def test_it_learns(tmp_path: Path, name: str, least: float) -> None:
    recipe = replace(recipes.get(name), log=QUIET, device="cpu", threads=1, seed=2)
    assert train_until(recipe, tmp_path / "run", least).best_return >= least
