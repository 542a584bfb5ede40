"""In which other environments a policy may be evaluated."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from fleetfoot.data import Continuous, Discrete
from fleetfoot.errors import Notice, UserError
from fleetfoot.run.loading import check_same_task
from support.made_up import make_spec

JOINTS = [{"name": "hip"}, {"name": "knee"}]
TOLD: dict[str, Any] = {
    "observation": [{"name": "gyro", "size": 3}, {"name": "command", "size": 2}],
    "joints": JOINTS,
    "action": {"names": ["a", "b"]},
}
TRAINED = replace(make_spec(action=Continuous(2)), name="home", obs_shape=(5,), description=TOLD)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"obs_shape": (6,)}, r"observations: \(6,\), not \(5,\)"),
        ({"obs_dtype": torch.uint8}, "the type of observations: torch.uint8, not torch.float32"),
        ({"action": Continuous(3)}, r"actions: Continuous\(size=3\), not Continuous\(size=2\)"),
        ({"action": Discrete(2)}, "actions"),
        ({"tasks": ("one", "two")}, r"tasks: \('one', 'two'\), not \(\)"),
        (
            {"description": TOLD | {"observation": TOLD["observation"][::-1]}},
            "the order of observations: number 1 is command, not gyro",
        ),
        (
            {"description": TOLD | {"joints": [*JOINTS[:1], {"name": "toe"}]}},
            "joints: number 2 is toe, not knee",
        ),
        (
            {"description": TOLD | {"action": {"names": ["a", "c"]}}},
            "the order of actions: number 2 is c, not b",
        ),
    ],
)
def test_what_differs_is_refused(change: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=f"trained for home, and away differs in {what}"):
        check_same_task(replace(TRAINED, name="away", **change), TRAINED)


def test_what_does_not_matter_to_a_policy_may_differ() -> None:
    other = replace(TRAINED, name="away", num_envs=7, critic_shape=(9,), step_seconds=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_same_task(other, TRAINED)
        check_same_task(replace(TRAINED, description={}), TRAINED)  # the same task


def test_where_nothing_tells_a_line_says_so() -> None:
    with pytest.warns(Notice, match="nothing says whether they also mean the same"):
        check_same_task(replace(TRAINED, name="away", description={}), TRAINED)


@pytest.mark.parametrize("odd", [5, None, ["gyro", 3], [{"size": 3}], "abc", {"a": 1}, [None]])
@pytest.mark.parametrize("key", list(TOLD))
def test_odd_descriptions_tell_nothing(key: str, odd: Any) -> None:
    """They may be a stranger's."""
    check_same_task(replace(TRAINED, description=TOLD | {key: odd}), TRAINED)
    check_same_task(TRAINED, replace(TRAINED, description=TOLD | {key: odd}))


def test_a_long_difference_is_cut_short() -> None:
    tasks = tuple(f"task-{i}" for i in range(50))
    with pytest.raises(UserError) as caught:
        check_same_task(replace(TRAINED, tasks=tasks), TRAINED)
    assert len(str(caught.value)) < 300
