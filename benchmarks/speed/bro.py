"""Updates per second of BRO, beside the public torch port where it is at hand, and of several seeds as one."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.rates import wait
from fleetfoot import api, recipes
from fleetfoot.agents.contract import Agent
from fleetfoot.data import Continuous, EnvSpec, Obs, Transition
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.execution import Precision, make_learner
from fleetfoot.log import LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import Replay
from fleetfoot.system import resolve_device
from fleetfoot.topologies.multi_seed.replay import build_replay
from fleetfoot.topologies.multi_seed.vmap import stack

OBS, ACTIONS, ROWS, FILLED = 24, 6, 128, 1_000


def bench_bro(
    port: Path | None = None,
    seeds: int = 8,
    updates: int = 600,
    rounds: int = 5,
    train: int = 0,
    device: str = "auto",
) -> Iterator[dict[str, Any]]:
    """Updates per second of all seeds together, measured in turns in one run.

    The public port (naumix/BiggerRegularizedOtimistic_Torch) is read from a file of yours. Its update has neither the
    optimistic actor nor its two adjusted numbers, which is `bro_minimal` here; `bro_fast` is the whole algorithm. Both
    take the same number of rows of the same sizes; ours draws them from its replay, the port is given them on the
    device.

    :param port: bro_torch.py of the public port.
    :param seeds: Seeds as one computation.
    :param updates: Updates of each round.
    :param rounds: The median counts.
    :param train: Vec steps of training bro_fast/walker-run after warm-up, alone and with all seeds; 0: none.
    :param device: auto, cpu, cuda or cuda:K.
    """
    place = resolve_device(device)
    variants: dict[str, tuple[int, Callable[[int], None]]] = {}
    if port is not None:
        variants["public port"] = 1, public_port(port, place)
    for name in ("bro_minimal", "bro_fast"):
        recipe = replace(recipes.get(f"{name}/walker-run"), device=device)
        variants[name] = 1, alone(recipe, place)
        variants[f"{name}, {seeds} seeds"] = seeds, together(recipe, place, seeds)
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _, update in variants.values():
        update(40)  # compiles and records
    for _ in range(rounds):
        for name, (count, update) in variants.items():
            begun = time.perf_counter()
            update(updates)
            wait(place)
            rates[name].append(count * updates / (time.perf_counter() - begun))
    rows = [
        {"variant": name, "updates_per_second": statistics.median(values), "rounds": values}
        for name, values in rates.items()
    ]
    result: dict[str, Any] = {"batch_size": ROWS, "updates": rows}
    yield result
    if train:
        yield result | {"training": training(train, seeds, device)}


def public_port(path: Path, device: torch.device) -> Callable[[int], None]:
    spec = importlib.util.spec_from_file_location("bro_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agent = module.BRO(OBS, ACTIONS, str(device))
    obs, next_obs = (torch.randn(ROWS, OBS, device=device) for _ in range(2))
    action = torch.rand(ROWS, ACTIONS, device=device) * 2 - 1
    reward, over = torch.rand(ROWS, device=device), torch.zeros(ROWS, device=device)

    def update(count: int) -> None:
        for _ in range(count):
            agent.single_update(obs, next_obs, action, reward, over)

    return update


def spec_of(device: torch.device) -> EnvSpec:
    return EnvSpec(
        name="made up",
        num_envs=1,
        obs_shape=(OBS,),
        action=Continuous(ACTIONS),
        device=device,
        episode_length=1_000,
    )


def built(recipe: Recipe, device: torch.device, seed: int) -> Agent:
    return recipe.agent.build(
        spec_of(device), gamma=0.99, total_updates=10**6, seed=seed, device=device
    )


def alone(recipe: Recipe, device: torch.device) -> Callable[[int], None]:
    small = replace(recipe.off_policy_replay(), capacity=FILLED)
    replay = small.build(spec_of(device), gamma=0.99, seed=0, device=device)
    fill(replay, 1, device)
    return updates(built(recipe, device, 0), replay, device, recipe.precision)


def together(recipe: Recipe, device: torch.device, seeds: int) -> Callable[[int], None]:
    small = replace(recipe, replay=replace(recipe.off_policy_replay(), capacity=FILLED))
    replay = build_replay(small, range(seeds), spec_of(device))
    fill(replay, seeds, device)
    agent = built(recipe, device, 0)
    stack(agent, [built(recipe, device, seed) for seed in range(seeds)])
    return updates(agent, replay, device, recipe.precision)


def updates(
    agent: Agent, replay: Replay, device: torch.device, precision: Precision
) -> Callable[[int], None]:
    learn = make_learner(agent, replay, ROWS, precision=precision, mode="auto", device=device)

    def update(count: int) -> None:
        for _ in range(count // 2):
            learn(2)

    return update


def fill(replay: Replay, rows: int, device: torch.device) -> None:
    nowhere = torch.zeros(rows, dtype=torch.bool, device=device)
    obs = torch.randn(FILLED + 1, rows, OBS, device=device)
    action = torch.rand(FILLED, rows, ACTIONS, device=device) * 2 - 1
    reward = torch.rand(FILLED, rows, device=device)
    for t in range(FILLED):
        now, then = Obs(obs[t], obs[t]), Obs(obs[t + 1], obs[t + 1])
        replay.append(Transition(now, action[t], reward[t], nowhere, nowhere, then, {}))


def training(vec_steps: int, seeds: int, device: str) -> dict[str, Any]:
    """Seconds of training per vec step, once everything is compiled."""
    recipe = recipes.get("bro_fast/walker-run")
    begin = recipe.pace.warmup_vec_steps + 501  # its first log line comes when all is compiled
    every = 500
    recipe = replace(
        recipe,
        device=device,
        total_vec_steps=begin - begin % every + every + vec_steps,
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=1, max_vec_steps=10),
        log=LogConfig(every_vec_steps=every, console=False, tensorboard=False),
    )
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        api.train(recipe, Path(folder) / "one")
        api.train_seeds(recipe, seeds, Path(folder) / "many")
        for name, place in (("one", "one"), ("many", f"many/seed-{recipe.seed}")):
            lines = read_lines(Path(folder) / place / "metrics.jsonl")
            lines = [line for line in lines if line["vec_steps"] >= begin]
            first, last = lines[0], lines[-1]
            steps = last["vec_steps"] - first["vec_steps"]
            seconds = last["train_seconds"] - first["train_seconds"]
            measured[name] = {"ms_per_vec_step": 1e3 * seconds / steps, "vec_steps": steps}
            measured[name] |= {k: v for k, v in last.items() if k.startswith("time/")}
    ratio = seeds * measured["one"]["ms_per_vec_step"] / measured["many"]["ms_per_vec_step"]
    return measured | {"seeds": seeds, "times_the_throughput_of_one_after_the_other": ratio}
