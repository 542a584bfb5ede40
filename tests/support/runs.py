"""Small runs, ways to stop them, and comparisons of what they leave behind."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import checkpoint, load_policy, recipes
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import part
from fleetfoot.data import Obs
from fleetfoot.envs.tensor import TensorConfig, TensorEnv
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.rollout import rollout as true_rollout

QUIET = LogConfig(every_vec_steps=10, tensorboard=False, console=False)


def small(name: str = "fast_td3/pendulum", **changes: Any) -> Recipe:
    """A recipe cut down to a second: enough to cross episode ends, evaluations and saves."""
    base = recipes.get(name)
    agent: Any = base.agent
    net = MLPConfig(hidden=(16,))
    fields: dict[str, Any] = {
        "agent": replace(agent, policy_net=net, critic_net=net),
        "log": QUIET,
        "evaluation": EvaluationConfig(every_vec_steps=100, episodes=2, max_vec_steps=30),
        "checkpoint": CheckpointConfig(every_vec_steps=70),
        "pace": replace(base.pace, updates_per_vec_step=base.pace.updates_per_vec_step / 2),
        "replay": ReplayConfig(capacity=8 * 100, n_step=3),
        "num_envs": 8,
        "batch_size": 16,
        "total_vec_steps": 240,
        "device": "cpu",
        "threads": 1,
    }
    return replace(base, **(fields | changes))


def tensors(tree: Any, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, (list, tuple))
        else ()
    )
    return {k: v for key, value in items for k, v in tensors(value, f"{path}/{key}").items()}


def assert_policy_is_stored(folder: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a run on a tensor task gives the policy that the run ended with, and builds no simulator for it."""

    def refuse(*args: object) -> None:
        raise AssertionError("an environment was built")

    with monkeypatch.context() as patch:
        patch.setattr(TensorConfig, "build", refuse)
        policy, spec = load_policy(folder, "last")
    obs = torch.ones(2, *spec.obs_shape)
    with torch.no_grad():
        assert torch.equal(policy(obs), result.policy.eval()(Obs(obs, obs)))


def agent_state(folder: Path) -> dict[str, torch.Tensor]:
    return tensors(checkpoint.load(folder).state["agent"])


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert len(one) > 10
    different = [k for k in one if not torch.equal(one[k], two[k])]
    assert not different


def interrupted_at(step: int) -> Any:
    """A rollout during whose so-many-th step the user presses Ctrl-C."""

    def rollout(*args: Any) -> Any:
        for count, transition in enumerate(true_rollout(*args), start=1):
            if count == step:
                os.kill(os.getpid(), signal.SIGINT)
            yield transition

    return rollout


@part
class SpoiledConfig:
    """The pendulum, until at one step something is no number."""

    at: int = 150
    what: str = "obs"

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig().build(num_envs, seed, device)
        inner, count = env.step, 0

        def step(action: torch.Tensor) -> Any:
            nonlocal count
            count += 1
            out = inner(action)
            if count != self.at:
                return out
            if self.what == "reward":
                return out._replace(reward=out.reward * float("nan"))
            bad = out.obs._replace(
                actor=out.obs.actor * float("inf"), critic=out.obs.critic * float("inf")
            )
            return out._replace(obs=bad, next_obs=bad)

        env.step = step  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig()


def short(name: str, policy_every: int = 2, **changes: Any) -> Recipe:
    fields: dict[str, Any] = {"total_vec_steps": 60, "pace": recipes.get(name).pace}
    recipe = small(name, **(fields | changes))
    agent: Any = recipe.agent
    return replace(recipe, agent=replace(agent, policy_every=policy_every))
