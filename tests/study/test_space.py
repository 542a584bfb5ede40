"""What a sweep varies, and what it calls it."""

from __future__ import annotations

import pytest

from fleetfoot.errors import UserError
from fleetfoot.study.space import Axis, axes_of, axis_of, grid, name_of


def test_values_and_ranges() -> None:
    assert axis_of("agent.tau=0.005, 0.05") == Axis("agent.tau", ("0.005", "0.05"))
    assert axis_of("--num-envs=64") == Axis("num_envs", ("64",))
    assert axis_of("a=-1e-3..0.5") == Axis("a", (), -1e-3, 0.5)
    assert axis_of("a=1e-3..1:log") == Axis("a", (), 1e-3, 1.0, True)


def test_a_grid_has_every_combination_in_order() -> None:
    made = grid(axes_of(["a=1,2", "b=x,y,z"]))
    assert [tuple(one.values()) for one in made] == [
        *[("1", "x"), ("1", "y"), ("1", "z"), ("2", "x"), ("2", "y"), ("2", "z")]
    ]


def test_names_are_folders_and_differ() -> None:
    assert name_of({"agent.tau": "0.5", "n": "3"}) == "agent.tau=0.5,n=3"
    one, two = name_of({"env.id": "ALE/Pong"}), name_of({"env.id": "ALE-Pong"})
    assert one != two
    assert "/" not in one + name_of({"a": "../../x"})
    assert len(name_of({"a": "x" * 500})) < 150
    assert name_of({"a": "x" * 500}) != name_of({"a": "x" * 501})


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ([], "over what?"),
        (["tau"], "needs FIELD=VALUE"),
        (["tau="], "needs FIELD=VALUE"),
        (["tau=1,,2"], "an empty value"),
        (["tau=1,1"], "a value twice"),
        (["tau=1", "tau=2"], "is given twice"),
        (["seed=1,2"], "--seeds is for that"),
        (["tau=a..b"], "not a range of numbers"),
        (["tau=2..1"], "to a larger one"),
        (["tau=0..1:log"], "from a number above 0"),
        (["tau=0..1"], "--search optuna"),
        ([f"{name}=1,2,3,4,5,6,7,8,9,10" for name in "abcde"], "too large"),
    ],
)
def test_mistakes_get_one_line(over: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says.replace("?", r"\?")):
        grid(axes_of(over))
