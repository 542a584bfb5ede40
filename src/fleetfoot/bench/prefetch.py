"""What drawing batches ahead is worth to an Ape-X learner: updates per second with and without it.

All depths take turns in one process, round after round, and each round's rates are divided by that of depth 0 in the
same round; the median ratio counts. Between two updates an actor's rows arrive, as in a run.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from fleetfoot import recipes
from fleetfoot.bench.priorities import TREE_BATCH
from fleetfoot.bench.rates import wait
from fleetfoot.bench.replay import FRAME_ROWS, frames_replay, frames_spec
from fleetfoot.part import UserError
from fleetfoot.recipe import resolve_device
from fleetfoot.replay.prefetch import prefetching
from fleetfoot.speed import updater


def bench_prefetch(
    depths: tuple[int, ...] = (1, 4, 16),
    threads: int = 1,
    seconds: float = 60.0,
    rounds: int = 5,
    device: str = "auto",
) -> dict[str, Any]:
    """The agent of apex_dqn/pong on batches of 512 stacks of frames, with a vec step of 64 consoles before every
    update. `threads`: of the learner; the thread that draws has as many."""
    if min(depths, default=0) < 1 or threads < 1 or rounds < 1 or seconds <= 0:
        raise UserError("bench prefetch needs depths, threads and rounds >= 1, and seconds > 0.")
    torch.set_num_threads(threads)
    place = resolve_device(device)
    agent = recipes.get("apex_dqn/pong").agent.build(
        frames_spec(64, place), gamma=0.99, total_updates=1_000_000, seed=0, device=place
    )
    update = updater(agent, precision="float32", mode="auto", device=place)
    replay, step = frames_replay(place)
    error = torch.rand(len(step.reward), generator=torch.Generator().manual_seed(0)).to(place)
    for _ in range(FRAME_ROWS):
        replay.append(step, error)

    def rate(depth: int, seconds: float) -> float:
        with prefetching(replay, TREE_BATCH, depth) as ahead:
            done, start = 0, time.perf_counter()
            while done < 2 or time.perf_counter() - start < seconds:
                ahead.append(step, error)
                batch = ahead.sample(TREE_BATCH)
                ahead.reprioritize(batch.row_id, update(batch).td_error)
                ahead.trim(1)
                wait(place)
                done += 1
            return done / (time.perf_counter() - start)

    everyone = (0, *depths)
    share = seconds / (rounds * len(everyone))
    rate(0, share)  # what compiles at first use
    found: dict[int, list[float]] = {depth: [] for depth in everyone}
    for turn in range(rounds):
        for depth in sorted(everyone, reverse=turn % 2 == 1):
            found[depth].append(rate(depth, share))
    ratios = {
        depth: statistics.median(a / b for a, b in zip(found[depth], found[0], strict=True))
        for depth in depths
    }
    return {
        "batch_size": TREE_BATCH,
        "threads": threads,
        "rounds": rounds,
        "sample_share_without": _share_of_sampling(replay, statistics.median(found[0])),
        "updates_per_second": {str(d): statistics.median(found[d]) for d in everyone},
        "ratio_to_none": {str(depth): ratio for depth, ratio in ratios.items()},
    }


def _share_of_sampling(replay: Any, updates_per_second: float) -> float:
    """Of the time between two updates, the part that drawing a batch takes: the most that there is to gain."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        replay.sample(TREE_BATCH)
        wait(replay.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * updates_per_second
