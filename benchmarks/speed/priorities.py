"""The speed of priorities alone: two million items, beside TorchRL's sampler where there is one."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from benchmarks.rates import stretch
from fleetfoot.data import Continuous, EnvSpec
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import Proportional, ProportionalConfig
from fleetfoot.replay.sum_tree import SumTree

TREE_ITEMS = 2_000_000
TREE_BATCH = 512
TREE_BATCHES = (TREE_BATCH, 2048)
TREE_ROUNDS = 25
ALPHA = 0.6


class Contestant(NamedTuple):
    """Calls of one prioritised sampler, each about a batch."""

    name: str
    update: Callable[[], object]
    sample: Callable[[], object]
    cycle: Callable[[], object]
    """What a learner asks for around one update: draw, then give the rows drawn new priorities."""
    device: torch.device


class Errors:
    """Rows and errors for one update after the other, the same for everyone."""

    def __init__(self, batch_size: int, device: torch.device):
        random = torch.Generator(device).manual_seed(0)
        self.batch_size = batch_size
        self.leaf = torch.randint(TREE_ITEMS, (64, batch_size), generator=random, device=device)
        self.error = torch.rand(64, batch_size, generator=random, device=device)
        self.everything = torch.rand(TREE_ITEMS, generator=random, device=device)
        self.at = 0

    def next(self) -> tuple[Tensor, Tensor]:
        self.at = (self.at + 1) % 64
        return self.leaf[self.at], self.error[self.at]

    def next_error(self) -> Tensor:
        return self.next()[1]


def contest(device: torch.device, seconds: float) -> list[dict[str, Any]]:
    """Items per second in batches out of two million: given new priorities, drawn, and both in turn.

    All take turns, round after round, and the median round counts. On a CPU it is one thread, and seconds of its own
    time, so that others on the machine matter little. `SumTree` is the tree alone; `Proportional` turns errors into
    priorities and draws into rows and importance weights, as TorchRL's sampler does, which divides weights by the
    largest of all rows: `largest_weight="buffer"` does that too, the default divides by the largest of a batch.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        return [row for size in TREE_BATCHES for row in _contest(device, size, seconds)]
    finally:
        torch.set_num_threads(threads)


def _contest(device: torch.device, batch_size: int, seconds: float) -> list[dict[str, Any]]:
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    errors = Errors(batch_size, device)
    contestants = [
        _tree(errors, device),
        _proportional(errors, "batch", device),
        _proportional(errors, "buffer", device),
    ]
    theirs = _torchrl(errors)
    if isinstance(theirs, Contestant):
        contestants.append(theirs)
    parts = ("update", "sample", "cycle")
    took: dict[tuple[str, str], list[float]] = {
        (one.name, part): [] for one in contestants for part in parts
    }
    for turn in range(TREE_ROUNDS + 1):
        for part in parts:
            for one in contestants:
                rate = stretch(getattr(one, part), seconds / 12 / TREE_ROUNDS, one.device, clock)
                if turn > 0:  # the first round warms up
                    took[one.name, part].append(rate * batch_size)
    rows = []
    for one in contestants:
        row: dict[str, Any] = {"priorities": one.name, "batch_size": batch_size}
        for part in parts:
            row[f"{part}s_per_second"] = statistics.median(took[one.name, part])
        if isinstance(theirs, Contestant):
            for part in parts:
                pairs = zip(took[one.name, part], took[theirs.name, part], strict=True)
                row[f"{part}_to_torchrl"] = statistics.median(a / b for a, b in pairs)
        rows.append(row)
    return rows if isinstance(theirs, Contestant) else [*rows, theirs]


def _tree(errors: Errors, device: torch.device) -> Contestant:
    tree = SumTree(TREE_ITEMS, device)
    tree.set(torch.arange(TREE_ITEMS, device=device), errors.everything.pow(ALPHA), distinct=True)
    random = torch.Generator(device).manual_seed(0)

    def sample() -> Tensor:
        u = torch.rand(errors.batch_size, generator=random, device=device, dtype=torch.float64)
        return tree.draw(u).leaf

    return Contestant(
        "fleetfoot SumTree",
        update=lambda: tree.set(*errors.next()),
        sample=sample,
        cycle=lambda: tree.set(sample(), errors.next_error()),
        device=device,
    )


def _proportional(
    errors: Errors, largest: Literal["batch", "buffer"], device: torch.device
) -> Contestant:
    spec = EnvSpec("bench", 1000, (1,), Continuous(1), device, episode_length=1000)
    proportional = ProportionalConfig(alpha=ALPHA, largest_weight=largest)
    cfg = ReplayConfig(capacity=TREE_ITEMS, sampler=proportional)
    replay = cfg.build(spec, gamma=0.99, seed=0, device=device)
    sampler, ring = replay.sampler, replay.ring
    assert isinstance(sampler, Proportional)
    ring.size = ring.written = TREE_ITEMS // spec.num_envs  # no rows, only their places
    ring.sync_counters()
    sampler.set_priority(torch.arange(TREE_ITEMS, device=device), errors.everything.double())

    def cycle() -> None:
        drawn = sampler.draw(errors.batch_size, ring)
        sampler.reprioritize(ring, ring.row_id(drawn.age, drawn.column), errors.next_error())

    return Contestant(
        f"fleetfoot Proportional, {largest}",
        update=lambda: sampler.reprioritize(ring, *errors.next()),
        sample=lambda: sampler.draw(errors.batch_size, ring),
        cycle=cycle,
        device=device,
    )


def _torchrl(errors: Errors) -> Contestant | dict[str, Any]:
    """TorchRL's prioritised sampler on the same items; its trees are on the CPU whatever the device."""
    name = "TorchRL PrioritizedSampler"
    try:
        torchrl = importlib.import_module("torchrl.data")
        sampler = torchrl.PrioritizedSampler(TREE_ITEMS, alpha=ALPHA, beta=0.4)
    except Exception as error_found:  # missing, or built for another version of torch
        reason = (str(error_found).strip().splitlines() or [type(error_found).__name__])[0]
        return {
            "priorities": name,
            "batch_size": errors.batch_size,
            "note": f"not measured: {reason[:200]}",
        }

    class Items:
        """As much of a storage as the sampler asks for."""

        ndim = 1

        def __len__(self) -> int:
            return TREE_ITEMS

    items, cpu = Items(), torch.device("cpu")
    mine = errors if errors.leaf.device == cpu else Errors(errors.batch_size, cpu)
    sampler.update_priority(torch.arange(TREE_ITEMS), mine.everything)

    def cycle() -> None:
        index, _ = sampler.sample(items, errors.batch_size)
        sampler.update_priority(index, mine.next_error())

    return Contestant(
        name,
        update=lambda: sampler.update_priority(*mine.next()),
        sample=lambda: sampler.sample(items, errors.batch_size),
        cycle=cycle,
        device=cpu,
    )
