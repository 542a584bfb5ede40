"""Run folders with everything that a report shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot.record import write_film
from fleetfoot.run.stored import read_stored, write_stored
from support.fake_runs import make_run

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>&amp;{{ 7 * 7 }}"


def full_run(root: Path, name: str, seed: int, **changes: Any) -> Path:
    """With times, diagnostics and smoothness in its log."""
    returns = [-1400.0 + 100 * k + 10 * seed + len(name) for k in range(12)]
    folder = make_run(root, name, seed, returns, **changes)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for k, line in enumerate(lines):
        line |= {f"time/{part}_ms": 1.0 + k for part in ("update", "simulate", "act")}
        line |= {"diagnose/critic/rank": 90.0 - k, "critic/loss": 5.0 / (k + 1)}
        line |= {"eval/action_change": 0.5 / (k + 1), "eval/action_jerk": 0.9 / (k + 1)}
    write_lines(folder, lines)
    return folder


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


def write_provenance(folder: Path, *entries: dict[str, Any]) -> None:
    tree = {"format": "fleetfoot provenance", "entries": entries}
    (folder / "provenance.json").write_text(json.dumps(tree))


def add_film(folder: Path, name: str = "best.mp4") -> Path:
    path = folder / "videos" / name
    path.parent.mkdir(exist_ok=True)
    return write_film([np.full((32, 48, 3), 20 * k, np.uint8) for k in range(8)], 10.0, path)


def two_groups(root: Path) -> Path:
    """Three seeds of two recipes, one film, one provenance."""
    for seed in range(3):
        full_run(root, "fast_td3/pendulum", seed)
        full_run(root, "fast_sac/pendulum", seed, agent={"part": "FastSACConfig", "tau": 0.2})
    first = sorted(root.iterdir())[0]
    add_film(first)
    write_provenance(first, {"commit": "abc1234", "hardware": {"cpu": "made up"}})
    return root


def hostile_run(root: Path) -> Path:
    """A run whose every string tries to become part of the page."""
    folder = full_run(root, "evil/run", 0, task=HOSTILE.replace("/", "\\"))
    tree = read_stored(folder / "recipe.json", "recipe")
    tree |= {"name": f"evil/{HOSTILE}", "agent": {"part": HOSTILE, HOSTILE: HOSTILE}}
    write_stored(folder / "recipe.json", "recipe", tree)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    extra = {HOSTILE: 1.0, f"diagnose/{HOSTILE}": 2.0, f"time/{HOSTILE}_ms": 3.0}
    write_lines(folder, [line | extra for line in lines])
    write_provenance(folder, {HOSTILE: HOSTILE, "command": f"fleetfoot train {HOSTILE}"})
    add_film(folder, "<b onclick=alert(1)>.mp4")
    moved = root / "<img src=x onerror=window.hacked=1>"
    folder.rename(moved)
    return moved
