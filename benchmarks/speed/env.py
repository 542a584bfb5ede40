"""How fast the embedded environment is, beside what it is made of and what it replaces.

Four contestants take turns in one process, several rounds each, and the median round counts: a
machine that gets busy halfway slows all of them. All step the same task with random actions that
were drawn beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from mujoco import rollout

from benchmarks.rates import Contestant, medians, player, take_turns
from benchmarks.speed.playground import bench_playground
from fleetfoot.envs.mujoco import MuJoCoEnv
from fleetfoot.envs.mujoco import tasks as mujoco_tasks
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.errors import UserError
from fleetfoot.system import usable_cores

# The observations our tasks leave out, so that Gymnasium does not have to gather them either.
_LEFT_OUT = {
    "Ant-v5": ("cfrc_ext",),
    "Humanoid-v5": ("cfrc_ext", "cinert", "cvel", "qfrc_actuator"),
}


def bench_env(
    task: str = "HalfCheetah-v5",
    num_envs: int = 128,
    seconds: float = 20.0,
    *,
    threads: int = 0,
    rounds: int = 5,
    seed: int = 0,
    device: str = "auto",
) -> dict[str, Any]:
    """Env steps per second of each contestant, and the ratios that matter.

    A task of MuJoCo Playground is measured on `device`, beside its own compiled step and Playground's wrapper; the rest
    of this text, and `threads`, are about Gymnasium's MuJoCo tasks.

    `seconds` is the measured time in all, shared equally among contestants and rounds.
    `raw` is `mujoco.rollout` on the same model, with the same threads, the same frame skip and
    nothing around it: no observations, rewards, terminations or restarts. It is given the very
    states and controls our environment goes through.
    """
    if num_envs < 1 or rounds < 1 or seconds <= 0:
        raise UserError("bench env needs num_envs >= 1, rounds >= 1 and seconds > 0")
    if task not in mujoco_tasks.names() and not task.endswith("-v5"):
        playground = PlaygroundConfig(task=task)
        return bench_playground(
            playground, num_envs, seconds, device=device, rounds=rounds, seed=seed
        )
    threads = threads or usable_cores()
    closers: list[Callable[[], None]] = []
    try:
        contestants = {
            "fleetfoot": _ours(task, num_envs, threads, seed, closers),
            "raw": _raw(task, num_envs, threads, seed, closers),
            "gymnasium_sync": _gymnasium(task, num_envs, "sync", seed, closers),
            "gymnasium_async": _gymnasium(task, num_envs, "async", seed, closers),
        }
        rates = take_turns(contestants, seconds, rounds, times=num_envs)
    finally:
        for close in closers:
            close()
    speed = medians(rates)
    best = max(speed["gymnasium_sync"], speed["gymnasium_async"])
    return {
        "task": task,
        "num_envs": num_envs,
        "threads": threads,
        "rounds": rounds,
        "mujoco": mujoco.__version__,
        "gymnasium": gymnasium.__version__,
        "env_steps_per_second": speed,
        "rounds_env_steps_per_second": rates,
        "ratio_to_raw": speed["fleetfoot"] / speed["raw"],
        "ratio_to_best_gymnasium": speed["fleetfoot"] / best,
    }


def _ours(
    task: str, num_envs: int, threads: int, seed: int, closers: list[Callable[[], None]]
) -> Contestant:
    """The same 200 vec steps over and over, so that `raw` can be given the same work."""
    env = MuJoCoEnv(mujoco_tasks.find(task), num_envs, seed, threads=threads)
    closers.append(env.close)
    env.reset()
    begin = env.state_dict()
    script = torch.from_numpy(_actions(num_envs, env.spec.action.size, seed))  # type: ignore[union-attr]

    def step(i: int) -> None:
        if i == 0:
            env.load_state_dict(begin)
        env.step(script[i])

    return player(step, range(len(script)))


def _raw(
    task: str, num_envs: int, threads: int, seed: int, closers: list[Callable[[], None]]
) -> Contestant:
    """`mujoco.rollout` from every state our environment goes through, with the same controls."""
    chosen = mujoco_tasks.find(task)
    model = mujoco.MjModel.from_xml_path(chosen.model)
    actions = _actions(num_envs, model.nu, seed)
    env = MuJoCoEnv(chosen, num_envs, seed, threads=threads)
    env.reset()
    begins = []
    for action in torch.from_numpy(actions):
        begins.append(env.state_dict()["state"].numpy())
        env.step(action)
    env.close()

    pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
    closers.append(pool.close)
    models = [model] * num_envs
    data = [mujoco.MjData(model) for _ in range(threads)]
    low, high = model.actuator_ctrlrange.T
    script = (low + high) / 2 + (high - low) / 2 * actions.astype(np.float64)
    controls = np.repeat(script[:, :, None], chosen.frame_skip, axis=2)
    states = np.empty((num_envs, chosen.frame_skip, begins[0].shape[1]))
    sensors = np.empty((num_envs, chosen.frame_skip, model.nsensordata))

    def step(i: int) -> None:
        pool.rollout(
            models,
            data,
            begins[i],
            controls[i],
            skip_checks=True,
            nstep=chosen.frame_skip,
            state=states,
            sensordata=sensors,
        )

    return player(step, range(len(controls)))


def _gymnasium(
    task: str, num_envs: int, mode: str, seed: int, closers: list[Callable[[], None]]
) -> Contestant:
    flags: dict[str, Any] = {
        f"include_{part}_in_observation": False for part in _LEFT_OUT.get(task, ())
    }
    env: Any = gymnasium.make_vec(task, num_envs=num_envs, vectorization_mode=mode, **flags)
    closers.append(env.close)
    env.reset(seed=seed)
    low, high = env.single_action_space.low, env.single_action_space.high
    script = (low + high) / 2 + (high - low) / 2 * _actions(num_envs, len(low), seed)
    return player(env.step, script)


def _actions(num_envs: int, size: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    generator = np.random.default_rng(seed)
    return generator.uniform(-1, 1, (200, num_envs, size)).astype(np.float32)
