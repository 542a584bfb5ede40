"""For tests of lost workers: kill a process at some point of a run, and check that the counters add up."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fleetfoot import checkpoint
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.apex.loop import ActorLearnerConfig


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def when(folder: Path, vec_steps: int, act: Callable[[], None]) -> threading.Thread:
    """Call `act` as soon as the log of a run has reached `vec_steps`."""

    def watch() -> None:
        for _ in range(12_000):
            if any(line["vec_steps"] >= vec_steps for line in lines(folder)):
                return act()
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def kill(role: str) -> None:
    """SIGKILL one process of the class `role` in this test's Ray, as soon as there is one."""
    for _ in range(600):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # some end at this moment
                if (process.cmdline() or [""])[0].startswith(f"ray::{role}"):
                    process.kill()
                    return
        time.sleep(0.05)
    raise AssertionError(f"no process is {role}")


def assert_counters_add_up(folder: Path, recipe: Recipe) -> None:
    """Ape-X: the replay holds every row that was counted, once, and no other row."""
    assert isinstance(recipe.topology, ActorLearnerConfig)
    state = checkpoint.load(folder).state
    received = state["lines"]
    assert sum(received) // recipe.topology.actors == state["vec_steps"] == recipe.total_vec_steps
    heads = state["replay"]["ring"]["heads"]
    assert [written for _, written in heads] == received
    expected = recipe.pace.updates_after(recipe.total_vec_steps)
    assert state["updates"] == expected


def assert_adds_up(folder: Path) -> dict[str, Any]:
    """Gorila: every update is an accepted gradient of some bundle, and all shards have made the same. The last line."""
    shards = checkpoint.load(folder).state["server"]
    stats = shards[0]["gradient_stats"]
    assert {shard["updates"] for shard in shards} == {sum(stats["accepted"].values())}
    assert sum(stats["lags"]) <= sum(sum(stats[k].values()) for k in ("accepted", "stale"))
    last = lines(folder)[-1]
    assert last["updates"] == last["gradients/accepted"] == shards[0]["updates"]
    assert last["gradients/stale"] == sum(stats["stale"].values())
    assert last["gradients/outlying"] == sum(stats["outlying"].values())
    return last
