"""How fast the robots are, beside the bare physics, and whether a recorded vec step is the eager one.

On a GPU the bare physics is one CUDA graph of MuJoCo Warp's timesteps, nothing else. On a CPU it is one call of
`mujoco.rollout`. Both start from the same standing robots as the environment, and take turns with it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.rates import wait
from fleetfoot.envs.robot import RobotConfig, RobotEnv
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.errors import UserError
from fleetfoot.system import resolve_device

TURNS = 5


def bench_robot(
    robots: tuple[str, ...] = ("t1",),
    variants: tuple[Literal["stock", "fast"], ...] = ("stock", "fast"),
    sizes: tuple[int, ...] = (1_024, 4_096, 16_384),
    *,
    vec_steps: int = 50,
    check: bool = True,
    ways: tuple[Literal["one", "three", "compiled"], ...] = ("one", "three", "compiled"),
    seed: int = 0,
    device: str = "auto",
) -> Iterator[dict[str, Any]]:
    """Milliseconds per vec step of each robot, variant and size: bare physics, the environment, and their ratio.

    `vec_steps` is the length of a turn. `ways` are those to record a vec step on a GPU: as one CUDA graph, as three,
    and as one with the task compiled by torch. `check` compares recorded vec steps with eager ones first.
    """
    place = resolve_device(device)
    if vec_steps < 1 or not robots or not sizes or min(sizes) < 1:
        raise UserError("bench robot needs robots, sizes and vec_steps of at least 1.")
    result: dict[str, Any] = {"device": str(place)}
    if check and place.type == "cuda":
        result["recorded_against_eager"] = []
        for robot in robots:
            result["recorded_against_eager"] += [
                check_recorded(robot, place, way, seed) for way in ways
            ]
            yield result
    result["milliseconds_per_vec_step"] = []
    for robot in robots:
        for variant in variants:
            for size in sizes:
                row = {"robot": robot, "variant": variant, "robots": size}
                row |= measure(robot, variant, size, place, ways, vec_steps, seed)
                result["milliseconds_per_vec_step"].append(row)
                yield result


def check_recorded(robot: str, device: torch.device, way: str, seed: int) -> dict[str, Any]:
    """Largest differences after 1 and 25 vec steps between a recorded and an eager set, physics made deterministic."""
    config = RobotConfig(robot=robot, engine="warp", deterministic=True, episode_length=20)
    both = [build(config, "eager", 64, seed, device), build(config, way, 64, seed, device)]
    obs = [env.reset() for env in both]
    row: dict[str, Any] = {"robot": robot, "way": way, "reset": gap(obs[0].critic, obs[1].critic)}
    generator = torch.Generator(device).manual_seed(seed)
    for t in range(25):
        action = 2 * torch.rand(both[0]._given.shape, generator=generator, device=device) - 1
        one, other = (env.step(action) for env in both)
        if t in (0, 24):
            row[f"obs_{t + 1}"] = gap(one.obs.critic, other.obs.critic)
            row[f"reward_{t + 1}"] = gap(one.reward, other.reward)
    row["ends_equal"] = bool((one.terminated == other.terminated).all())
    for env in both:
        env.close()
    return row


def measure(
    robot: str,
    variant: Literal["stock", "fast"],
    size: int,
    device: torch.device,
    ways: tuple[str, ...],
    vec_steps: int,
    seed: int,
) -> dict[str, Any]:
    """One row of the table."""
    on_gpu = device.type == "cuda"
    config = RobotConfig(robot=robot, variant=variant, engine="warp" if on_gpu else "cpu")
    row: dict[str, Any] = {}
    for way in ways if on_gpu else ("eager",):
        begin = time.perf_counter()
        env = build(config, way, size, seed, device)
        env.reset()
        env.step(torch.zeros_like(env._given))
        wait(device)
        row[f"{way}_build_s"] = time.perf_counter() - begin
        bare, whole = turns(env, vec_steps, device)
        row.setdefault("physics", bare)
        row |= {way: whole, f"{way}_ratio": whole / bare, f"{way}_host": host(env, device)}
        row.setdefault("env_steps_per_second", 1000 * size / whole)
        env.close()
    return row


def build(config: RobotConfig, way: str, size: int, seed: int, device: torch.device) -> RobotEnv:
    """A set whose vec step runs in this way: eager, one, three or compiled."""
    import dataclasses

    from fleetfoot.envs.robot.record import record

    env = dataclasses.replace(config, execution="eager").build(size, seed, device)
    if way != "eager":
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            env._run = record(env, compiled=way == "compiled", one_graph=way != "three")
    return env


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
    engine.record()
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
    return float((one - other).abs().max())
