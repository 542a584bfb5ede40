"""What the replay costs: bytes per transition, rows per second in and out, and the sum tree of prioritised replay."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fleetfoot.data import Batch, Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.part import UserError
from fleetfoot.recipe import resolve_device
from fleetfoot.replay.replay import GIB, Replay, ReplayConfig
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.samplers import Proportional, ProportionalConfig
from fleetfoot.replay.sum_tree import SumTree

# name: observation size, action size, environments, rows per environment, episode length
SIZES = {
    "HalfCheetah-v5": (17, 6, 64, 15_625, 1000),
    "Ant-v5": (27, 8, 64, 15_625, 1000),
    "Isaac G1": (123, 37, 4096, 10_240, 1000),
}

STACK, SIDE = 4, 84  # an Atari observation
FRAME_ROWS = 500  # per console
TREE_ITEMS = 2_000_000
TREE_BATCH = 512
TREE_BATCHES = (TREE_BATCH, 2048)
TREE_ROUNDS = 25
ALPHA = 0.6


def bench_replay(
    batch_size: int = 4096,
    num_envs: int = 256,
    obs_size: int = 64,
    action_size: int = 8,
    n_step: int = 3,
    seconds: float = 10.0,
    device: str = "auto",
) -> dict[str, Any]:
    """Memory of the ring beside that of storing obs and next_obs whole, the speed of append and sample, both for Atari
    frames under priorities, and priorities alone: two million items, beside TorchRL's sampler where there is one."""
    if min(batch_size, num_envs, obs_size, action_size, n_step) < 1 or seconds <= 0:
        raise UserError("bench replay needs sizes of at least 1 and seconds > 0.")
    place = resolve_device(device)
    spec = make_spec(obs_size, action_size, num_envs, 1000, place)
    return {
        "memory": [_memory(name, *size) for name, size in SIZES.items()],
        "speed": [
            _speed(spec, storage, n_step, batch_size, seconds / 4)
            for storage in ("float32", "bf16")
        ],
        "frames_memory": [_frames_memory()],
        "frames_speed": [_frames_speed(place, seconds / 4)],
        "priorities": [
            row for batch_size in TREE_BATCHES for row in _priorities(place, batch_size, seconds)
        ],
    }


def make_spec(
    obs_size: int, action_size: int, num_envs: int, episode_length: int, device: torch.device
) -> EnvSpec:
    return EnvSpec(
        name="bench",
        num_envs=num_envs,
        obs_shape=(obs_size,),
        action=Continuous(action_size),
        device=device,
        episode_length=episode_length,
    )


def _memory(name: str, obs: int, action: int, envs: int, rows: int, length: int) -> dict[str, Any]:
    """Both at the same capacity. `twice` keeps obs, next_obs, action, reward in float32 and two flags."""
    meta = torch.device("meta")
    spec = make_spec(obs, action, envs, length, meta)
    capacity = envs * rows
    rings = {
        compact: Ring(spec, rows, compact=compact, final_share=1 / 64, device=meta)
        for compact in (False, True)
    }
    twice = capacity * (8 * obs + 4 * action + 4 + 2)
    return {
        "sizes": name,
        "transitions": capacity,
        "twice_gib": twice / GIB,
        "float32_gib": rings[False].bytes() / GIB,
        "bf16_gib": rings[True].bytes() / GIB,
        "bf16_share_of_twice": rings[True].bytes() / twice,
        "observations_bf16_share_of_twice": _observation_bytes(rings[True]) / (capacity * 8 * obs),
    }


def _observation_bytes(ring: Ring) -> int:
    """All that keeps observations and finds them again: the ring, the side table, and its bookkeeping."""
    kept = ("obs.", "final_obs.", "entry", "final_owner", "final_count")
    return sum(t.nbytes for name, t in ring.tensors().items() if name.startswith(kept))


def _speed(
    spec: EnvSpec, storage: Literal["float32", "bf16"], n_step: int, batch_size: int, seconds: float
) -> dict[str, Any]:
    device = spec.device
    cfg = ReplayConfig(capacity=spec.num_envs * 1000, n_step=n_step, storage=storage)
    replay = cfg.build(spec, gamma=0.99, seed=0, device=device)
    random = torch.Generator(device).manual_seed(0)
    assert isinstance(spec.action, Continuous)
    x = torch.randn(spec.num_envs, *spec.obs_shape, generator=random, device=device)
    ended = torch.zeros(spec.num_envs, dtype=torch.bool, device=device)
    ended[0] = True
    step = Transition(
        obs=Obs(x, x),
        action=torch.rand(spec.num_envs, spec.action.size, generator=random, device=device),
        reward=torch.randn(spec.num_envs, generator=random, device=device),
        terminated=ended,
        truncated=torch.zeros_like(ended),
        next_obs=Obs(x, x),
        info={},
    )
    appends = _rate(lambda: replay.append(step), seconds, device)
    for _ in range(1000):
        replay.append(step)
    samples = _rate(lambda: replay.sample(batch_size), seconds, device)
    copy = copy_bytes_per_second(device)
    # Each is read once and written once, as in a copy.
    appended = appends * sum(t.nbytes for t in (x, x, step.action, step.reward, ended, ended))
    sampled = samples * _bytes(replay.sample(batch_size))
    return {
        "storage": storage,
        "append_rows_per_second": appends * spec.num_envs,
        "append_gb_per_second": appended / 1e9,
        "append_share_of_copy": appended / copy,
        "sample_rows_per_second": samples * batch_size,
        "sample_gb_per_second": sampled / 1e9,
        "sample_share_of_copy": sampled / copy,
        "copy_gb_per_second": copy / 1e9,
    }


def copy_bytes_per_second(device: torch.device) -> float:
    """Bytes copied per second from one place of the device's memory to another, in one large piece."""
    size = 2**30 if device.type == "cuda" else 2**26
    one, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    return size * _rate(lambda: other.copy_(one), 1.0, device)


def _bytes(batch: Batch) -> int:
    """Of all that a batch holds, what actor and critic share once."""
    obs = [*{id(t): t for o in (batch.obs, batch.next_obs) for t in o[:2]}.values()]
    plain = (batch.action, batch.reward, batch.discount, batch.weight, batch.row_id)
    return sum(t.nbytes for t in (*obs, *plain))


def _rate(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Calls per second, best of three stretches."""

    for _ in range(10):
        work()
    _wait(device)
    best = 0.0
    for _ in range(3):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            for _ in range(10):
                work()
            _wait(device)
            count += 10
        best = max(best, count / (time.perf_counter() - start))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def frames_spec(num_envs: int, device: torch.device) -> EnvSpec:
    return EnvSpec(
        name="bench",
        num_envs=num_envs,
        obs_shape=(STACK, SIDE, SIDE),
        obs_dtype=torch.uint8,
        action=Discrete(18),
        device=device,
        frame_stack=STACK,
    )


def _frames_memory() -> dict[str, Any]:
    """All there is: frames, side table, bookkeeping, slack and sum tree. `whole` keeps both stacks of a transition."""
    cfg = ReplayConfig(capacity=2_000_000, n_step=3, sampler=ProportionalConfig())
    spec = frames_spec(64, torch.device("meta"))
    need = cfg.bytes(spec)
    whole = cfg.capacity * (2 * STACK * SIDE * SIDE + 8 + 4 + 2)
    return {
        "sizes": f"Atari {SIDE}x{SIDE}x{STACK}",
        "transitions": cfg.capacity,
        "whole_gib": whole / GIB,
        "gib": need / GIB,
        "bytes_per_transition": need / cfg.capacity,
        "share_of_whole": need / whole,
    }


def frames_replay(device: torch.device) -> tuple[Replay, Transition]:
    """Prioritised, three steps, 64 consoles; empty, and a vec step to fill it with."""
    spec = frames_spec(64, device)
    cfg = ReplayConfig(capacity=64 * FRAME_ROWS, n_step=3, sampler=ProportionalConfig())
    random = torch.Generator(device).manual_seed(0)
    shape = (spec.num_envs, STACK + 1, SIDE, SIDE)
    stacks = torch.randint(256, shape, generator=random, device=device, dtype=torch.uint8)
    ended = torch.zeros(spec.num_envs, dtype=torch.bool, device=device)
    now, following = stacks[:, :-1], stacks[:, 1:]
    step = Transition(
        obs=Obs(now, now),
        action=torch.zeros(spec.num_envs, dtype=torch.int64, device=device),
        reward=torch.randn(spec.num_envs, generator=random, device=device),
        terminated=ended,
        truncated=ended,
        next_obs=Obs(following, following),
        info={},
    )
    return cfg.build(spec, gamma=0.99, seed=0, device=device), step


def _frames_speed(device: torch.device, seconds: float) -> dict[str, Any]:
    """Batches of 512: each sampled batch is also given new priorities."""
    replay, step = frames_replay(device)
    random = torch.Generator(device).manual_seed(0)
    error = torch.rand(TREE_BATCH, generator=random, device=device)
    width = len(step.reward)
    appends = _rate(lambda: replay.append(step, error[:width]), seconds, device)
    for _ in range(FRAME_ROWS):
        replay.append(step, error[:width])

    def sample() -> None:
        replay.reprioritize(replay.sample(TREE_BATCH).row_id, error)

    return {
        "sizes": f"Atari {SIDE}x{SIDE}x{STACK}",
        "batch_size": TREE_BATCH,
        "append_rows_per_second": appends * width,
        "sample_and_reprioritize_rows_per_second": _rate(sample, seconds, device) * TREE_BATCH,
    }


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


def _priorities(device: torch.device, batch_size: int, seconds: float) -> list[dict[str, Any]]:
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
        return _contest(device, batch_size, seconds)
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
                rate = _stretch(getattr(one, part), seconds / 12 / TREE_ROUNDS, one.device, clock)
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


def _stretch(
    work: Callable[[], object], seconds: float, device: torch.device, clock: Callable[[], float]
) -> float:
    """Calls per second."""
    count, start = 0, clock()
    while count == 0 or clock() - start < seconds:
        for _ in range(10):
            work()
        _wait(device)
        count += 10
    return count / (clock() - start)


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
    spec = make_spec(1, 1, 1000, 1000, device)
    proportional = ProportionalConfig(alpha=ALPHA, largest_weight=largest)
    cfg = ReplayConfig(capacity=TREE_ITEMS, sampler=proportional)
    replay = cfg.build(spec, gamma=0.99, seed=0, device=device)
    sampler, ring = replay.sampler, replay.ring
    assert isinstance(sampler, Proportional)
    ring.size = ring.written = TREE_ITEMS // spec.num_envs  # no rows, only their places
    ring.moved()
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
        index, _ = sampler.sample(items, mine.batch_size)
        sampler.update_priority(index, mine.next_error())

    return Contestant(
        name,
        update=lambda: sampler.update_priority(*mine.next()),
        sample=lambda: sampler.sample(items, mine.batch_size),
        cycle=cycle,
        device=cpu,
    )
