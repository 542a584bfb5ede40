"""How fast the robots are, beside the bare physics, and whether a captured vec step is the eager one.

On a GPU the bare physics is one CUDA graph of MuJoCo Warp's timesteps, nothing else. On a CPU it is one call of
`mujoco.rollout`. Both start from the same standing robots as the environment, and take turns with it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.rates import wait
from fleetfoot.envs.robot import RobotConfig, RobotEnv
from fleetfoot.envs.robot.config import Ground
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.errors import UserError
from fleetfoot.system import resolve_device

TURNS = 5


def bench_robot(
    robots: tuple[str, ...] = ("t1",),
    variants: tuple[Literal["stock", "fast"], ...] = ("stock", "fast"),
    sizes: tuple[int, ...] = (1_024, 4_096, 16_384),
    *,
    ground: Ground = "flat",
    vec_steps: int = 50,
    check: bool = True,
    seed: int = 0,
    device: str = "auto",
) -> Iterator[dict[str, Any]]:
    """Milliseconds per vec step of each robot, variant and size: bare physics, the environment, and their ratio.

    `vec_steps` is the length of a turn. `check`: on a GPU, captured vec steps are compared with eager ones first, and a
    difference beyond rounding is an error.
    """
    place = resolve_device(device)
    if vec_steps < 1 or not robots or not variants or not sizes or min(sizes) < 1:
        raise UserError("bench robot needs robots, variants, sizes and vec_steps of at least 1.")
    result: dict[str, Any] = {"device": str(place)}
    if check and place.type == "cuda":
        result["captured_against_eager"] = [check_captured(name, place, seed) for name in robots]
        yield result
    engine: Literal["warp", "cpu"] = "warp" if place.type == "cuda" else "cpu"
    result["milliseconds_per_vec_step"] = []
    for robot in robots:
        for variant in variants:
            for size in sizes:
                row = {"robot": robot, "variant": variant, "ground": ground, "robots": size}
                env = RobotConfig(robot=robot, variant=variant, ground=ground, engine=engine)
                row |= measure(env, size, place, vec_steps, seed)
                result["milliseconds_per_vec_step"].append(row)
                yield result


def check_captured(robot: str, device: torch.device, seed: int) -> dict[str, Any]:
    """Largest differences between a captured and an eager set. UserError where they are more than rounding.

    Sums of the physics have no fixed order on a GPU, so after the first vec step the two differ by rounding, and later
    by more. Episodes are short, so that restarts are compared too: those are exact.
    """
    config = RobotConfig(robot=robot, engine="warp", episode_length=3)
    both = [
        dataclasses.replace(config, execution=way).build(64, seed, device)
        for way in ("eager", "captured")
    ]
    obs = [env.reset() for env in both]
    row: dict[str, Any] = {"robot": robot, "reset": gap(obs[0].critic, obs[1].critic)}
    generator = torch.Generator(device).manual_seed(seed)
    for t in range(1, 7):
        action = 0.4 * torch.rand(both[0]._given.shape, generator=generator, device=device) - 0.2
        one, other = (env.step(action) for env in both)
        alike = ~(one.terminated | one.truncated | other.terminated)
        restarted = one.truncated & other.truncated
        row[f"reward_{t}"] = gap(one.reward[alike], other.reward[alike])
        row[f"obs_{t}"] = gap(one.next_obs.actor[alike], other.next_obs.actor[alike])
        if bool(restarted.any()):
            row[f"restart_{t}"] = gap(one.obs.critic[restarted], other.obs.critic[restarted])
    for env in both:
        env.close()
    exact = [value for name, value in row.items() if name.startswith(("reset", "restart"))]
    if max(exact) > 0.0 or row["reward_1"] > 1e-3 or row["obs_1"] > 0.1:
        raise UserError(f"captured vec steps of {robot} differ from eager ones: {row}")
    return row


def measure(
    config: RobotConfig,
    size: int,
    device: torch.device,
    vec_steps: int,
    seed: int,
) -> dict[str, Any]:
    """One row of the table."""
    begin = time.perf_counter()
    env = config.build(size, seed, device)
    env.reset()
    env.step(torch.zeros_like(env._given))
    wait(device)
    build = time.perf_counter() - begin
    bare, whole = turns(env, vec_steps, device)
    row = {
        "physics": bare,
        "vec_step": whole,
        "ratio": whole / bare,
        "host": host(env, device),
        "env_steps_per_second": 1000 * size / whole,
        "first_step_after_s": build,
    }
    env.close()
    return row


def turns(env: RobotEnv, vec_steps: int, device: torch.device) -> tuple[float, float]:
    """Milliseconds per vec step of the bare physics and of the environment: the best of several turns each."""
    bare = bare_physics(env)
    action = torch.zeros_like(env._given)
    times: dict[str, list[float]] = {"bare": [], "whole": []}
    for _ in range(TURNS):
        for name, work in (("bare", bare), ("whole", lambda: env.step(action))):
            env.reset()
            env._act()
            wait(device)
            begin = time.perf_counter()
            for _ in range(vec_steps):
                work()
            wait(device)
            times[name].append(1000 * (time.perf_counter() - begin) / vec_steps)
    return min(times["bare"]), min(times["whole"])


def bare_physics(env: RobotEnv) -> Callable[[], object]:
    engine: Any = env.engine
    if isinstance(engine, CpuEngine):
        sim = engine.sim

        def roll() -> None:
            sim._control[:] = engine.control.numpy()[:, None]
            sim._run(sim._step, sim.state, sim._control, None, sim._states, sim._sensors)

        return roll
    with torch.cuda.stream(torch.cuda.Stream(engine.device)):  # type: ignore[no-untyped-call]
        engine.capture()  # which the default stream does not allow
    graph = engine._graph
    engine._graph = None
    return lambda: engine.wp.capture_launch(graph, stream=engine._stream())


def host(env: RobotEnv, device: torch.device) -> float:
    """Milliseconds that the host is busy with one vec step."""
    action = torch.zeros_like(env._given)
    wait(device)
    begin = time.perf_counter()
    for _ in range(5):
        env.step(action)
    spent = time.perf_counter() - begin
    wait(device)
    return 1000 * spent / 5


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if one.numel() else 0.0
