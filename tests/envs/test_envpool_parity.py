"""EnvPool's dm_control tasks beside dm_control itself: the same state and action give the same observation and reward.

EnvPool does not tell its state, so tasks are compared whose observations give it away. Its MuJoCo is older (3.6), so
the state is set anew before every step, and what is left is the difference of one step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.pool import TaskKind

suite = pytest.importorskip("dm_control.suite", exc_type=ImportError)
pytest.importorskip("envpool")

Parts = dict[str, NDArray[np.float64]]
State = tuple[NDArray[np.float64], NDArray[np.float64]]  # qpos, qvel
CPU = torch.device("cpu")


def cartpole(seen: Parts) -> State:
    x, cos, sin = seen["position"]
    return np.array([x, np.arctan2(sin, cos)]), seen["velocity"]


def cheetah(seen: Parts) -> State:
    return np.append(0.0, seen["position"]), seen["velocity"]


def walker(seen: Parts) -> State:
    """Its bodies turn in a plane: the angle of a joint is that between two of them."""
    cos, sin = seen["orientations"].reshape(7, 2).T
    angle = np.arctan2(sin, cos)  # torso, then thigh, leg and foot of each side
    torso, right, left = angle[0], angle[1:4], angle[4:7]
    joints = [-np.diff(side, prepend=torso) for side in (right, left)]
    return np.concatenate([[seen["height"][0] - 1.3, 0.0, torso], *joints]), seen["velocity"]


def humanoid(seen: Parts) -> State:
    return seen["position"], seen["velocity"]


def split(task: str, row: NDArray[Any]) -> Parts:
    return {
        key.removeprefix("obs:"): row[start:stop].astype(np.float64)
        for key, start, stop in TaskKind(task, {}).layout
    }


def flat(timestep: Any) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(value) for value in timestep.observation.values()])


@pytest.mark.parametrize(
    ("task", "domain", "name", "state_from", "state_of"),
    [
        ("CartpoleSwingup-v1", "cartpole", "swingup", "CartpoleSwingup-v1", cartpole),
        ("CheetahRun-v1", "cheetah", "run", "CheetahRun-v1", cheetah),
        ("WalkerRun-v1", "walker", "run", "WalkerRun-v1", walker),
        # A second set with the same seed tells the state of the first.
        ("HumanoidRun-v1", "humanoid", "run", "HumanoidRunPureState-v1", humanoid),
    ],
)
def test_step(
    task: str, domain: str, name: str, state_from: str, state_of: Callable[[Parts], State]
) -> None:
    env = EnvPoolConfig(task=task).build(1, 5, CPU)
    twin = EnvPoolConfig(task=state_from).build(1, 5, CPU)
    original = suite.load(domain, name, task_kwargs={"random": 0})
    first = flat(original.reset())
    obs, known = env.reset(), twin.reset()
    assert obs.actor.shape[1] == len(first)
    generator = torch.Generator().manual_seed(0)
    worst_obs = worst_reward = 0.0
    for _ in range(25):
        action = torch.rand(1, *env_action(env), generator=generator) * 2 - 1
        qpos, qvel = state_of(split(state_from, known.actor[0].numpy()))
        physics = original.physics
        physics.data.qpos[:], physics.data.qvel[:] = qpos, qvel
        physics.forward()
        wanted = original.step(action[0].numpy().astype(np.float64))
        step, known = env.step(action), twin.step(action).next_obs
        difference = np.abs(step.next_obs.actor[0].numpy() - flat(wanted))
        worst_obs = max(worst_obs, float((difference / (1 + np.abs(flat(wanted)))).max()))
        worst_reward = max(worst_reward, abs(float(step.reward[0]) - wanted.reward))
    assert worst_obs < 1e-4
    assert worst_reward < 1e-5


def env_action(env: Any) -> tuple[int]:
    return (env.spec.action.size,)
