"""What the replay costs: bytes per transition, rows per second in and out, and the sum tree of prioritised replay."""

from __future__ import annotations

from typing import Any, Literal

import torch

from benchmarks.rates import rate
from benchmarks.speed import priorities
from fleetfoot.data import Batch, Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.replay.replay import GIB, Replay, ReplayConfig
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.system import resolve_device

# name: observation size, action size, environments, rows per environment, episode length
SIZES = {
    "HalfCheetah-v5": (17, 6, 64, 15_625, 1000),
    "Ant-v5": (27, 8, 64, 15_625, 1000),
    "Isaac G1": (123, 37, 4096, 10_240, 1000),
}

STACK, SIDE = 4, 84  # an Atari observation
FRAME_ROWS = 500  # per console


def bench_replay(
    batch_size: int = 4096,
    num_envs: int = 256,
    obs_size: int = 64,
    action_size: int = 8,
    n_step: int = 3,
    seconds: float = 10.0,
    device: str = "auto",
) -> dict[str, Any]:
    """Memory and speed of the replay.

    Memory of the ring beside that of storing obs and next_obs whole, the speed of append and sample, both for Atari
    frames under priorities, and priorities alone: two million items, beside TorchRL's sampler where there is one.
    """
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
        "priorities": priorities.contest(place, seconds),
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
    appends = rate(lambda: replay.append(step), seconds, device)
    for _ in range(1000):
        replay.append(step)
    samples = rate(lambda: replay.sample(batch_size), seconds, device)
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
    return size * rate(lambda: other.copy_(one), 1.0, device)


def _bytes(batch: Batch) -> int:
    """Of all that a batch holds, what actor and critic share once."""
    obs = [*{id(t): t for o in (batch.obs, batch.next_obs) for t in o[:2]}.values()]
    plain = (batch.action, batch.reward, batch.discount, batch.weight, batch.row_id)
    return sum(t.nbytes for t in (*obs, *plain))


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
    error = torch.rand(priorities.TREE_BATCH, generator=random, device=device)
    width = len(step.reward)
    appends = rate(lambda: replay.append(step, error[:width]), seconds, device)
    for _ in range(FRAME_ROWS):
        replay.append(step, error[:width])

    def sample() -> None:
        replay.reprioritize(replay.sample(priorities.TREE_BATCH).row_id, error)

    return {
        "sizes": f"Atari {SIDE}x{SIDE}x{STACK}",
        "batch_size": priorities.TREE_BATCH,
        "append_rows_per_second": appends * width,
        "sample_and_reprioritize_rows_per_second": rate(sample, seconds, device)
        * priorities.TREE_BATCH,
    }
