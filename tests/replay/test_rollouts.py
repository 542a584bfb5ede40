from __future__ import annotations

import pytest
import torch

from fleetfoot.data import Continuous, EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.replay import rollouts as rollouts_module
from fleetfoot.replay.rollouts import RolloutConfig, Rollouts

CPU = torch.device("cpu")


def spec(**changes: object) -> EnvSpec:
    fields: dict[str, object] = {
        "name": "made up",
        "num_envs": 2,
        "obs_shape": (3,),
        "action": Continuous(1),
        "device": CPU,
    }
    return EnvSpec(**(fields | changes))  # type: ignore[arg-type]


def step(
    t: int,
    terminated: tuple[bool, bool] = (False, False),
    truncated: tuple[bool, bool] = (False, False),
    privileged: bool = False,
) -> Transition:
    def obs(at: float) -> Obs:
        actor = torch.full((2, 3), at)
        return Obs(actor, torch.full((2, 5), -at) if privileged else actor)

    return Transition(
        obs=obs(t),
        action=torch.full((2, 1), 3.0 + t),
        reward=torch.tensor([float(t), -float(t)]),
        terminated=torch.tensor(terminated),
        truncated=torch.tensor(truncated),
        next_obs=obs(t + 1),
        info={},
    )


def made(length: int = 3, **changes: object) -> Rollouts:
    return RolloutConfig(length=length).build(spec(**changes), gamma=0.9, seed=0, device=CPU)


def test_a_rollout_is_what_was_appended() -> None:
    memory = made()
    memory.append(step(0))
    memory.append(step(1, terminated=(True, False)))
    memory.append(step(2, truncated=(False, True)))
    assert memory.size == 6
    assert memory.draw(123) == ()
    rollout = memory.gather()
    assert rollout.reward.tolist() == [[0, 0], [1, -1], [2, -2]]
    assert rollout.action.squeeze(-1).tolist() == [[3, 3], [4, 4], [5, 5]]  # as drawn, not clipped
    assert rollout.ended.tolist() == [[False, False], [True, False], [False, True]]
    expected = torch.tensor([[0.9, 0.9], [0.0, 0.9], [0.9, 0.9]])
    torch.testing.assert_close(rollout.discount, expected)  # a truncation goes on
    assert rollout.obs.critic is rollout.obs.actor
    assert rollout.next_obs.actor[:, 0, 0].tolist() == [1, 2, 3]
    memory.trim(0)
    assert memory.size == 6
    memory.trim(1)
    assert memory.size == 0


def test_tensors_stay_where_they_are() -> None:
    """A recording reads them again and again."""
    memory = made(length=1)
    memory.append(step(0))
    before = memory.gather().obs.actor.data_ptr()
    memory.trim(1)
    memory.append(step(5))
    assert memory.gather().obs.actor.data_ptr() == before
    assert memory.gather().obs.actor[0, 0, 0] == 5


def test_privileged_observations_are_kept_apart() -> None:
    memory = made(length=1, critic_shape=(5,))
    memory.append(step(4, privileged=True))
    rollout = memory.gather()
    assert rollout.obs.critic.shape == (1, 2, 5)
    assert rollout.next_obs.critic[0, 0, 0] == -5


def test_tasks_are_those_of_the_environments() -> None:
    memory = made(length=2, tasks=("a", "b"), task_ids=(1, 0))
    memory.append(step(0))
    memory.append(step(1))
    task = memory.gather().obs.task
    assert task is not None
    assert task.tolist() == [[1, 0], [1, 0]]


def test_a_lost_last_observation_is_replaced_by_the_one_before_it() -> None:
    memory = made(length=1, exact_final_obs=False)
    memory.append(step(7, truncated=(True, False)))
    assert memory.gather().next_obs.actor[0, :, 0].tolist() == [7, 8]


def test_no_return_crosses_a_break() -> None:
    memory = made()
    memory.mark_break()  # nothing is stored yet
    memory.append(step(0))
    memory.mark_break()
    memory.append(step(1))
    memory.append(step(2))
    assert memory.gather().ended.tolist() == [[True, True], [False, False], [False, False]]


def test_a_rollout_goes_on_in_the_middle() -> None:
    one, other = made(), made()
    one.append(step(0))
    one.append(step(1))
    other.load_state_dict(one.state_dict())
    for memory in (one, other):
        memory.append(step(2))
    for mine, theirs in zip(one.gather(), other.gather(), strict=True):
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            assert torch.equal(mine, theirs)


def test_a_state_with_an_impossible_length_is_refused() -> None:
    memory = made()
    for filled in (-1, 3):
        with pytest.raises(ValueError, match="vec steps of a rollout"):
            memory.load_state_dict(memory.state_dict() | {"filled": filled})


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"replay\.length must be at least 1"):
        RolloutConfig(length=0)
    monkeypatch.setattr(rollouts_module, "free_bytes", lambda device: 100)
    with pytest.raises(UserError, match=r"lower --replay\.length or --num-envs"):
        made()
