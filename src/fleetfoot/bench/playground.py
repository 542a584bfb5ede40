"""How fast the Playground adapter is, beside the compiled step it is made of and Playground's own wrapper.

All contestants run in one process, in turns, on the same task with the same actions, from fresh episodes. A round is
timed as a whole: launches run ahead of the device, so only the wait at its end says how long it took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from fleetfoot.data import Continuous
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.part import UserError
from fleetfoot.recipe import resolve_device

BAR = 0.95  # of the speed of the raw compiled step
Round = Callable[[int], float]  # vec steps -> seconds


def bench_playground(
    config: PlaygroundConfig,
    num_envs: int,
    seconds: float,
    *,
    device: str = "auto",
    rounds: int = 5,
    steps: int = 50,
    seed: int = 0,
    wrapper: bool = True,
) -> dict[str, Any]:
    """Env steps per second of each contestant.

    `raw` is the task's own step for all robots, compiled, with its state taken over in place: no end of an episode,
    no restart, nothing handed to torch. `wrapper` is Playground's own training wrapper around it. Rounds are repeated
    for about `seconds` in all, and at least `rounds` times; the median round counts.
    """
    if num_envs < 1 or rounds < 1 or seconds <= 0 or steps < 1:
        raise UserError(
            "bench env needs num_envs >= 1, rounds >= 1, steps_per_round >= 1 and seconds > 0"
        )
    where = resolve_device(device)
    makers = {"fleetfoot": _ours, "raw": _raw, "wrapper": _wrapped}
    if not wrapper:
        del makers["wrapper"]
    contestants: dict[str, Round] = {}
    compiled: dict[str, float] = {}
    for name, make in makers.items():
        begin = time.perf_counter()
        contestants[name] = make(config, num_envs, seed, where)
        contestants[name](2)
        compiled[name] = time.perf_counter() - begin
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    start, turn = time.perf_counter(), 0
    while turn < rounds or time.perf_counter() - start < seconds:
        order = list(contestants) if turn % 2 == 0 else list(reversed(contestants))
        for name in order:
            seen[name].append(contestants[name](steps) / steps)
        turn += 1
    step_seconds = {name: statistics.median(values) for name, values in seen.items()}
    speed = {name: num_envs / spent for name, spent in step_seconds.items()}
    ratio = speed["fleetfoot"] / speed["raw"]
    result = {
        "task": config.task,
        "num_envs": num_envs,
        "device": str(where),
        "rounds": turn,
        "steps_per_round": steps,
        "milliseconds_per_vec_step": {name: 1e3 * spent for name, spent in step_seconds.items()},
        "env_steps_per_second": speed,
        "seconds_to_first_step": compiled,
        "ratio_to_raw": ratio,
        "bar": BAR,
        "passed": ratio >= BAR,
    }
    if wrapper:
        result["ratio_to_wrapper"] = speed["fleetfoot"] / speed["wrapper"]
    return result


def _ours(config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device) -> Round:
    env = config.build(num_envs, seed, device)
    assert isinstance(env.spec.action, Continuous)
    script = torch.rand(16, num_envs, env.spec.action.size, generator=_generator(seed))
    script = (script * 2 - 1).to(device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def play(steps: int) -> float:
        env.reset()
        wait()
        begin = time.perf_counter()
        for t in range(steps):
            env.step(script[t % 16])
        wait()
        return time.perf_counter() - begin

    return play


def _raw(config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device) -> Round:
    env, starts, script = _bare(config, num_envs, seed, device)
    import jax

    return _timed(jax.jit(jax.vmap(env.step), donate_argnums=0), starts, script)


def _wrapped(config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device) -> Round:
    env, starts, script = _bare(config, num_envs, seed, device, wrapped=True)
    import jax

    return _timed(jax.jit(env.step, donate_argnums=0), starts, script)


def _bare(
    config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device, wrapped: bool = False
) -> tuple[Any, Callable[[], Any], Any]:
    """A task of its own (not the one our adapter has loaded), its start, and the same actions as JAX arrays."""
    from fleetfoot.envs import playground_task

    playground_task.prepare(device)
    wanted = playground_task.Wanted.of(config, device)
    task = playground_task.load(wanted, num_envs)
    import jax
    from mujoco_playground import wrapper

    env = task.env
    length = config.episode_length or task.episode_length
    if wrapped:
        env = wrapper.wrap_for_brax_training(env, episode_length=length)
    script = torch.rand(16, num_envs, task.action_size, generator=_generator(seed)) * 2 - 1
    with playground_task.on(task.device):
        actions = [jax.device_put(action.numpy(), task.device) for action in script]
        keys = jax.random.split(jax.random.PRNGKey(seed), num_envs)
        reset = jax.jit(env.reset if wrapped else jax.vmap(env.reset))
        first = jax.device_put(reset(keys), task.device)

    def starts() -> Any:
        return jax.tree.map(lambda leaf: leaf.copy(), first)

    return env, starts, actions


def _timed(step: Any, starts: Callable[[], Any], script: Any) -> Round:
    import jax

    def play(steps: int) -> float:
        state = jax.block_until_ready(starts())
        begin = time.perf_counter()
        for t in range(steps):
            state = step(state, script[t % 16])
        jax.block_until_ready(state)
        return time.perf_counter() - begin

    return play


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
