from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot import recipes, train
from fleetfoot.agents.brc import BRC, BRCConfig
from fleetfoot.api import load_policy
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import part
from fleetfoot.data import Continuous, Discrete, EnvSpec, Transition
from fleetfoot.envs.tensor import Pendulums, TensorConfig, TensorEnv
from fleetfoot.errors import UserError
from fleetfoot.evaluate import Evaluation, EvaluationConfig
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamWConfig
from fleetfoot.recipe import Recipe
from oracles import categorical as oracle
from support.made_up import CPU, make_batch, make_spec, make_transition
from support.train_until import train_until

TINY = BroNetConfig(width=16, blocks=1)
SMALL = BRCConfig(num_atoms=11, task_embedding=4, policy_net=TINY, critic_net=TINY)
TASKS: dict[str, Any] = {"tasks": ("a", "b"), "task_ids": (0, 1, 0, 1)}


def make_agent(cfg: BRCConfig = SMALL, seed: int = 0, **spec: Any) -> Any:
    return cfg.build(make_spec(**spec), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def ending(spec: EnvSpec, seed: int) -> Transition:
    """A vec step that is the last of every episode."""
    return make_transition(spec, seed)._replace(truncated=torch.ones(4, dtype=torch.bool))


def weights(agent: BRC) -> dict[str, torch.Tensor]:
    names = ("gaussian", "critic", "critic_target", "alpha")
    return {
        f"{name}.{key}": p.detach().clone()
        for name in names
        for key, p in getattr(agent, name).named_parameters()
    }


def adamw(weight: Any, gradient: Any, lr: float, decay: float) -> Any:
    """The first step."""
    return weight * (1 - lr * decay) - lr * gradient / (np.abs(gradient) + 1e-8)


def test_one_update_by_hand() -> None:
    """Linear networks, two rows of two tasks; the equations again, one after the other."""
    lr, decay, tau, alpha = 0.01, 0.1, 0.25, 0.5
    optim = AdamWConfig(lr=lr, lr_end=lr, weight_decay=decay)
    linear = MLPConfig(hidden=())
    cfg = replace(SMALL, num_atoms=5, v_max=2.0, tau=tau, alpha=alpha, task_embedding=2)
    cfg = replace(cfg, policy_net=linear, critic_net=linear)
    cfg = replace(cfg, policy_optim=optim, critic_optim=optim)
    shape: dict[str, Any] = {"obs_shape": (2,), "action": Continuous(1)} | TASKS
    spec = make_spec(**shape)
    agent = make_agent(cfg, **shape)
    fresh = ending(spec, 3)
    agent.observe(fresh)
    batch = make_batch(spec, rows=2, seed=5)
    with torch.no_grad():  # the copy's vectors are its own
        agent.critic_target.encoder.embed.weight.add_(torch.tensor([[0.3, -0.2], [0.1, 0.4]]))
    before = copy.deepcopy(agent)
    draws = {n: getattr(before, f"{n}_noise").normal(2, 1) for n in ("critic", "policy")}
    found = agent.update(batch).metrics

    # (1): each episode had one step, which goes on for ever: G = 10 r
    largest = [10 * fresh.reward[k::2].abs().max().item() for k in range(2)]
    reward = [
        batch.reward[k].item() * 2.0 / (largest[k] + alpha * 0.5 / (2 * 0.1)) for k in range(2)
    ]
    # (2) and (3)
    unit = torch.nn.functional.normalize
    table = before.critic.encoder.embed.weight
    e, e_target = unit(table.detach()), unit(before.critic_target.encoder.embed.weight)
    with torch.no_grad():
        said = before.gaussian.net(torch.cat([batch.next_obs.actor, e], 1))
        log_std = -10 + 6 * (1 + torch.tanh(said[:, 1:]))
        action, log_prob = squashed_sample(said[:, :1], log_std, draws["critic"])
        logits = before.critic_target.net(torch.cat([batch.next_obs.actor, e_target, action], 1))
        probs = logits.softmax(-1).mean(0).double().numpy()
    z = np.linspace(-2, 2, 5)
    target = np.zeros((2, 5))
    for row in range(2):
        soft = z - alpha * log_prob[row].item()
        y = np.clip(reward[row] + batch.discount[row].item() * soft, -2, 2)
        for mass, place in zip(probs[row], y, strict=True):
            target[row] += mass * np.clip(1 - np.abs(place - z), 0, 1)
    np.testing.assert_allclose(target.sum(1), 1.0, atol=1e-6)
    # (4), with the gradient into the vectors, and (5)
    x = torch.cat([batch.obs.actor, unit(table), batch.action], 1)
    log_probs = before.critic.net(x).log_softmax(-1)
    loss = -(batch.weight * (torch.tensor(target) * log_probs).sum(-1)).mean(-1).sum()
    assert found["critic/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    mine, theirs = list(before.critic.parameters()), list(agent.critic.parameters())
    gradients = torch.autograd.grad(loss, mine)
    assert any(p is table for p in mine)
    old_targets = before.critic_target.parameters()
    for old, gradient, new, slow, moved in zip(
        mine, gradients, theirs, old_targets, agent.critic_target.parameters(), strict=True
    ):
        wanted = adamw(old.detach().numpy(), gradient.numpy(), lr, decay)
        np.testing.assert_allclose(new.detach().numpy(), wanted, atol=1e-5)
        mixed = (1 - tau) * slow.numpy() + tau * wanted
        np.testing.assert_allclose(moved.numpy(), mixed, atol=1e-5)
    # (6), with the new critic and its vectors
    e = unit(agent.critic.encoder.embed.weight.detach())
    said = before.gaussian.net(torch.cat([batch.obs.actor, e], 1))
    log_std = -10 + 6 * (1 + torch.tanh(said[:, 1:]))
    action, log_prob = squashed_sample(said[:, :1], log_std, draws["policy"])
    q = agent.critic.net(torch.cat([batch.obs.actor, e, action], 1)).softmax(-1).mean(0)
    policy_loss = (alpha * log_prob - (q * torch.tensor(z).float()).sum(-1)).mean()
    parameters = list(before.gaussian.net.parameters())
    for old, gradient, new in zip(
        parameters,
        torch.autograd.grad(policy_loss, parameters),
        agent.gaussian.net.parameters(),
        strict=True,
    ):
        wanted = adamw(old.detach().numpy(), gradient.numpy(), lr, decay)
        np.testing.assert_allclose(new.detach().numpy(), wanted, atol=1e-5)
    # (7): the entropy is far above or below H* = -0.5, and the first step of Adam is lr long
    entropy = -log_prob.mean().item()
    change = agent.alpha.log_alpha.item() - before.alpha.log_alpha.item()
    assert change == pytest.approx(-3e-4 * np.sign(entropy + 0.5), rel=1e-3)


def test_targets_keep_all_mass_and_two_equal_heads_are_one() -> None:
    spec = make_spec(**TASKS)
    agent = make_agent(**TASKS)
    agent.observe(ending(spec, 0))
    batch = make_batch(spec, rows=32)
    batch = batch._replace(reward=30 * batch.reward)  # many targets lie outside of the support
    noise = torch.randn(32, 2)
    target = agent.target_distribution(batch, noise)
    torch.testing.assert_close(target.sum(-1), torch.ones(32))
    assert bool((target >= 0).all())

    with torch.no_grad():
        for p in agent.critic_target.net.parameters():
            p[1] = p[0]
    both = agent.target_distribution(batch, noise)
    assert not torch.allclose(both, target)
    alone = make_agent(replace(SMALL, num_critics=1), **TASKS)
    alone.gaussian.load_state_dict(agent.gaussian.state_dict())
    assert alone.reward_scale is not None
    assert agent.reward_scale is not None
    alone.reward_scale.load_state_dict(agent.reward_scale.state_dict())
    with torch.no_grad():
        for p, q in zip(
            alone.critic_target.parameters(), agent.critic_target.parameters(), strict=True
        ):
            p.copy_(q if p.shape == q.shape else q[:1])
    torch.testing.assert_close(alone.target_distribution(batch, noise), both)


def test_heads_are_averaged_as_probabilities() -> None:
    """Neither as logits nor by the smaller value: the mean of both, projected by the oracle."""
    agent = make_agent(replace(SMALL, normalize_reward=False))
    batch, noise = make_batch(make_spec()), torch.randn(6, 2)
    with torch.no_grad():
        action, log_prob = agent.gaussian.sample(batch.next_obs, noise)
        probs = agent.critic_target(batch.next_obs, action).softmax(-1).mean(0)
        soft = agent.z - 0.1 * log_prob.unsqueeze(1)
        y = (batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * soft).clamp(-10, 10)
    z = agent.z.tolist()
    wanted = [oracle.project(p, at, z) for p, at in zip(probs.tolist(), y.tolist(), strict=True)]
    got = agent.target_distribution(batch, noise).numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_only_the_critic_teaches_the_task_vectors() -> None:
    agent = make_agent(**TASKS)
    batch, noise = make_batch(make_spec(**TASKS)), torch.randn(6, 2)
    table = agent.critic.encoder.embed.weight
    assert agent.gaussian.encoder.embed.table.weight is table
    assert all(p is not table for p in agent.step_policy.parameters)
    with torch.no_grad():
        table.mul_(3.0)
    features = agent.critic.encoder(batch.obs)[:, -4:]
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(6))

    # The critic reads its vectors in the policy's loss too, so it is frozen there; the policy's own way is cut.
    loss = agent.critic_loss(batch, noise).loss
    (gradient,) = torch.autograd.grad(loss, [table])
    assert bool((gradient.norm(dim=-1) > 0).all())
    _, log_prob = agent.gaussian.sample(batch.obs, noise)
    (gradient,) = torch.autograd.grad(log_prob.sum(), [table], allow_unused=True)
    assert gradient is None
    before = table.detach().clone()
    agent.update_policy(batch.obs)
    assert torch.equal(table, before)
    agent.update_critic(batch)
    assert not torch.equal(table, before)


def test_one_task_has_no_vector_and_rewards_of_any_size_teach_the_same() -> None:
    agents = [make_agent(replace(SMALL, alpha=1e-6)) for _ in range(2)]
    assert agents[0].critic.encoder.embed is None
    spec = make_spec()

    def times(by: float, row: Any) -> Any:
        return row._replace(reward=by * row.reward)

    for seed in range(5):
        for agent, by in zip(agents, (1.0, 1_000.0), strict=True):
            agent.observe(times(by, ending(spec, seed)))
            agent.update(times(by, make_batch(spec, seed=seed)))
    one, other = (weights(agent) for agent in agents)
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-5, rtol=0.0)


def test_saved_and_restored_agents_go_on_exactly() -> None:
    spec = make_spec(**TASKS)
    one, two = make_agent(**TASKS), make_agent(seed=1, **TASKS)

    def go_on(agent: BRC, seed: int) -> None:
        agent.observe(ending(spec, seed) if seed % 2 else make_transition(spec, seed))
        agent.update(make_batch(spec, seed=seed))

    for seed in range(3):
        go_on(one, seed)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 7):
        go_on(one, seed)
        go_on(two, seed)
    assert two.updates == 7
    second = weights(two)
    assert all(torch.equal(value, second[name]) for name, value in weights(one).items())


def test_the_published_settings() -> None:
    recipe = recipes.get("brc/dogs")
    assert isinstance(recipe.agent, BRCConfig)
    assert (recipe.num_envs, recipe.batch_size, recipe.off_policy_replay().capacity) == (
        4,
        1_024,
        4_000_000,
    )
    assert recipe.agent.critic_net == BroNetConfig(width=4096, blocks=2)
    assert recipe.agent.critic_optim.weight_decay == 1e-4
    pace = recipe.pace.build()
    assert [pace.owed() for _ in range(5_001)][4_998:] == [0, 2, 2]
    assert recipes.get("brc/mt50").num_envs == 50


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="atoms"):
        make_agent(replace(SMALL, num_atoms=1))
    with pytest.raises(UserError, match="v_max"):
        make_agent(replace(SMALL, v_max=0.0))
    with pytest.raises(UserError, match="gamma below 1"):
        SMALL.build(make_spec(), gamma=1.0, total_updates=1, seed=0, device=CPU)
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(action=Discrete(3))


def short(**changes: Any) -> Recipe:
    recipe = recipes.get("brc/pendulums")
    agent = replace(SMALL, **changes)
    return replace(
        recipe,
        agent=agent,
        total_vec_steps=6,
        pace=replace(recipe.pace, warmup_vec_steps=2),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=4, max_vec_steps=3),
        checkpoint=CheckpointConfig(),
        threads=1,
        log=replace(recipe.log, console=False),
    )


def test_a_new_task_starts_from_another_runs_networks(tmp_path: Path) -> None:
    old = train(short(), tmp_path / "old")
    shape: dict[str, Any] = {"action": Continuous(1)}
    cfg = replace(SMALL, start_from=str(tmp_path / "old"))
    agent, alone = make_agent(cfg, **shape), make_agent(replace(cfg, start_from="nowhere"), **shape)
    then = dict(old.policy.named_parameters())
    for name, value in agent.policy.named_parameters():
        if "encoder.embed." in name:
            assert value.shape == (1, 4)  # one new vector for one new task
            assert torch.equal(value, dict(alone.policy.named_parameters())[name])
        else:
            assert torch.equal(value, then[name])
    assert torch.equal(agent.critic.encoder.embed.weight, agent.critic_target.encoder.embed.weight)
    agent.observe(make_transition(make_spec(**shape)))
    agent.update(make_batch(make_spec(**shape)))

    # Once it has begun, a run no longer needs the one it started from.
    new = replace(short(start_from=str(tmp_path / "old")), env=TensorConfig(task="pendulum"))
    train(new, tmp_path / "new")
    (tmp_path / "old").rename(tmp_path / "moved")
    load_policy(tmp_path / "new")
    fresh = make_agent(cfg, **shape)
    with pytest.raises(UserError, match="start_from"):
        fresh.observe(make_transition(make_spec(**shape)))
    fresh.load_state_dict(agent.state_dict())
    fresh.observe(make_transition(make_spec(**shape)))
    with pytest.raises(UserError, match="of the same sizes"):
        make_agent(replace(cfg, start_from=str(tmp_path / "moved")), obs_shape=(5,), **shape)


@part
class VariantConfig:
    """One of the recipe's pendulums alone."""

    task: int

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        task = Pendulums(torch.full((num_envs,), self.task, device=device))
        none = torch.zeros(num_envs, dtype=torch.int64, device=device)
        return TensorEnv(f"pendulum-{self.task}", task, 1, seed, none)

    def for_evaluation(self) -> VariantConfig:
        return self


def quiet(recipe: Recipe, **changes: Any) -> Recipe:
    assert isinstance(recipe.agent, BRCConfig)
    agent = replace(recipe.agent, **changes)
    return replace(recipe, agent=agent, log=replace(recipe.log, console=False), threads=1)


def alone(task: int) -> Recipe:
    """The same steps of one task, and batches with as many of its rows."""
    recipe = replace(recipes.get("brc/pendulums"), env=VariantConfig(task=task), num_envs=2)
    episodes = replace(recipe.evaluation, episodes=10)
    return replace(quiet(recipe), batch_size=64, evaluation=episodes)


def best_returns(folder: Path) -> list[float]:
    """Of each task, in units of its rewards."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "eval/return/task-0" in row]
    return [max(row[f"eval/return/task-{k}"] for row in rows) / 10**k for k in range(4)]


@pytest.mark.learning
@pytest.mark.slow
def test_learns_one_pendulum_whose_rewards_are_in_the_thousands(tmp_path: Path) -> None:
    assert train_until(alone(3), tmp_path / "run", -250_000).best_return >= -250_000


@pytest.mark.slow
@pytest.mark.learning
def test_four_tasks_are_learned_together_as_well_as_alone(tmp_path: Path) -> None:
    """Rewards 1, 10, 100 and 1,000 times as large. A random policy returns about -1,200 times that."""
    train(quiet(recipes.get("brc/pendulums")), tmp_path / "together")
    # With a support that holds the returns of all tasks.
    unscaled = {"normalize_reward": False, "v_max": 330_000.0}
    train(quiet(recipes.get("brc/pendulums"), **unscaled), tmp_path / "unscaled")
    # Tasks 0 and 2 move alike, and so do 1 and 3.
    singly = [train(alone(k), tmp_path / f"{k}").best_return / 10**k for k in (0, 3)]

    def share(folder: str) -> list[float]:
        found = best_returns(tmp_path / folder)
        return [(found[k] + 1_200) / (singly[k % 2] + 1_200) for k in range(4)]

    assert abs(singly[0] - singly[1]) < 100  # the size of rewards does not matter
    assert min(share("together")) >= 0.8
    assert max(share("unscaled")[:3]) < 0.5  # drowned by the task that pays most


def test_evaluation_tells_tasks_apart() -> None:
    found = Evaluation(
        torch.tensor([1.0, 10.0, 3.0]),
        torch.ones(3),
        torch.tensor([1.0, 0.0, 0.0]),
        tasks=("a", "b", "c"),
        task_ids=(0, 1, 0),
    ).metrics()
    assert (found["eval/return/a"], found["eval/return/b"]) == (2.0, 10.0)
    assert (found["eval/success/a"], found["eval/success/b"]) == (0.5, 0.0)
    assert "eval/return/c" not in found
