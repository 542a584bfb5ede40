"""Run folders with made-up returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleetfoot.run.stored import write_stored


def make_run(
    root: Path,
    name: str,
    seed: int,
    returns: list[float],
    *,
    task: str = "pendulum",
    every: int = 10,
    total: int | None = None,
    success: list[float] | None = None,
    seconds: float = 1.0,
    **changes: Any,
) -> Path:
    """A run folder with 4 environments, evaluated every so many vec steps."""
    folder = root / f"{name.replace('/', '-')}-{task}-seed{seed}"
    folder.mkdir(parents=True)
    recipe = {
        "part": "Recipe",
        "name": name,
        "env": {"part": "TensorConfig", "task": task},
        "agent": {"part": "FastTD3Config", "tau": 0.1},
        "num_envs": 4,
        "seed": seed,
        "total_vec_steps": total or every * len(returns),
    }
    write_stored(folder / "recipe.json", "recipe", recipe | changes)
    lines = []
    for k, value in enumerate(returns, 1):
        line: dict[str, Any] = {"vec_steps": k * every, "env_steps": 4 * k * every}
        line |= {"train_seconds": k * seconds, "eval/return": value, "updates": 0}
        lines.append(line if success is None else line | {"eval/success": success[k - 1]})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
