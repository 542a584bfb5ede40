"""The study of WMPG, AC and MAC: what is counted, and that a study goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.wmpg import _run, draw, summary, until_solved, wmpg
from fleetfoot import UserError, recipes
from fleetfoot.recipe import Recipe


def run_of(agent: str, seed: int, episodes: int, solved: bool = True) -> dict[str, Any]:
    steps = {"episodes": episodes, "env_steps": 10 * episodes, "seconds": 1.0}
    curve = {"returns": [1.0, 2.0, 3.0], "env_steps": [1, 3, 6]}
    return {"agent": agent, "seed": seed, "solved": solved, **steps, "curve": curve}


def test_who_was_first() -> None:
    runs = [run_of("wmpg", 0, 50), run_of("wmpg", 1, 70), run_of("wmpg", 2, 90, solved=False)]
    runs += [run_of("ac", 0, 60), run_of("ac", 1, 70), run_of("ac", 2, 30, solved=False)]
    found = summary(runs, ("wmpg", "ac"))
    assert found["pairs"] == [
        {"pair": "wmpg and ac", "seeds": 3, "fewer_episodes": 1, "fewer_env_steps": 1}
    ]
    assert [row["median_episodes"] for row in found["agents"]] == [70, 70]
    assert [row["solved"] for row in found["agents"]] == [2, 2]


def test_without_a_majority_there_is_no_median() -> None:
    runs = [run_of("ac", 0, 5), run_of("ac", 1, 5, solved=False), run_of("ac", 2, 5, solved=False)]
    assert summary(runs, ("ac",))["agents"][0]["median_episodes"] is None


def short() -> Recipe:
    return replace(recipes.get("ac/cartpole"), device="cpu", threads=1, total_vec_steps=64)


def test_real_episodes_and_steps_are_counted() -> None:
    found = until_solved(short(), 475.0)
    assert not found["solved"]
    assert found["env_steps"] == 64 * 4
    returns, ends = found["curve"]["returns"], found["curve"]["env_steps"]
    assert found["episodes"] == len(returns) == len(ends) > 4
    assert sum(returns) <= found["env_steps"]  # one point for every step
    easy = until_solved(replace(short(), total_vec_steps=400), 1.0)
    assert easy["solved"]
    assert 20 <= easy["episodes"] < 24  # a mean of twenty; four may end in one step


def test_a_run_that_is_there_is_read(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "one.json"
    first = _run((short(), 475.0, place))
    assert json.loads(place.read_text()) == first
    place.write_text(json.dumps(first | {"seconds": -1.0}))
    assert _run((short(), 475.0, place))["seconds"] == -1.0
    assert _run((replace(short(), seed=1), 475.0, place))["seed"] == 1  # of another recipe


def test_seeds_are_counted_from_the_first(tmp_path: Path) -> None:
    options: dict[str, Any] = {"agents": ("ac",), "seeds": 2, "processes": 1, "runs": tmp_path}
    *_, last = wmpg(first_seed=7, total_vec_steps=8, **options)
    assert [run["seed"] for run in last["runs"]] == [7, 8]


def test_pictures_and_bad_names(tmp_path: Path) -> None:
    draw([run_of("wmpg", 0, 3), run_of("ac", 0, 3)], ("wmpg", "ac"), 2.0, tmp_path / "a" / "b.png")
    assert (tmp_path / "a" / "b.png").stat().st_size > 1000
    with pytest.raises(UserError, match="cartpole"):
        next(wmpg(task="chess"))
