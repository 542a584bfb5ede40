"""How fast the Playground adapter is, beside the compiled step it is made of and Playground's own wrapper.

All contestants run in one process, in turns, on the same task with the same actions. A round is
timed as a whole: launches run ahead of the device, so only the wait at its end says how long it took.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.rates import medians, wait
from fleetfoot.data import Continuous
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.envs.playground import task as playground_task
from fleetfoot.errors import UserError
from fleetfoot.system import resolve_device

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
    spent: dict[str, list[float]] = {name: [] for name in contestants}
    start, turn = time.perf_counter(), 0
    while turn < rounds or time.perf_counter() - start < seconds:
        order = list(contestants) if turn % 2 == 0 else list(reversed(contestants))
        for name in order:
            spent[name].append(contestants[name](steps) / steps)
        turn += 1
    step_seconds = medians(spent)
    speed = {name: num_envs / seconds for name, seconds in step_seconds.items()}
    ratio = speed["fleetfoot"] / speed["raw"]
    result = {
        "task": config.task,
        "num_envs": num_envs,
        "device": str(where),
        "rounds": turn,
        "steps_per_round": steps,
        "milliseconds_per_vec_step": {
            name: 1e3 * seconds for name, seconds in step_seconds.items()
        },
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

    def play(steps: int) -> float:
        env.reset()
        wait(device)
        begin = time.perf_counter()
        for t in range(steps):
            env.step(script[t % 16])
        wait(device)
        return time.perf_counter() - begin

    return play


def _raw(config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device) -> Round:
    """The task that our adapter has loaded, from the states it begins with: nothing but the step is compiled anew."""
    jax: Any = importlib.import_module("jax")
    env = config.build(num_envs, seed, device)
    env.reset()
    first = jax.tree.map(lambda leaf: leaf.copy(), env._program._state(env._running))
    step = jax.vmap(env._program.task.env.step)
    return _timed(step, first, _script(env._program.task, num_envs, seed), env._program.task)


def _wrapped(config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device) -> Round:
    jax: Any = importlib.import_module("jax")
    wrapper: Any = importlib.import_module("mujoco_playground").wrapper
    env = config.build(num_envs, seed, device)
    task = env._program.task
    wrapped = wrapper.wrap_for_brax_training(task.env, episode_length=env.spec.episode_length)
    with playground_task.on(task.device):
        keys = jax.random.split(jax.random.PRNGKey(seed), num_envs)
        first = jax.jit(lambda keys: _strong(wrapped.reset(keys)))(keys)
    return _timed(wrapped.step, first, _script(task, num_envs, seed), task)


def _timed(step: Any, first: Any, script: list[Any], task: playground_task.Task) -> Round:
    jax: Any = importlib.import_module("jax")
    state = jax.device_put(first, task.device)
    compiled = jax.jit(lambda state, action: _strong(step(state, action)), donate_argnums=0)

    def play(steps: int) -> float:
        nonlocal state  # it stays in its memory: Warp finds its CUDA graphs by address
        begin = time.perf_counter()
        for t in range(steps):
            state = compiled(state, script[t % 16])
        jax.block_until_ready(state)
        return time.perf_counter() - begin

    return play


def _script(task: playground_task.Task, num_envs: int, seed: int) -> list[Any]:
    jax: Any = importlib.import_module("jax")
    drawn = torch.rand(16, num_envs, task.action_size, generator=_generator(seed)) * 2 - 1
    return [jax.device_put(action.numpy(), task.device) for action in drawn]


def _strong(state: Any) -> Any:
    """Without weak types, for which the second step would be compiled anew."""
    jax: Any = importlib.import_module("jax")
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
