"""Runs of on-policy agents: several seeds, resume, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import api, checkpoint, recipes
from fleetfoot.agents.daa import DAAConfig
from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.cli.main import dispatch
from fleetfoot.data import Obs, Transition
from fleetfoot.envs.tensor import TensorConfig, TensorEnv
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig, FromPolicyConfig
from fleetfoot.log.timer import StepTimer
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.rollouts import RolloutConfig, Rollouts
from fleetfoot.rollout import rollout
from fleetfoot.run.build import build_parts
from fleetfoot.topologies import synchronous as synchronous_module
from fleetfoot.topologies.apex.loop import ActorLearnerConfig
from fleetfoot.topologies.multi_seed.loop import train_batched
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.runs import QUIET, agent_state, assert_same, interrupted_at, tensors

CPU = torch.device("cpu")
LINEAR = AdamConfig(lr=1e-3, lr_end=0.0, schedule="linear", max_grad_norm=0.5)


def small(
    name: str = "ppo/pendulum", agent: dict[str, Any] | None = None, **changes: Any
) -> Recipe:
    """Four updates, and five vec steps of a rollout that is never full."""
    base, net = recipes.get(name), MLPConfig(hidden=(16,), activation=("tanh",))
    assert isinstance(base.agent, PPOConfig)
    changed: dict[str, Any] = {"epochs": 2, "minibatches": 3, "policy_net": net, "critic_net": net}
    # Whatever the recipe has: a rate that adapts, and does not depend on the length of the run.
    changed |= {"target_kl": 0.01, "policy_optim": AdamConfig(lr=1e-3, max_grad_norm=1.0)}
    fields: dict[str, Any] = {
        "agent": replace(base.agent, **(changed | (agent or {}))),
        "log": QUIET,
        "evaluation": EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=5),
        "checkpoint": CheckpointConfig(every_vec_steps=25),
        "replay": RolloutConfig(length=10),
        "num_envs": 4,
        "total_vec_steps": 45,
        "device": "cpu",
        "threads": 1,
    }
    return replace(base, **(fields | changes))


def test_one_update_is_owed_for_each_rollout_whatever_its_length() -> None:
    for length in (1, 3, 24, 49, 103, 2048):
        recipe = small(replay=RolloutConfig(length=length), total_vec_steps=6 * length - 1)
        pace = recipe.pace.build()
        owed = [pace.owed() for _ in range(3 * length)]
        assert [i + 1 for i, updates in enumerate(owed) if updates] == [
            length,
            2 * length,
            3 * length,
        ]
        assert recipe.total_updates() == 5
        assert recipe.batch_size == 4 * length


SHORT = (
    *("log", "evaluation", "checkpoint", "replay", "num_envs"),
    *("total_vec_steps", "device", "threads"),
)


def imagining(estimator: str) -> Recipe:
    """DAA, which imagines from the third of its four updates on."""
    base, net = recipes.get("daa/pendulum"), MLPConfig(hidden=(16,), activation=("tanh",))
    assert isinstance(base.agent, DAAConfig)
    fields: dict[str, Any] = {"epochs": 2, "minibatches": 3, "policy_net": net, "critic_net": net}
    fields |= {"actions": 2, "horizon": 3, "start_env_steps": 80, "model_batch": 8}
    fields |= {"model_steps": 4, "first_model_steps": 4, "estimator": estimator}
    changed = {name: getattr(small(), name) for name in SHORT}
    return replace(base, agent=replace(base.agent, **fields), **changed)


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(imagining("model_actions"), id="daa"),
        pytest.param(imagining("q_actions"), id="daa with q"),
        pytest.param(imagining("model_states"), id="daa with states"),
        pytest.param(small(), id="adaptive rate"),
        pytest.param(small("ppo/cartpole"), id="discrete"),
        pytest.param(
            small(
                agent={
                    "target_kl": None,
                    "policy_optim": LINEAR,
                    "normalize_advantage": "minibatch",
                }
            ),
            id="linear rate",
        ),
        pytest.param(
            small(
                agent={"target_kl": None},
                env=TensorConfig(task="point_mass", privileged=True, num_tasks=2),
            ),
            id="tasks, privileged",
        ),
    ],
)
def test_each_seed_learns_what_it_learns_alone(tmp_path: Path, recipe: Recipe) -> None:
    seeds = [3, 4]
    folders = [tmp_path / f"seed-{seed}" for seed in seeds]
    together = train_batched(recipe, seeds, folders, [None, None])
    for seed, result in zip(seeds, together, strict=True):
        alone = api.train(replace(recipe, seed=seed), tmp_path / f"alone-{seed}")
        assert result.counters.updates == alone.counters.updates == 4
        theirs = alone.policy.state_dict()
        for name, weight in result.policy.state_dict().items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5)
        memories = [tensors(checkpoint.load(r.folder).state["replay"]) for r in (result, alone)]
        assert memories[0].keys() == memories[1].keys()
        for name, rows in memories[0].items():
            torch.testing.assert_close(rows, memories[1][name], rtol=1e-3, atol=1e-3)
    first, second = (result.policy.state_dict() for result in together)
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "recipe",
    [small(), small("ppo/cartpole"), imagining("model_actions")],
    ids=["ppo", "discrete", "daa"],
)
def test_a_run_goes_on_exactly_in_the_middle_of_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    api.train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(synchronous_module, "rollout", interrupted_at(36))
        stopped = api.train(recipe, tmp_path / "cut")
    assert stopped.counters.updates == 3
    assert checkpoint.load(stopped.folder).state["replay"]["filled"] == 6
    assert api.resume(tmp_path / "cut").finished
    one, two = (tensors(checkpoint.load(tmp_path / k).state) for k in ("whole", "cut"))
    assert_same(one, two)


def test_several_seeds_go_on_in_the_middle_of_a_rollout(tmp_path: Path) -> None:
    recipe = small()
    api.train_seeds(recipe, 2, tmp_path / "whole")
    api.train_seeds(replace(recipe, total_vec_steps=26), 2, tmp_path / "cut")
    api.resume_seeds(tmp_path / "cut", total_vec_steps=45)
    for seed in (recipe.seed, recipe.seed + 1):
        one, other = (agent_state(tmp_path / run / f"seed-{seed}") for run in ("whole", "cut"))
        for key, weight in one.items():
            torch.testing.assert_close(weight, other[key], rtol=1e-5, atol=1e-6)


def test_a_rollout_that_is_lost_begins_anew() -> None:
    recipe = small()
    parts = build_parts(recipe)
    parts.pace.vec_steps = 26
    state = parts.state_dict(with_replay=False) | {"vec_steps": 26, "updates": 2}
    assert "replay" not in state
    parts.load_state_dict(state)
    owed = [parts.pace.owed() for _ in range(20)]
    assert [i + 1 for i, updates in enumerate(owed) if updates] == [10, 20]
    assert parts.replay.size == 0
    parts.close()


@pytest.mark.parametrize("name", ["daa", "wmpg", "mac"])
def test_what_an_agent_remembers_does_not_go_on_in_a_new_simulator(name: str) -> None:
    """A world model would learn that robots jump."""
    recipe = imagining("model_actions") if name == "daa" else recipes.get(f"{name}/cartpole")
    parts = build_parts(replace(recipe, device="cpu", threads=1))
    steps = rollout(
        parts.env.step, parts.agent.behaviour, parts.explorer, parts.obs, StepTimer(CPU)
    )
    for _ in range(3):
        parts.append(next(steps))
    memory = parts.agent.memory  # type: ignore[attr-defined]
    memory.ended.zero_()
    state = parts.state_dict(with_replay=True) | {"env": None, "vec_steps": 3, "updates": 0}
    parts.load_state_dict(state)
    assert memory.ended.all(1).nonzero().flatten().tolist() == [2]
    parts.close()


def test_actions_are_stored_as_drawn_and_executed_clipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[torch.Tensor] = []
    true_step = TensorEnv.step

    def step(self: TensorEnv, action: torch.Tensor) -> Any:
        executed.append(action)
        return true_step(self, action)

    monkeypatch.setattr(TensorEnv, "step", step)
    recipe = small(agent={"std": 3.0}, total_vec_steps=9)
    result = api.train(recipe, tmp_path / "run")
    stored = checkpoint.load(result.folder).state["replay"]["tensors"]["action"][:9]
    assert stored.abs().max() > 1.0
    torch.testing.assert_close(torch.stack(executed[:9]), stored.clamp(-1.0, 1.0))


def test_the_policy_stays_the_same_while_it_collects() -> None:
    parts = build_parts(small(agent={"normalize_obs": True}))
    obs = parts.obs
    noise = torch.zeros(4, 1)
    before = parts.agent.behaviour(obs, noise)
    step = parts.env.step(before.detach())
    shifted = Obs(step.obs.actor + 5.0, step.obs.actor + 5.0)
    fresh = Transition(
        shifted, before, step.reward, step.terminated, step.truncated, step.next_obs, {}
    )
    for _ in range(10):
        parts.append(fresh)
    assert torch.equal(parts.agent.behaviour(obs, noise), before)
    assert isinstance(parts.replay, Rollouts)
    parts.agent.update(parts.replay.gather())
    assert not torch.allclose(parts.agent.behaviour(obs, noise), before)
    parts.close()


def refused(recipe: Recipe, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        recipe.check()
    assert "\n" not in str(caught.value)


def test_what_does_not_go_together_is_refused_in_one_line() -> None:
    ppo, td3 = recipes.get("ppo/pendulum"), recipes.get("fast_td3/pendulum")
    refused(
        replace(ppo, replay=ReplayConfig(), batch_size=8),
        "PPOConfig learns on-policy, from rollouts",
    )
    refused(replace(td3, replay=RolloutConfig()), "FastTD3Config learns off-policy, from a replay")
    refused(replace(ppo, explorer=AsSampledConfig()), "needs its policy's own samples")
    refused(replace(td3, explorer=FromPolicyConfig()), "stores them as drawn")
    refused(
        replace(ppo, topology=ActorLearnerConfig()), "ActorLearnerConfig the newest policy does not"
    )
    refused(
        replace(ppo, topology=SynchronousConfig(overlap=True)),
        "every vec step: use --topology.no-overlap",
    )
    with pytest.raises(UserError, match="learns from rollouts: use --topology SynchronousConfig"):
        ppo.off_policy_replay()


def test_pace_and_batch_size_of_rollouts_are_no_options() -> None:
    for option in (["--pace.updates-per-vec-step", "2"], ["--batch-size", "64"]):
        with pytest.raises(UserError, match="there is no option"):
            dispatch(["train", "ppo/pendulum", *option])
    made = replace(small(), pace=PaceConfig(updates_per_vec_step=3.0), batch_size=7)
    assert (made.pace.updates_per_vec_step, made.batch_size) == (0.1, 40)


def test_more_minibatches_than_rows_are_refused(tmp_path: Path) -> None:
    recipe = small(agent={"minibatches": 41}, total_vec_steps=10)
    with pytest.raises(UserError, match="40 rows has no 41 minibatches"):
        api.train(recipe, tmp_path / "run")
