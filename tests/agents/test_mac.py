"""MAC: an update computed by hand, and learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.studies.wmpg import until_solved
from fleetfoot import UserError, recipes
from fleetfoot.agents.mac import MAC, MACConfig
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Rollout, Transition
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import SGDConfig

CPU, GAMMA, LR = torch.device("cpu"), 0.9, 0.1
SPEC = EnvSpec("made up", 2, (3,), Discrete(3), CPU)


def agent_of(spec: EnvSpec = SPEC, **changes: Any) -> MAC:
    net, sgd = MLPConfig(hidden=(8,)), SGDConfig(lr=LR)
    fields: dict[str, Any] = {"policy_net": net, "critic_net": net, "normalize_obs": False}
    fields |= {"policy_optim": sgd, "critic_optim": sgd, "critic_steps": 1, "critic_batch": 50}
    build: dict[str, Any] = {"gamma": GAMMA, "total_updates": 10, "seed": 0, "device": CPU}
    return MACConfig(**(fields | changes)).build(spec, **build)


def steps(count: int) -> list[Transition]:
    """The second environment terminates at its second step, the first is truncated at its third."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(count + 1, 2, 3, generator=generator)
    made = []
    for t in range(count):
        terminated, truncated = torch.tensor([False, t == 1]), torch.tensor([t == 2, False])
        action = torch.randint(3, (2,), generator=generator)
        reward = torch.randn(2, generator=generator)
        now, after = Obs(obs[t], obs[t]), Obs(obs[t + 1], obs[t + 1])
        made.append(Transition(now, action, reward, terminated, truncated, after, {}))
    return made


def test_an_update_by_hand() -> None:
    agent, made = agent_of(reward_scale=0.5, entropy_coef=0.1), steps(5)
    for step in made:
        agent.observe(step)
    uniform = torch.linspace(0, 1 - 1e-6, 40)
    with torch.no_grad():  # so that the copy is not the critic
        for parameter in agent.critic_target.parameters():
            parameter.mul_(0.5)
    errors = []
    for u in uniform.tolist():
        t, n = int(u * 8) // 2, int(u * 8) % 2  # four of five vec steps have one after them
        step, obs = made[t], made[t].obs.actor[n]
        if step.truncated[n]:
            continue
        target = 0.5 * step.reward[n]
        if not step.terminated[n]:
            after = made[t + 1].obs.actor[n]
            probs = agent.actor.net(after[None]).softmax(-1)
            target = target + GAMMA * (probs * agent.critic_target(after[None])).sum()
        errors.append((agent.critic(obs[None])[0, step.action[n]] - target.detach()).square())
    loss = agent.critic_loss(uniform)
    torch.testing.assert_close(loss.loss, torch.stack(errors).mean())

    obs = torch.stack([step.obs.actor for step in made])
    rows = obs.flatten(0, 1)
    log_probs = agent.actor.net(rows).log_softmax(-1)
    gain = (log_probs.exp() * agent.critic(rows).detach()).sum(-1).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    wanted = torch.autograd.grad(-gain - 0.1 * entropy, list(agent.actor.parameters()))
    got = torch.autograd.grad(agent.policy_loss(Obs(obs, obs)).loss, list(agent.actor.parameters()))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_the_target_is_copied_after_each_rollout() -> None:
    agent, made = agent_of(), steps(5)
    for step in made:
        agent.observe(step)
    obs = torch.stack([step.obs.actor for step in made])
    rest = (torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5, 2), torch.full((5, 2), GAMMA))
    ended = torch.zeros(5, 2, dtype=torch.bool)
    agent.update(Rollout(Obs(obs, obs), *rest, ended, Obs(obs, obs)))
    pairs = zip(agent.critic.parameters(), agent.critic_target.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_bad_values_are_refused() -> None:
    with pytest.raises(UserError, match="discrete actions"):
        agent_of(replace(SPEC, action=Continuous(1)))
    with pytest.raises(UserError, match=r"agent\.critic_memory"):
        agent_of(critic_memory=3)


@pytest.mark.learning
def test_it_learns_to_balance() -> None:
    recipe = replace(recipes.get("mac/cartpole"), device="cpu", threads=1)
    assert until_solved(recipe, 150.0)["solved"]
