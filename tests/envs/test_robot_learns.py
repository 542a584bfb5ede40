"""A robot of one's own is learned: the wheel of the guide stays upright ten times as long."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import recipes
from fleetfoot.evaluate import EvaluationConfig
from support.train_until import train_until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.learning
def test_the_wheel_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero actions let it fall within a second, for a return of 16."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "own_robot", raising=False)
    own_robot = importlib.import_module("own_robot")
    base = recipes.get("fast_td3/pendulum")
    agent: Any = replace(base.agent, v_min=0.0, v_max=100.0)  # type: ignore[type-var]
    recipe = replace(
        base,
        name="wheel",
        env=own_robot.WheelConfig(),
        agent=agent,
        num_envs=64,
        threads=1,
        total_vec_steps=600,
        evaluation=EvaluationConfig(every_vec_steps=100, episodes=16),
    )
    assert train_until(recipe, tmp_path / "run", 100.0).best_return >= 100.0
