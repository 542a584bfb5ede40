"""Trained policies outside of training: any kind of observation, and no simulator."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fleetfoot import UserError, load_policy, recipes, train
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.policy import TrainedPolicy
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import read_spec, write_spec
from fleetfoot.run.stored import HEADER

CPU = torch.device("cpu")


def small(name: str, **changes: Any) -> Recipe:
    recipe = recipes.get(name)
    fields: dict[str, Any] = {
        "num_envs": 4,
        "batch_size": 8,
        "total_vec_steps": 20,
        "device": "cpu",
        "threads": 1,
        "evaluation": replace(recipe.evaluation, episodes=2, every_vec_steps=0, max_vec_steps=20),
        "log": replace(recipe.log, every_vec_steps=10, console=False, tensorboard=False),
        "replay": replace(recipe.off_policy_replay(), capacity=400),
        "pace": replace(recipe.pace, warmup_vec_steps=10),
    }
    return replace(recipe, **(fields | changes))


@pytest.fixture
def no_environments(monkeypatch: pytest.MonkeyPatch) -> Any:
    """To be called after training: from then on nothing can be built."""

    def refuse(*args: object) -> None:
        raise AssertionError("an environment was built")

    return lambda: monkeypatch.setattr(TensorConfig, "build", refuse)


def test_arrays_and_tensors_of_one_observation_or_many(
    tmp_path: Path, no_environments: Any
) -> None:
    result = train(small("fast_td3/pendulum"), tmp_path / "run")
    no_environments()
    policy, spec = load_policy(tmp_path / "run", which="last")
    assert (spec.num_envs, spec.obs_shape, spec.action) == (1, (3,), Continuous(1))
    batch = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected: Tensor = result.policy.eval()(Obs(batch, batch))

    actions = policy(batch)
    assert isinstance(actions, Tensor)
    assert torch.equal(actions, expected)
    assert not actions.requires_grad
    assert torch.allclose(policy(batch[2]), expected[2], atol=1e-6)
    assert policy(batch[2]).shape == (1,)

    wide = policy(batch.double().numpy())  # numpy's own float, as most simulators hand it out
    assert isinstance(wide, np.ndarray)
    assert (wide.dtype, wide.shape) == (np.float32, (5, 1))
    assert np.array_equal(wide, expected.numpy())
    assert policy(batch[2].numpy()).shape == (1,)
    assert np.allclose(policy(batch[2].tolist()), expected[2].numpy(), atol=1e-6)
    assert policy(batch[:0].numpy()).shape == (0, 1)
    read_only = batch.numpy().copy()
    read_only.flags.writeable = False
    assert np.array_equal(policy(read_only), expected.numpy())

    assert torch.equal(policy(Obs(batch, torch.zeros(5, 7))), expected)
    assert torch.equal(policy({"actor": batch, "critic": torch.zeros(5, 7)}), expected)
    assert isinstance(policy({"actor": batch.numpy()}), np.ndarray)


@pytest.mark.parametrize(
    ("obs", "says"),
    [
        (
            np.zeros(4),
            r"observations of shape \(3,\), alone or as rows of a batch, not \(4,\)",
        ),
        (torch.zeros(2, 2, 3), r"not \(2, 2, 3\)"),
        ({"critic": np.zeros(3)}, r"reads obs\['actor'\], which is not among critic"),
    ],
)
def test_what_is_no_observation_gets_one_line(obs: Any, says: str) -> None:
    spec = EnvSpec("some", 1, obs_shape=(3,), action=Continuous(1), device=CPU)
    with pytest.raises(UserError, match=says) as caught:
        TrainedPolicy(nn.Identity(), spec)(obs)
    assert "\n" not in str(caught.value)


def test_discrete_actions_from_images_are_ints(tmp_path: Path, no_environments: Any) -> None:
    train(small("dqn/catch"), tmp_path / "run")
    no_environments()
    policy, spec = load_policy(tmp_path / "run")
    assert spec.action == Discrete(3)
    image = np.zeros(spec.obs_shape, np.uint8)
    action = policy(image)
    assert type(action) is int
    assert action in range(3)
    assert policy(image[None]).tolist() == [action]
    alone = policy(torch.from_numpy(image))
    assert (alone.shape, alone.dtype, int(alone)) == ((), torch.int64, action)
    with pytest.raises(UserError, match=r"shows bytes \(uint8\), not torch\.float"):
        policy(image / 255)


def test_one_of_several_tasks_by_name_or_number(tmp_path: Path, no_environments: Any) -> None:
    """Critics see more than the policy here, which the policy does not ask for."""
    result = train(small("fast_td3/point-mass"), tmp_path / "run")
    no_environments()
    policy, spec = load_policy(tmp_path / "run", "last")
    assert spec.critic_shape is not None
    assert len(spec.tasks) == 4
    rows = torch.randn(3, *spec.obs_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        second = result.policy.eval()(Obs(rows, rows, torch.full((3,), 1)))
        each = result.policy(Obs(rows, rows, torch.tensor([2, 0, 1])))
    assert torch.equal(policy(rows, task=1), second)
    assert torch.equal(policy(rows, task=spec.tasks[1]), second)
    for one in (np.int64(1), np.array(1), torch.tensor(1), np.array(spec.tasks[1])):
        assert torch.equal(policy(rows, task=one), second)
    assert torch.equal(policy(Obs(rows, rows, torch.full((3,), 1))), second)
    assert torch.equal(policy({"actor": rows, "task": np.array([1, 1, 1])}), second)
    assert torch.equal(policy(rows, task=[spec.tasks[2], 0, 1]), each)
    assert np.allclose(policy(rows[0].numpy(), task=2), each[0].numpy(), atol=1e-6)
    for task, says in (
        (None, r"which task\? policy\(obs, task=\.\.\.\) with "),
        ("up", "there is no task 'up'; there are "),
        (4, "there is no task 4; they are numbered 0 to 3"),
        ([0, 1], "2 tasks for 3 observations"),
    ):
        with pytest.raises(UserError, match=says):
            policy(rows, task=task)


def test_a_run_whose_spec_is_lost_or_torn_is_one_line(tmp_path: Path) -> None:
    train(small("fast_td3/point-mass"), tmp_path / "run")
    (tmp_path / "run" / "spec.json").unlink()
    with pytest.raises(UserError, match=r"has no spec\.json"):
        load_policy(tmp_path / "run")
    (tmp_path / "run" / "spec.json").write_text("{")
    with pytest.raises(UserError, match=r"spec\.json cannot be read"):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize(
    "spec",
    [
        EnvSpec("some", 3, obs_shape=(3,), action=Continuous(2), device=CPU),
        EnvSpec(
            "other",
            4,
            obs_shape=(4, 84, 84),
            action=Discrete(6),
            device=torch.device("cuda:1"),
            critic_shape=(7,),
            obs_dtype=torch.uint8,
            frame_stack=4,
            episode_length=100,
            tasks=("a", "b"),
            task_ids=(0, 1, 0, 1),
            exact_final_obs=False,
            any_stream=False,
            step_seconds=0.02,
        ),
    ],
)
def test_a_spec_is_read_as_it_was_written(spec: EnvSpec, tmp_path: Path) -> None:
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec
    stored = json.loads((tmp_path / "spec.json").read_text())
    fields = {f.name for f in dataclasses.fields(spec)}
    fields -= {"symmetry", "no_symmetry"}  # a matter of training
    assert fields == stored.keys() - set(HEADER)
