"""Updates per second of BRO, beside the public torch port where it is at hand, and of eight seeds as one.

python benchmarks/bro_speed.py --port /path/to/bro_torch.py --out bro-speed.json

The port is a file of naumix/BiggerRegularizedOtimistic_Torch, read from where you keep it. Its update has neither the
optimistic actor nor its two adjusted numbers, which is `bro_minimal` here; `bro_fast` is the whole algorithm. Both take
the same number of rows of the same sizes; ours draws them from its replay, the port is given them on the device.
All are measured in turns in one run. `--train` also trains bro_fast/walker-run for a while, alone and with eight seeds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fleetfoot import api, recipes
from fleetfoot.agents.contract import Agent
from fleetfoot.bench.provenance import provenance
from fleetfoot.data import Continuous, EnvSpec, Obs, Transition
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.execution import Precision, make_learner
from fleetfoot.log import LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import Replay
from fleetfoot.topologies.multi_seed.loop import joint_replay
from fleetfoot.topologies.multi_seed.vmap import stack

OBS, ACTIONS, ROWS, FILLED = 24, 6, 128, 1_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--port", type=Path, help="bro_torch.py of the public torch port")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=600, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", type=int, default=0, help="vec steps of training after warm-up")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    variants: dict[str, tuple[int, Callable[[int], None]]] = {}
    if args.port:
        variants["public port"] = 1, port(args.port, device)
    for name in ("bro_minimal", "bro_fast"):
        recipe = replace(recipes.get(f"{name}/walker-run"), device=args.device)
        variants[name] = 1, alone(recipe, device)
        variants[f"{name}, {args.seeds} seeds"] = args.seeds, together(recipe, device, args.seeds)
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _, update in variants.values():
        update(40)  # compiles and records
    for _ in range(args.rounds):
        for name, (seeds, update) in variants.items():
            begun = time.perf_counter()
            update(args.updates)
            wait(device)
            rates[name].append(seeds * args.updates / (time.perf_counter() - begun))
    found: dict[str, Any] = {
        name: {"updates_per_second": statistics.median(each), "rounds": each}
        for name, each in rates.items()
    }
    for name, each in found.items():
        print(f"{name:24} {each['updates_per_second']:10,.0f} updates/s, all seeds together")
    result = {"made_with": provenance(), "batch_size": ROWS, "updates": found}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.train:
        result["training"] = training(args.train, args.seeds, args.device)
        print(json.dumps(result["training"]))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def port(path: Path, device: torch.device) -> Callable[[int], None]:
    spec = importlib.util.spec_from_file_location("bro_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agent = module.BRO(OBS, ACTIONS, str(device))
    seen, following = (torch.randn(ROWS, OBS, device=device) for _ in range(2))
    action = torch.rand(ROWS, ACTIONS, device=device) * 2 - 1
    reward, over = torch.rand(ROWS, device=device), torch.zeros(ROWS, device=device)

    def update(count: int) -> None:
        for _ in range(count):
            agent.single_update(seen, following, action, reward, over)

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
    small = replace(recipe.replay, capacity=FILLED)
    replay = small.build(spec_of(device), gamma=0.99, seed=0, device=device)
    fill(replay, 1, device)
    return updates(built(recipe, device, 0), replay, device, recipe.precision)


def together(recipe: Recipe, device: torch.device, seeds: int) -> Callable[[int], None]:
    small = replace(recipe, replay=replace(recipe.replay, capacity=FILLED))
    replay = joint_replay(small, spec_of(device), range(seeds))
    fill(replay, seeds, device)
    agent = stack(built(recipe, device, 0), [built(recipe, device, s) for s in range(seeds)])
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
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        api.train(recipe, Path(folder) / "one")
        api.train_seeds(recipe, seeds, Path(folder) / "many")
        for name, place in (("one", "one"), ("many", f"many/seed-{recipe.seed}")):
            lines = read_lines(Path(folder) / place / "metrics.jsonl")
            lines = [line for line in lines if line["vec_steps"] >= begin]
            first, last = lines[0], lines[-1]
            steps = last["vec_steps"] - first["vec_steps"]
            seconds = last["train_seconds"] - first["train_seconds"]
            found[name] = {"ms_per_vec_step": 1e3 * seconds / steps, "vec_steps": steps}
            found[name] |= {k: v for k, v in last.items() if k.startswith("time/")}
    ratio = seeds * found["one"]["ms_per_vec_step"] / found["many"]["ms_per_vec_step"]
    return found | {"seeds": seeds, "times_the_throughput_of_one_after_the_other": ratio}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
