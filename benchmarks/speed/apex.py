"""What an Ape-X actor costs beside the bare vector environment of ale-py, on one core.

All contestants take turns in one process with one thread, and who begins alternates from round to round; the median
round counts. Seconds are seconds of a core, so that others' work on the machine changes little. An actor does all of
its work: it acts with the network of the recipe, steps the games, states the first priorities, packs a block, and
serialises it as it would for another process.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.rates import Contestant, medians, player, take_turns
from benchmarks.speed.atari import BAR, bare_step
from fleetfoot import recipes
from fleetfoot.data import Discrete, Obs
from fleetfoot.envs.atari import FRAME_SKIP, AtariConfig
from fleetfoot.errors import UserError
from fleetfoot.topologies.apex.actor import Actor
from fleetfoot.topologies.ray.transport import pack_recipe, to_arrays


def bench_apex(
    game: str = "Pong",
    num_envs: int = 64,
    seconds: float = 30.0,
    *,
    lines: int = 16,
    rounds: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Frames per second of one core: an actor of apex_dqn/pong in float32 and in bf16, and the bare AtariVectorEnv.

    `seconds` is the measured time in all; `lines` are the vec steps of a block.
    """
    if num_envs < 1 or rounds < 1 or seconds <= 0 or lines < 1:
        raise UserError("bench apex needs num_envs, rounds and lines >= 1, and seconds > 0.")
    torch.set_num_threads(1)
    base = recipes.get("apex_dqn/pong")
    env = AtariConfig(game=game, threads=1)
    recipe = replace(base, env=env, num_envs=num_envs, seed=seed, device="cpu")
    actors = {name: _actor(recipe, bf16=name == "bf16") for name in ("float32", "bf16")}
    probe = env.build(num_envs, seed, torch.device("cpu"))
    assert isinstance(probe.spec.action, Discrete)
    script = np.random.default_rng(seed).integers(probe.spec.action.count, size=(200, num_envs))
    bare = player(bare_step(game, num_envs, 1, probe.seeds), script, time.process_time)
    probe.close()
    sent: dict[str, int] = {}
    contestants: dict[str, Contestant] = {"bare": bare}
    for name, (actor, weights) in actors.items():
        contestants[f"actor_{name}"] = _collector(name, actor, weights, lines, sent)
    # The first blocks wait for their windows.
    rates = take_turns(contestants, seconds, rounds, times=num_envs, warm_up=0.5)
    speed = medians(rates)
    ratios = {name: speed[name] / speed["bare"] for name in speed if name != "bare"}
    agents = {name: actor.agent for name, (actor, _) in actors.items()}
    return {
        "game": game,
        "num_envs": num_envs,
        "block_vec_steps": lines,
        "rounds": rounds,
        "frames_per_second_per_core": {name: rate * FRAME_SKIP for name, rate in speed.items()},
        "rounds_env_steps_per_second": rates,
        "ratio_to_bare": ratios,
        "network_microseconds_per_row": _network(agents, actors["float32"][0].spec, num_envs),
        "bytes_sent_per_row": {name: sent[name] / (lines * num_envs) for name in sent},
        "bar": BAR,
        "passed": max(ratios.values()) >= BAR,
    }


def _actor(recipe: Any, *, bf16: bool) -> tuple[Actor, Any]:
    topology = replace(recipe.topology, actors=1, acting="bf16" if bf16 else "float32")
    actor = Actor(pack_recipe(replace(recipe, topology=topology)), number=0, incarnation=0)
    actor.start()
    weights = {name: value.float() for name, value in actor.agent.behaviour.state_dict().items()}
    return actor, to_arrays({"behaviour": weights})


def _collector(
    name: str, actor: Actor, weights: Any, lines: int, sent: dict[str, int]
) -> Contestant:
    """A function that collects for some seconds and tells the vec steps per second."""

    def play(seconds: float) -> float:
        blocks, start = 0, time.process_time()
        while (spent := time.process_time() - start) < seconds or blocks == 0:
            block = actor.collect(lines, 1, weights)
            buffers: list[pickle.PickleBuffer] = []
            text = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
            raw = [bytes(buffer.raw()) for buffer in buffers]  # the copy into shared memory
            sent[name] = len(text) + sum(map(len, raw))
            blocks += 1
        return blocks * lines / spent

    return play


@torch.no_grad()
def _network(agents: dict[str, Any], spec: Any, rows: int) -> dict[str, float]:
    """The least time that the behaviour network takes, for a batch of `rows`, per row."""
    image = torch.randint(256, (rows, *spec.obs_shape), dtype=torch.uint8)
    obs, microseconds = Obs(image, image), {}
    for name, agent in agents.items():
        times = []
        for _ in range(20):
            start = time.process_time()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=name == "bf16"):
                agent.behaviour(obs)
            times.append(time.process_time() - start)
        microseconds[name] = min(times) / rows * 1e6
    return microseconds
