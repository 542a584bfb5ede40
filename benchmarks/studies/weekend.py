"""A weekend in small: a run whose processes are killed at random, over and over, and resumed whenever it has ended."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleetfoot import checkpoint
from fleetfoot.errors import UserError
from fleetfoot.log import curve
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.run.folder import has_checkpoint, read_recipe

SAMPLE_SECONDS = 2.0
LONG_ENOUGH = 10**12  # vec steps: a signal ends the run


def weekend(
    recipe: str = "fast_td3/pendulum",
    minutes: float = 60.0,
    kill_every_seconds: float = 60.0,
    checkpoint_every_vec_steps: int = 500,
    folder: Path = Path("runs/weekend"),
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Train for so many minutes, with SIGKILL to some process of the run every so often; a run that ended is resumed.
    Memory and descriptors of all its processes are logged. At the end the counters must add up."""
    if folder.exists():
        raise UserError(f"{folder} exists; give another --folder.")
    rng = random.Random(seed)
    every = ["--checkpoint.every-vec-steps", str(checkpoint_every_vec_steps), "--no-video"]
    first = ["train", recipe, "--folder", str(folder), "--total-vec-steps", str(LONG_ENOUGH)]
    process = start(*first, *every)
    begun = time.monotonic()
    next_kill, next_report = kill_every_seconds, 60.0
    kills: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    lines: list[str] = []
    while (now := time.monotonic() - begun) < 60 * minutes:
        time.sleep(SAMPLE_SECONDS)
        if process.poll() is not None:
            lines += ended(process)
            again = ["resume", str(folder)] + ([] if has_checkpoint(folder) else ["--restart"])
            process = start(*again, *every)
            continue
        samples.append({"second": round(now, 1), **usage(process.pid)})
        if now >= next_kill:
            next_kill += kill_every_seconds
            if (name := kill_one(process.pid, rng)) is not None:
                kills.append({"second": round(now, 1), "process": name})
        if now >= next_report:
            next_report += 60.0
            yield summary(folder, kills, samples, lines)
    process.send_signal(signal.SIGTERM)
    process.wait(120)
    lines += ended(process)
    yield summary(folder, kills, samples, lines) | {"exit_code": process.returncode}


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fleetfoot", *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> list[str]:
    """What a process has said on standard error."""
    return process.communicate()[1].splitlines()


def everyone(pid: int) -> list[Any]:
    import psutil

    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def usage(pid: int) -> dict[str, Any]:
    import psutil

    memory = descriptors = 0
    processes = everyone(pid)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_info().rss
            descriptors += process.num_fds()
    return {
        "processes": len(processes),
        "memory_mib": round(memory / 2**20),
        "descriptors": descriptors,
    }


def kill_one(pid: int, rng: random.Random) -> str | None:
    """SIGKILL any process of the run; returns its name."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = rng.choice(everyone(pid))
        name = (process.cmdline() or [process.name()])[0].rpartition("/")[2]
        process.kill()
        return str(name) if process.pid != pid else "the run itself"
    return None


def summary(
    folder: Path, kills: list[dict[str, Any]], samples: list[dict[str, Any]], lines: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"kills": len(kills), "lines_said": lines, "kill_list": kills}
    if has_checkpoint(folder):
        state = checkpoint.load(folder, with_replay=False).state
        found |= {"vec_steps": state["vec_steps"], "updates": state["updates"]}
        found["updates_due"] = read_recipe(folder).pace.updates_after(state["vec_steps"])
        # Evaluators of their own report later than the learner has logged.
        lines_of_learner = [
            line for line in read_lines(folder / "metrics.jsonl") if EVAL_RETURN not in line
        ]
        steps = [line["vec_steps"] for line in lines_of_learner]
        found["log_in_order"] = steps == sorted(set(steps))
        points = curve(folder)
        if points:
            found["best_return"] = max(point.value for point in points)
    if samples:  # the first third fills the replay
        late = samples[len(samples) // 3 :]
        for name in ("memory_mib", "descriptors"):
            found[f"{name}_late_least_and_most"] = [
                min(s[name] for s in late),
                max(s[name] for s in late),
            ]
    return found | {"samples": samples}
