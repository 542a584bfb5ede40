"""What the replay costs: bytes per transition, and rows per second in and out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch

from fleetfoot.data import Continuous, EnvSpec, Obs, Transition
from fleetfoot.part import UserError
from fleetfoot.recipe import resolve_device
from fleetfoot.replay.replay import GIB, ReplayConfig
from fleetfoot.replay.ring import Ring

# name: observation size, action size, environments, rows per environment, episode length
SIZES = {
    "HalfCheetah-v5": (17, 6, 64, 15_625, 1000),
    "Ant-v5": (27, 8, 64, 15_625, 1000),
    "Isaac G1": (123, 37, 4096, 10_240, 1000),
}


def bench_replay(
    batch_size: int = 4096,
    num_envs: int = 256,
    obs_size: int = 64,
    action_size: int = 8,
    n_step: int = 3,
    seconds: float = 10.0,
    device: str = "auto",
) -> dict[str, Any]:
    """Memory of the ring beside that of storing obs and next_obs whole, and the speed of append and sample."""
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
    row_bytes = 4 * (2 * spec.obs_shape[0] + spec.action.size + 2)
    return {
        "storage": storage,
        "append_rows_per_second": appends * spec.num_envs,
        "sample_rows_per_second": samples * batch_size,
        "sample_gb_per_second": samples * batch_size * row_bytes / 1e9,
    }


def _rate(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Calls per second, best of three stretches."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(10):
        work()
    wait()
    best = 0.0
    for _ in range(3):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            for _ in range(10):
                work()
            wait()
            count += 10
        best = max(best, count / (time.perf_counter() - start))
    return best
