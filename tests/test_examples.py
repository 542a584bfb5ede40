"""The agent and the topology of `examples/` do all that the architecture page says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot.api import evaluate_run, resume, train, train_seeds
from fleetfoot.envs.check import check_env
from fleetfoot.replay.mirror import problem_of
from fleetfoot.run.interrupt import Interrupt
from support.examples import ROOT, example
from support.runs import agent_state, assert_same, small

SHORT: dict[str, Any] = {"total_vec_steps": 40}


def stops_at(vec_steps: int) -> Any:
    """What `Interrupt.stops` answers if Ctrl-C comes after so many vec steps."""

    def stops(self: Interrupt, now: int) -> bool:
        self.agreed = now >= vec_steps
        return self.agreed

    return stops


@pytest.fixture(params=["own_agent", "own_topology"])
def changed(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the example puts into a recipe."""
    if request.param == "own_agent":
        return {"agent": example("own_agent").PlainTD3Config(hidden=16), **SHORT}
    return {"topology": example("own_topology").TwoHalvesConfig(), **SHORT}


def test_stopped_and_resumed_they_give_the_same_weights(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(small(**changed), tmp_path / "whole").finished
    with monkeypatch.context() as patch:
        patch.setattr(Interrupt, "stops", stops_at(21))
        assert not train(small(**changed), tmp_path / "parts").finished
    assert resume(tmp_path / "parts").finished
    assert_same(agent_state(tmp_path / "whole"), agent_state(tmp_path / "parts"))
    assert "eval/return" in evaluate_run(tmp_path / "whole", episodes=2).metrics()


def test_two_seeds_are_trained_as_one(
    changed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = train_seeds(small(**changed), 2, tmp_path / "two")
    assert [result.finished for result in results] == [True, True]
    assert "one after the other" not in capsys.readouterr().err


def test_updates_in_two_halves_are_the_same_updates(tmp_path: Path) -> None:
    halves = small(topology=example("own_topology").TwoHalvesConfig(), **SHORT)
    train(halves, tmp_path / "halves")
    train(small(**SHORT), tmp_path / "whole")
    assert_same(agent_state(tmp_path / "halves"), agent_state(tmp_path / "whole"))


def test_the_architecture_page_shows_the_topology() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = (ROOT / "examples" / "own_topology.py").read_text()
    assert source[source.index("@part") :] in page


def test_the_quadruped_stands_and_has_a_mirror_image() -> None:
    pup = example("own_quadruped")
    assert check_env(pup.QuadrupedConfig(), vec_steps=24, render=False).saves_state
    env = pup.QuadrupedConfig().build(8, 0, torch.device("cpu"))
    assert problem_of(env.spec.symmetry, env.spec) is None
    env.reset()
    for _ in range(100):
        assert not env.step(torch.zeros(8, 12)).terminated.any()
    feet = env.built.sensors["foot_pos"]
    height = env.engine.sensor[:, feet][:, 2::3]
    assert float(height.max()) == pytest.approx(pup.TASK.gait.sole, abs=0.005)
    assert len(env.describe()["joints"]) == 12


def test_the_guide_shows_the_quadruped() -> None:
    page = (ROOT / "docs" / "guides" / "own-robot.md").read_text()
    source = (ROOT / "examples" / "own_quadruped.py").read_text()
    begin = source.index("ROBOT = Robot(")
    assert source[begin : source.index("\n)\n", begin) + 2] in page
