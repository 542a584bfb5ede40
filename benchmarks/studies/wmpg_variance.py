"""The variance of WMPG's gradient estimators at the same states and weights, with the simulator as the world model.

The cartpole observes its whole state, so the simulator itself can stand in for a learned model: what is left is the
variance of the estimators, without any error of a model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.studies.wmpg import training
from fleetfoot import recipes
from fleetfoot.agents.wmpg import WMPG, WMPGConfig
from fleetfoot.envs.tensor import CartPole
from fleetfoot.nn.world_model import Prediction
from fleetfoot.ops.without_replacement import gumbel_top_k, set_coefficients
from fleetfoot.run.build import build_parts

ESTIMATORS: dict[str, dict[str, Any]] = {
    "REINFORCE": {"estimator": "reinforce", "baseline": "none"},
    "AC": {"estimator": "reinforce", "baseline": "value"},
    "REINFORCE, informed baseline": {"estimator": "reinforce", "baseline": "informed"},
    "set, no baseline": {"estimator": "set", "baseline": "none"},
    "WMPG": {"estimator": "set_with_baseline", "baseline": "value"},
    "WMPG, 4 trajectories": {"estimator": "set_with_baseline", "trajectories": 4},
    "WMPG, all imagined": {"estimator": "set_with_baseline", "use_real_for_executed": False},
}


class Simulator(nn.Module):
    """The cartpole in the place of a world model."""

    def forward(self, obs: Tensor, action: Tensor) -> Prediction:
        state, reward, terminated = CartPole().advance(obs, action.argmax(-1))
        return Prediction(state, reward, 1.0 - terminated.float())


def wmpg_variance(
    updates: int = 12, states: int = 64, replicas: int = 1_000, seed: int = 0
) -> dict[str, Any]:
    """Total variance of the gradient of a partly trained policy, and whether all estimators have the same mean.

    :param updates: Updates of AC before, so that policy and critic are neither new nor finished.
    :param states: States of the last rollout that the gradient is a mean over.
    :param replicas: Independent estimates for each estimator.
    :param seed: Of everything.
    """
    gradients = {
        name: estimates(partly_trained(updates, seed, changes), states, replicas, seed)
        for name, changes in ESTIMATORS.items()
    }
    reference = gradients["AC"]
    rows = [{"estimator": name, **compare(g, reference)} for name, g in gradients.items()]
    return {"states": states, "replicas": replicas, "estimators": rows}


def partly_trained(updates: int, seed: int, changes: dict[str, Any]) -> tuple[WMPG, Tensor]:
    """An agent with the weights that AC has after so many updates, and states it has come across."""
    recipe = replace(recipes.get("ac/cartpole"), seed=seed, device="cpu", threads=1)
    parts, seen = build_parts(recipe), []
    for fresh, _ in training(parts):
        seen.append(fresh.obs.actor)
        if parts.agent.updates == updates:
            break
    parts.close()
    assert isinstance(recipe.agent, WMPGConfig)
    spec, device = parts.env.spec, parts.device
    build: dict[str, Any] = {"gamma": recipe.gamma, "total_updates": 1, "device": device}
    agent = replace(recipe.agent, **changes).build(spec, seed=seed, **build)
    source: Any = parts.agent
    agent.actor.load_state_dict(source.actor.state_dict())
    agent.critic.load_state_dict(source.critic.state_dict())
    agent.model = Simulator()  # type: ignore[assignment]
    return agent, torch.cat(seen)


@torch.no_grad()
def estimates(made: tuple[WMPG, Tensor], states: int, replicas: int, seed: int) -> Tensor:
    """Gradients [replicas, parameters] of the mean over the same states, each from new random numbers."""
    agent, seen = made
    cfg, generator = agent.cfg, torch.Generator().manual_seed(seed)
    obs = seen[torch.randperm(len(seen), generator=generator)[:states]]
    jacobian = logits_jacobian(agent, obs)  # [states, actions, parameters]
    found = []
    for _ in range(replicas // 100):
        rows = obs.repeat(100, 1)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(len(rows), *shape, generator=generator)  # noqa: B023

        log_probs, count = agent.log_probs(rows), agent.num_actions
        executed = agent.actor.sample((log_probs,), uniform(count))
        steps = torch.full((len(rows),), cfg.horizon)
        # What really happened: the simulator again, with random numbers of its own.
        paths = executed.view(-1, 1, 1), steps, uniform(1, cfg.horizon, count)
        real = agent.returns_in_model(rows, *paths).squeeze(-1)
        actions = gumbel_top_k(log_probs, uniform(count), agent.k, first=executed)
        noise = uniform(1, cfg.trajectories, cfg.horizon, count)
        f, baseline = agent.imagine(rows, actions, real, agent.value(rows), steps, noise)
        f = f - baseline.unsqueeze(-1)
        own = cfg.estimator == "set_with_baseline"
        c = set_coefficients(log_probs, actions, f, own_baseline=own)
        # The gradient of log pi(a) with respect to the logits is the unit vector of a minus pi.
        at_logits = torch.zeros_like(log_probs).scatter(-1, actions, c)
        at_logits -= c.sum(-1, keepdim=True) * log_probs.exp()
        found.append(at_logits.view(100, -1) @ jacobian.flatten(0, 1) / states)
    return torch.cat(found)


def logits_jacobian(agent: WMPG, obs: Tensor) -> Tensor:
    """[states, actions, parameters]."""
    parameters = list(agent.actor.parameters())
    with torch.enable_grad():
        logits = agent.actor.net(agent.norms.actor(obs))
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(x, parameters, retain_graph=True)])
            for x in logits.flatten()
        ]
    return torch.stack(rows).view(*logits.shape, -1)


def compare(gradients: Tensor, reference: Tensor) -> dict[str, float]:
    """Total variance, how many times less it is than the reference's, and the distance of the means along the mean
    gradient in standard errors."""
    variance = gradients.var(0).sum()
    direction = nn.functional.normalize(gradients.mean(0) + reference.mean(0), dim=0)
    one, other = gradients @ direction, reference @ direction
    error = (one.var() / len(one) + other.var() / len(other)).sqrt()
    return {
        "variance": float(variance),
        "less_than_ac": float(reference.var(0).sum() / variance),
        "mean": float(one.mean()),
        "distance_in_standard_errors": float((one.mean() - other.mean()) / error.clamp(min=1e-12)),
    }
