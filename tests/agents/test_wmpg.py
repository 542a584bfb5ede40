"""WMPG and AC: updates computed by hand, the fall-back, the variance with a perfect model, and learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.studies.wmpg import until_solved
from benchmarks.studies.wmpg_variance import Simulator, compare, estimates, partly_trained
from fleetfoot import UserError, api, recipes
from fleetfoot.agents.wmpg import WMPG, WMPGConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Rollout, Transition
from fleetfoot.envs.tensor import CartPole, TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.autoencoder import AutoencoderConfig
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.world_model import Prediction, WorldModelConfig
from fleetfoot.ops.control_variate import gumbels_given
from fleetfoot.optim import SGDConfig
from fleetfoot.recipe import Recipe

CPU, GAMMA = torch.device("cpu"), 0.9
SPEC = EnvSpec("made up", 2, (4,), Discrete(3), CPU)
NET = MLPConfig(hidden=(8,), activation=("tanh",))


def agent_of(spec: EnvSpec = SPEC, **changes: Any) -> WMPG:
    fields: dict[str, Any] = {
        "horizon": 3,
        "policy_net": NET,
        "critic_net": NET,
        "world_model": WorldModelConfig(net=NET),
        "model_steps": 2,
        "model_batch": 4,
        "model_unroll": 2,
        "normalize_obs": False,
        "entropy_coef": 0.0,
    }
    return WMPGConfig(**(fields | changes)).build(
        spec, gamma=GAMMA, total_updates=10, seed=0, device=CPU
    )


def rollout_of(steps: int, seed: int = 0) -> Rollout:
    """Five steps of two environments; the second terminates at the third."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps, 2, 4, generator=generator)
    after = torch.randn(steps, 2, 4, generator=generator)
    ended = torch.zeros(steps, 2, dtype=torch.bool)
    ended[2, 1] = True
    return Rollout(
        obs=Obs(obs, obs),
        action=torch.randint(3, (steps, 2), generator=generator),
        reward=torch.randn(steps, 2, generator=generator),
        discount=torch.where(ended, 0.0, GAMMA),
        ended=ended,
        next_obs=Obs(after, after),
    )


def feed(agent: WMPG, rollout: Rollout) -> None:
    for t in range(len(rollout.reward)):
        terminated = rollout.discount[t] == 0
        agent.observe(
            Transition(
                Obs(rollout.obs.actor[t], rollout.obs.actor[t]),
                rollout.action[t],
                rollout.reward[t],
                terminated,
                rollout.ended[t] & ~terminated,
                Obs(rollout.next_obs.actor[t], rollout.next_obs.actor[t]),
                {},
            )
        )


def noise_for(agent: WMPG, steps: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = steps, 2, agent.cfg.trajectories, agent.cfg.horizon, 3
    return torch.rand(shape[:2] + shape[4:], generator=generator), torch.rand(
        shape, generator=generator
    )


def real_return(agent: WMPG, rollout: Rollout, t: int, n: int) -> float:
    total, factor = 0.0, 1.0
    for i in range(agent.cfg.horizon):
        total += factor * agent.cfg.reward_scale * float(rollout.reward[t + i, n])
        factor *= float(rollout.discount[t + i, n])
        last = rollout.ended[t + i, n] or t + i + 1 == len(rollout.reward)
        if last or i + 1 == agent.cfg.horizon:
            break
    with torch.no_grad():
        return total + factor * float(agent.value(rollout.next_obs.actor[t + i, n][None]))


def test_ac_by_hand() -> None:
    agent = agent_of(
        estimator="reinforce",
        baseline="value",
        reward_scale=0.5,
        entropy_coef=0.1,
        policy_optim=SGDConfig(lr=0.1),
        critic_steps=1,
    )
    assert agent.model is None
    rollout = rollout_of(5)
    targets, _ = agent.targets(rollout, *noise_for(agent, 5))
    rows = [(t, n) for t in range(5) for n in range(2)]
    values = agent.value(rollout.obs.actor.flatten(0, 1)).tolist()
    wanted = [real_return(agent, rollout, *row) - v for row, v in zip(rows, values, strict=True)]
    assert targets.coefficient.flatten().tolist() == pytest.approx(wanted, abs=1e-5)

    probs = agent.log_probs(rollout.obs.actor.flatten(0, 1))
    chosen = probs.gather(1, rollout.action.view(-1, 1)).squeeze(1)
    entropy = -(probs.exp() * probs).sum(-1).mean()
    loss = -(torch.tensor(wanted) * chosen).mean() - 0.1 * entropy
    parameters = list(agent.actor.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    expected = [p.detach() - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]
    feed(agent, rollout)
    agent.update(rollout)
    for parameter, value in zip(agent.actor.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


class Drift(torch.nn.Module):
    """A model that moves along the action, pays the first number of the observation, and may end."""

    def forward(self, obs: Tensor, action: Tensor) -> Prediction:
        step = torch.cat([action, torch.zeros_like(action[..., :1])], -1)
        return Prediction(obs + step, obs[..., 0], torch.full(obs.shape[:-1], 0.8))

    def observe(self, *given: Tensor) -> None: ...


def drifting(monkeypatch: pytest.MonkeyPatch, *, trusted: bool = True, **changes: Any) -> WMPG:
    agent = agent_of(**changes)
    agent.model = Drift()  # type: ignore[assignment]
    monkeypatch.setattr(agent, "trust", lambda *given: (torch.tensor(trusted), {}))
    return agent


def imagined(agent: WMPG, obs: Tensor, action: int, noise: Tensor, steps: int) -> float:
    """One trajectory in `Drift`, step by step; noise [H, actions]."""
    total, alive = 0.0, 1.0
    for step in range(steps):
        total += alive * agent.cfg.reward_scale * float(obs[0])
        obs = obs + torch.cat([one_hot(torch.tensor(action), 3).float(), torch.zeros(1)])
        alive *= GAMMA * 0.8
        if step + 1 < steps:
            gumbel = -(-noise[step + 1].log()).log()
            action = int((agent.log_probs(obs[None])[0] + gumbel).argmax())
    with torch.no_grad():
        return total + alive * float(agent.value(obs[None]))


@pytest.mark.parametrize("estimator", ["set", "set_with_baseline", "all_actions"])
def test_coefficients_by_hand(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """k = 2 in closed form: p_a R(S, a) = (1 - p_b) / (2 - p_a - p_b), corrected by (1 - p_a) (f_a - f_b)."""
    agent = drifting(
        monkeypatch, estimator=estimator, baseline="none", trajectories=2, reward_scale=0.5
    )
    rollout, (set_noise, path_noise) = rollout_of(5), noise_for(agent, 5)
    targets, _ = agent.targets(rollout, set_noise, path_noise)
    for row, (t, n) in enumerate((t, n) for t in range(5) for n in range(2)):
        obs = rollout.obs.actor[t, n]
        p = agent.log_probs(obs[None])[0].exp().detach()
        ends = n == 1 and t <= 2  # within the horizon, by a termination
        steps = 3 if ends else min(3, 5 - t)
        actions = targets.actions[row].tolist()
        assert actions[0] == rollout.action[t, n]
        assert len(set(actions)) == len(actions) == (3 if estimator == "all_actions" else 2)
        f = [real_return(agent, rollout, t, n)]
        for action in actions[1:]:
            paths = path_noise[t, n]
            f.append(sum(imagined(agent, obs, action, path, steps) for path in paths) / 2)
        if estimator == "all_actions":
            wanted = [float(p[a]) * value for a, value in zip(actions, f, strict=True)]
        else:
            a, b = (float(p[action]) for action in actions)
            weight = [(1 - b) / (2 - a - b), (1 - a) / (2 - a - b)]
            if estimator == "set_with_baseline":
                f = [(1 - a) * (f[0] - f[1]), (1 - b) * (f[1] - f[0])]
            wanted = [w * value for w, value in zip(weight, f, strict=True)]
        assert targets.coefficient[row].tolist() == pytest.approx(wanted, abs=1e-4)


def test_informed_baseline_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = drifting(monkeypatch, estimator="reinforce", baseline="informed")
    rollout, (set_noise, path_noise) = rollout_of(5), noise_for(agent, 5)
    targets, _ = agent.targets(rollout, set_noise, path_noise)
    for row, (t, n) in enumerate([(0, 0), (0, 1), (1, 0)]):
        obs, noise = rollout.obs.actor[t, n], path_noise[t, n, 0]
        first = int((agent.log_probs(obs[None])[0] - (-noise[0].log()).log()).argmax())
        wanted = real_return(agent, rollout, t, n) - imagined(agent, obs, first, noise, 3)
        assert float(targets.coefficient[row, 0]) == pytest.approx(wanted, abs=1e-4)


def test_control_variate_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model decides after a row with the numbers that belong to the actions executed there."""
    agent = drifting(
        monkeypatch, estimator="control_variate", reward_scale=0.5, real_weight=0.25, trajectories=2
    )
    assert agent.regression is not None
    agent.regression.update(torch.tensor([0.3, 1.0, 0.7, 1.0]))
    rollout, (set_noise, path_noise) = rollout_of(5), noise_for(agent, 5)
    targets, metrics = agent.targets(rollout, set_noise, path_noise)
    assert float(metrics["model/alpha"]) == pytest.approx(0.3)
    assert float(metrics["model/beta"]) == pytest.approx(0.7)
    products = []
    for row, (t, n) in enumerate((t, n) for t in range(5) for n in range(2)):
        obs = rollout.obs.actor[t, n]
        log_probs = agent.log_probs(obs[None])[0].detach()
        value = float(agent.value(obs[None]).detach())
        paths = path_noise[t, n].clone()  # [M, H, actions]
        for path, step in ((path, step) for path in range(2) for step in (1, 2)):
            if t + step < 5:  # inside the rollout: whatever episode this is of
                there = agent.log_probs(rollout.obs.actor[t + step, n][None])[0].detach()
                fresh = -(-path_noise[t + step, n, path, 0].log()).log()
                given = gumbels_given(there, rollout.action[t + step, n], fresh)
                assert (there + given).argmax() == rollout.action[t + step, n]
                paths[path, step] = (-(-given).exp()).exp()
        actions = targets.actions[row].tolist()
        assert actions[0] == rollout.action[t, n]
        assert sorted(actions) == [0, 1, 2]
        f = [sum(imagined(agent, obs, a, path, 3) for path in paths) / 2 for a in actions]
        p = [float(log_probs[a].exp()) for a in actions]
        mean = sum(x * y for x, y in zip(p, f, strict=True))
        error = real_return(agent, rollout, t, n) - value
        wanted = [0.7 * x * (y - mean) for x, y in zip(p, f, strict=True)]
        wanted[0] += 0.25 * (error - 0.3 * (mean - value) - 0.7 * (f[0] - mean))
        assert targets.coefficient[row].tolist() == pytest.approx(wanted, abs=1e-4)
        first = error * (mean - value), (mean - value) ** 2
        products.append((*first, error * (f[0] - mean), (f[0] - mean) ** 2))
    torch.testing.assert_close(
        targets.products, torch.tensor(products).mean(0), atol=1e-4, rtol=1e-3
    )


def test_values_imagined_from_stored_states_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = drifting(
        monkeypatch, estimator="control_variate", critic_batch=6, critic_horizon=2, td_lambda=0.5
    )
    rollout = rollout_of(5)
    feed(agent, rollout)
    for parameter in agent.critic.net.parameters():  # the target stays behind
        parameter.data.mul_(0.5)
    generator = torch.Generator().manual_seed(2)
    uniform, noise = torch.rand(6, generator=generator), torch.rand(6, 2, 3, generator=generator)
    stored, wanted = agent.imagined_values(uniform, noise)
    assert agent.critic_target is not None
    for obs, path, value in zip(stored, noise, wanted, strict=True):
        assert (rollout.obs.actor.flatten(0, 1) == obs).all(-1).any()
        total, alive, returns, at = 0.0, 1.0, [], obs
        for step in range(2):
            gumbel = -(-path[step].log()).log()
            action = (agent.log_probs(at[None])[0] + gumbel).argmax()
            total += alive * float(at[0])
            at = at + torch.cat([one_hot(action, 3).float(), torch.zeros(1)])
            alive *= GAMMA * 0.8
            with torch.no_grad():
                returns.append(total + alive * float(agent.critic_target(at[None])))
        assert float(value) == pytest.approx(0.5 * returns[0] + 0.5 * returns[1], abs=1e-4)


def test_the_critics_target_follows_by_a_share_after_each_step() -> None:
    agent = agent_of(
        estimator="control_variate",
        critic_batch=4,
        critic_horizon=2,
        critic_steps=1,
        critic_tau=0.25,
    )
    rollout = rollout_of(5)
    feed(agent, rollout)
    assert agent.critic_target is not None
    before = [p.detach().clone() for p in agent.critic_target.parameters()]
    agent.update(rollout)
    for old, new, now in zip(
        before, agent.critic.net.parameters(), agent.critic_target.parameters(), strict=True
    ):
        assert not torch.equal(old, new)
        torch.testing.assert_close(now.detach(), (0.75 * old + 0.25 * new).detach())


def test_without_trust_it_is_actor_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = rollout_of(5)
    ac = agent_of(estimator="reinforce", baseline="value")
    agent = drifting(monkeypatch, trusted=False, baseline="none")
    one, _ = agent.targets(rollout, *noise_for(agent, 5))
    other, _ = ac.targets(rollout, *noise_for(ac, 5))
    torch.testing.assert_close(one.coefficient[:, :1], other.coefficient)
    assert one.coefficient[:, 1:].abs().max() == 0


def test_a_new_model_is_not_trusted_and_a_perfect_one_is() -> None:
    spec, task = replace(SPEC, action=Discrete(2)), CartPole()
    agent, steps = agent_of(spec, k=2), 6
    state = torch.tensor([[0.01, 0.3, 0.02, -0.1], [0.0, -0.5, 0.2, 1.0]])
    columns: dict[str, list[Tensor]] = {"obs": [], "action": [], "next": [], "ended": []}
    for step in range(steps):
        action = torch.tensor([step % 2, 0])
        after, _, ended = task.advance(state, action)
        for name, value in zip(columns, (state, action, after, ended), strict=True):
            columns[name].append(value)
        state = torch.where(ended[:, None], torch.zeros(4), after)
    made = {name: torch.stack(values) for name, values in columns.items()}
    assert made["ended"].any()
    rollout = Rollout(
        obs=Obs(made["obs"], made["obs"]),
        action=made["action"],
        reward=torch.ones(steps, 2),
        discount=torch.where(made["ended"], 0.0, GAMMA),
        ended=made["ended"],
        next_obs=Obs(made["next"], made["next"]),
    )
    feed(agent, rollout)
    vectors = made["obs"].flatten(0, 1), made["next"].flatten(0, 1)
    trusted, metrics = agent.trust(rollout, *vectors)
    assert not trusted
    assert metrics["model/unexplained"] > agent.cfg.trust_below
    assert agent.model is not None
    model = agent.model
    model.forward = Simulator().forward  # type: ignore[method-assign]
    trusted, metrics = agent.trust(rollout, *vectors)
    assert trusted
    assert metrics["model/unexplained"] < 1e-8


def test_with_a_perfect_model_the_variance_is_three_times_less_and_the_mean_the_same() -> None:
    shared: dict[str, Any] = {"states": 32, "replicas": 400, "seed": 0}
    ac = estimates(partly_trained(8, 0, {"baseline": "value"}), **shared)
    changes = {"estimator": "set_with_baseline", "baseline": "value"}
    found = compare(estimates(partly_trained(8, 0, changes), **shared), ac)
    assert found["less_than_ac"] >= 3
    assert abs(found["distance_in_standard_errors"]) <= 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 4}, "3 actions"),
        ({"k": 0}, "agent.k"),
        ({"horizon": 0}, "agent.horizon"),
        ({"trust_below": 0.0}, "agent.trust_below"),
        ({"td_lambda": 1.5}, "agent.td_lambda"),
        ({"real_weight": -0.1}, "agent.real_weight"),
        ({"critic_batch": 8, "estimator": "reinforce"}, "agent.critic_batch"),
        ({"estimator": "control_variate", "baseline": "informed"}, "agent.baseline"),
        ({"model_memory": 3}, "agent.model_memory"),
    ],
)
def test_bad_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        agent_of(**changes)


def test_other_spaces_are_refused() -> None:
    with pytest.raises(UserError, match="discrete actions"):
        agent_of(replace(SPEC, action=Continuous(2)))


def small(name: str = "wmpg/cartpole", **changes: Any) -> Recipe:
    recipe = recipes.get(name)
    agent: Any = recipe.agent
    if isinstance(agent, WMPGConfig):
        agent = replace(agent, model_steps=4, model_batch=16, trust_below=10.0)
    fields: dict[str, Any] = {
        "agent": agent,
        "log": LogConfig(every_vec_steps=16, tensorboard=False, console=False),
        "evaluation": EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=16),
        "checkpoint": CheckpointConfig(every_vec_steps=0),
        "total_vec_steps": 96,
        "device": "cpu",
        "threads": 1,
    }
    return replace(recipe, **(fields | changes))


def with_control_variate() -> Recipe:
    agent = small().agent
    assert isinstance(agent, WMPGConfig)
    model = WorldModelConfig(end_reward=True)
    changes: dict[str, Any] = {"critic_batch": 8, "critic_horizon": 2, "world_model": model}
    return small(agent=replace(agent, estimator="control_variate", **changes))


def test_the_control_variate_resumes_and_learns_several_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_control_variate()
    whole = weights(api.train(recipe, tmp_path / "whole"))
    api.train(replace(recipe, total_vec_steps=40), tmp_path / "half")
    half = weights(api.resume(tmp_path / "half", total_vec_steps=96))
    assert all(torch.equal(a, b) for a, b in zip(whole, half, strict=True))
    together = api.train_seeds(recipe, 2, tmp_path / "both")
    assert "one after the other" not in capsys.readouterr().err
    for a, b in zip(weights(together[0]), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def weights(result: Any) -> list[Tensor]:
    return [value.clone() for value in result.policy.state_dict().values()]


@pytest.mark.parametrize("name", ["wmpg/cartpole", "ac/cartpole", "mac/cartpole"])
def test_a_resumed_run_equals_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    whole = weights(api.train(small(name), tmp_path / "whole"))
    api.train(small(name, total_vec_steps=40), tmp_path / "half")  # in the middle of a rollout
    half = weights(api.resume(tmp_path / "half", total_vec_steps=96))
    assert all(torch.equal(a, b) for a, b in zip(whole, half, strict=True))


@pytest.mark.parametrize("name", ["wmpg/cartpole", "ac/cartpole", "mac/cartpole"])
def test_several_seeds_learn_what_each_learns_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    together = api.train_seeds(small(name), 2, tmp_path / "both")
    assert "one after the other" not in capsys.readouterr().err
    for seed, result in enumerate(together):
        alone = api.train(small(name, seed=seed), tmp_path / f"alone-{seed}")
        for a, b in zip(weights(result), weights(alone), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.learning
def test_it_learns_to_balance() -> None:
    recipe = replace(recipes.get("wmpg/cartpole"), device="cpu", threads=1)
    assert isinstance(recipe.env, TensorConfig)
    run = until_solved(recipe, 150.0)
    assert run["solved"]
    assert run["imagination_trusted"] > 0.5


def catching(**changes: Any) -> Recipe:
    """WMPG on pictures of 10 x 10."""
    cnn = NatureCNNConfig(channels=(8, 8), kernels=(4, 3), strides=(2, 1))
    agent = WMPGConfig(
        k=2,
        horizon=3,
        model_steps=2,
        model_batch=16,
        model_memory=200,
        trust_below=10.0,
        world_model=WorldModelConfig(reward_values=(-1.0, 0.0, 1.0), net=NET),
        latent=AutoencoderConfig(size=6, cnn=cnn),
    )
    fields: dict[str, Any] = {"env": TensorConfig(task="catch"), "agent": agent}
    return small(**(fields | changes))


def test_pictures_learn_and_resume_exactly(tmp_path: Path) -> None:
    whole = api.train(catching(), tmp_path / "whole")
    api.train(catching(total_vec_steps=44), tmp_path / "half")
    half = api.resume(tmp_path / "half", total_vec_steps=96)
    for a, b in zip(weights(whole), weights(half), strict=True):
        assert torch.equal(a, b)
    text = (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert "latent/unexplained" in text
    assert "model/unexplained" in text


def test_several_seeds_on_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    together = api.train_seeds(catching(total_vec_steps=24), 2, tmp_path / "both")
    assert "one after the other" not in capsys.readouterr().err
    alone = api.train(catching(total_vec_steps=24, seed=1), tmp_path / "alone")
    for a, b in zip(weights(together[1]), weights(alone), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_policy_does_not_change_while_it_collects() -> None:
    recipe = catching()
    env = recipe.env.build(4, 0, CPU)
    build: dict[str, Any] = {"gamma": GAMMA, "total_updates": 10, "seed": 0, "device": CPU}
    agent = recipe.agent.build(env.spec, **build)
    obs = env.reset()
    before = agent.behaviour(obs, torch.full((4, 3), 0.5))
    params = agent.actor(obs)[0]  # type: ignore[attr-defined]
    for _ in range(5):
        step = env.step(before)
        agent.observe(
            Transition(obs, before, step.reward, step.terminated, step.truncated, step.next_obs, {})
        )
    assert torch.equal(params, agent.actor(obs)[0])  # type: ignore[attr-defined]


def test_pictures_need_a_latent_and_vectors_have_none() -> None:
    pictures = replace(SPEC, obs_shape=(1, 10, 10), obs_dtype=torch.uint8)
    with pytest.raises(UserError, match=r"agent\.latent"):
        agent_of(pictures)
    with pytest.raises(UserError, match=r"agent\.latent"):
        agent_of(latent=AutoencoderConfig())


@pytest.mark.parametrize("changes", [{"baseline": "informed"}, {"estimator": "control_variate"}])
def test_what_is_compiled_is_one_graph(changes: dict[str, Any]) -> None:
    agent, rollout = agent_of(**changes), rollout_of(5)
    feed(agent, rollout)
    noise = noise_for(agent, 5)
    plain, _ = agent.targets(rollout, *noise)
    traced, _ = torch.compile(agent.targets, backend="aot_eager", fullgraph=True)(rollout, *noise)
    for a, b in zip(plain, traced, strict=True):
        torch.testing.assert_close(a, b)


def test_imagined_values_are_one_graph() -> None:
    agent, rollout = agent_of(estimator="control_variate", critic_batch=6), rollout_of(5)
    feed(agent, rollout)
    noise = torch.rand(6), torch.rand(6, agent.cfg.critic_horizon, 3)
    plain = agent.imagined_values(*noise)
    traced = torch.compile(agent.imagined_values, backend="aot_eager", fullgraph=True)(*noise)
    torch.testing.assert_close(plain, traced)
    uniform = torch.rand(4, generator=torch.Generator().manual_seed(0))
    loss = torch.compile(agent.model_loss, backend="aot_eager", fullgraph=True)(uniform)
    torch.testing.assert_close(loss.loss, agent.model_loss(uniform).loss)
