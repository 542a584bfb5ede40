"""Whatever an environment does, the run says it in one line, and what was learned before is saved."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import UserError, api, checkpoint, train
from fleetfoot.data import Transition
from fleetfoot.envs.gym import GymConfig
from fleetfoot.errors import Hung
from fleetfoot.guard import TICK, WATCH
from fleetfoot.recipe import Recipe
from fleetfoot.run.build import Parts
from fleetfoot.run.folder import has_checkpoint
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.synchronous import SynchronousConfig
from support import misbehaving
from support.processes import ProcessesConfig
from support.runs import QUIET, small

# A process for each copy takes longer to start, so the short suite has a few of those.
FEW = ("raise what cannot be pickled", "system exit", "obs shorter")
RESETS = ("reset raise", "reset obs none", "reset obs longer", "reset system exit")


def environments(how: str, where: str) -> Any:
    """In a loop of this process, in a process each, or two in one process."""
    if where == "shared":
        return ProcessesConfig(id=f"{misbehaving.__name__}:{misbehaving.ID}", kwargs={"how": how})
    return GymConfig(id=misbehaving.ID, asynchronous=where == "each", kwargs={"how": how})


def recipe_of(how: str, where: str = "loop", **changes: Any) -> Recipe:
    env = environments(how, where)
    fields: dict[str, Any] = {"num_envs": 2, "batch_size": 8, "total_vec_steps": 40}
    recipe = small(env=env, **(fields | changes))
    quiet = replace(recipe.evaluation, every_vec_steps=0, episodes=1, max_vec_steps=5)
    return replace(recipe, evaluation=quiet)


def failure(recipe: Recipe, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        train(recipe, folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_named_and_saved(how: str, folder: Path, where: str) -> None:
    message = failure(recipe_of(how, where), folder)
    assert "environment 0 of gym/Misbehaving-v0 (seed " in message, message
    assert "saved" in message, message
    saved = checkpoint.load(folder)
    at = 24 if not how.startswith("reset ") else 29
    assert saved.step == at, message  # all vec steps before the one that failed


@pytest.mark.parametrize("how", [*misbehaving.STEPS, *RESETS])
def test_one_process(how: str, tmp_path: Path) -> None:
    if how in misbehaving.HARMLESS:
        assert train(recipe_of(how), tmp_path / "run").finished
        return
    assert_named_and_saved(how, tmp_path / "run", "loop")


@pytest.mark.parametrize("where", ["each", "shared"])
@pytest.mark.parametrize("how", FEW)
def test_processes(how: str, where: str, tmp_path: Path) -> None:
    assert_named_and_saved(how, tmp_path / "run", where)


@pytest.mark.parametrize(
    ("how", "where"),
    [(how, "each") for how in misbehaving.ENDS_ITS_PROCESS] + [("killed by itself", "shared")],
)
def test_a_process_that_ends(how: str, where: str, tmp_path: Path) -> None:
    message = failure(recipe_of(how, where), tmp_path / "run")
    assert "process of environment 0 of gym/Misbehaving-v0" in message
    assert checkpoint.load(tmp_path / "run").step == 24


@pytest.mark.slow
@pytest.mark.parametrize("where", ["each", "shared"])
@pytest.mark.parametrize(
    "how", [h for h in [*misbehaving.STEPS, *RESETS] if h not in (*FEW, *misbehaving.HARMLESS)]
)
def test_processes_in_full(how: str, where: str, tmp_path: Path) -> None:
    assert_named_and_saved(how, tmp_path / "run", where)


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("sleep", "loop"),
        ("loop", "each"),
        ("loop", "shared"),
        pytest.param("loop", "loop", marks=pytest.mark.slow),
        pytest.param("sleep", "each", marks=pytest.mark.slow),
    ],
)
def test_a_hang_is_noticed(how: str, where: str, tmp_path: Path) -> None:
    recipe = recipe_of(how, where, env_timeout=3.0)
    message = failure(recipe, tmp_path / "run")
    assert "environment 0 of gym/Misbehaving-v0 (seed " in message
    assert re.search(r"has not answered for \d+ s", message)
    assert checkpoint.load(tmp_path / "run").step == 24


@pytest.mark.parametrize("topology", ["overlap", "split", "split in lockstep", "seeds"])
@pytest.mark.parametrize("how", ["raise", "reward nan"])
def test_other_topologies(topology: str, how: str, tmp_path: Path) -> None:
    recipe = recipe_of(how)
    if topology == "seeds":
        with pytest.raises(UserError, match="; saved after 24 vec steps"):
            api.train_seeds(recipe, 2, tmp_path / "run")
        saved = [checkpoint.load(tmp_path / "run" / f"seed-{seed}") for seed in range(2)]
    else:
        config: dict[str, Any] = {
            "overlap": SynchronousConfig(overlap=True),
            "split": SplitLearnersConfig(),
            "split in lockstep": SplitLearnersConfig(lockstep=True),
        }
        message = failure(replace(recipe, topology=config[topology]), tmp_path / "run")
        assert "environment 0 of gym/Misbehaving-v0 (seed " in message
        saved = [checkpoint.load(tmp_path / "run")]
    for one in saved:
        assert one.step == 24
        assert one.state["updates"] == one.state["agent"]["updates"] > 0


def test_a_learner_that_is_not_finite_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_append = Parts.append

    def append(parts: Parts, fresh: Transition) -> None:
        true_append(parts, fresh)
        if parts.pace.vec_steps == 22:
            next(iter(parts.agent.policy.parameters())).data.fill_(float("nan"))
            parts.owed = 0

    monkeypatch.setattr(Parts, "append", append)
    message = failure(
        recipe_of("raise", log=replace(QUIET, every_vec_steps=1000)), tmp_path / "run"
    )
    assert "not saved" in message
    assert not has_checkpoint(tmp_path / "run")


def test_a_run_that_fails_at_once_leaves_no_folder(tmp_path: Path) -> None:
    recipe = recipe_of("raise")
    env = replace(recipe.env, kwargs={"how": "raise", "at": 1})  # type: ignore[type-var]
    failure(replace(recipe, env=env), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_clears_away_after_a_hang_is_not_interrupted_again() -> None:
    """The watch looks several times a second, and a huge list takes longer than that to go."""
    with WATCH.limit("a slow one", 0.2):
        with pytest.raises(Hung):
            threading.Event().wait(60)
        for _ in range(8):
            time.sleep(TICK / 2)
