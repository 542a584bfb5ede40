"""Does it matter in which units a task pays? Rewards multiplied, and shifted below zero, with the same settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.curves import finished, points
from fleetfoot import recipes
from fleetfoot.api import train_seeds
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import part, to_json
from fleetfoot.data import Obs, Step
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.envs.vec_env import EnvConfig, VecEnv
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe


@part
class OtherUnitsConfig:
    """An environment whose rewards are multiplied and shifted while it trains; evaluations see them as they are."""

    env: EnvConfig = TensorConfig()
    factor: float = 1.0
    shift: float = 0.0
    """Added to each reward, before it is multiplied."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> OtherUnits:
        return OtherUnits(self.env.build(num_envs, seed, device), self.factor, self.shift)

    def for_evaluation(self) -> EnvConfig:
        return self.env.for_evaluation()


class OtherUnits:
    """The environments of `OtherUnitsConfig`."""

    def __init__(self, env: VecEnv, factor: float, shift: float):
        self.env, self.factor, self.shift, self.spec = env, factor, shift, env.spec
        self.reset, self.render, self.close = env.reset, env.render, env.close
        self.state_dict = env.state_dict

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        return self.env.load_state_dict(state)

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        return step._replace(reward=(step.reward + self.shift) * self.factor)


def reward_units(
    names: tuple[str, ...] = ("flash_sac/pendulum", "fast_td3/pendulum"),
    factors: tuple[float, ...] = (1.0, 1000.0, 0.001),
    shift: float | None = None,
    seeds: int = 3,
    vec_steps: int | None = None,
    device: str | None = None,
    runs: Path = Path("runs/reward_units"),
) -> Iterator[dict[str, Any]]:
    """Last and best returns, in the task's own units, of agents that find their value range by themselves.

    :param names: Recipes; agents with a value range train with `auto`.
    :param factors: What rewards are multiplied by.
    :param shift: One more variant, in which so much is added to every reward.
    :param seeds: Seeds of each variant, trained as one.
    :param vec_steps: Length of each run; None: that of the recipe.
    :param device: cpu or cuda; None: that of the recipe.
    :param runs: Folder of the runs; what is there already is read, not trained again.
    """
    rows: list[dict[str, Any]] = []
    variants = [(factor, 0.0) for factor in factors] + ([] if shift is None else [(1.0, shift)])
    for name in names:
        for factor, added in variants:
            recipe = in_units(recipes.get(name), factor, added, vec_steps, device)
            folder = runs / f"{name.replace('/', '-')}-times{factor:g}-plus{added:g}"
            if not folder.exists():
                train_seeds(recipe, seeds, folder)
            curves = [points(finished(seed)) for seed in sorted(folder.glob("seed*"))]
            rows.append(
                {
                    "recipe": name,
                    "factor": factor,
                    "shift": added,
                    "last": round(statistics.mean(curve["return"][-1] for curve in curves), 1),
                    "best": round(statistics.mean(max(curve["return"]) for curve in curves), 1),
                    "last_by_seed": [curve["return"][-1] for curve in curves],
                }
            )
            yield {"rows": rows}
    yield {"rows": rows, "recipes": [to_json(recipes.get(name)) for name in names]}


def in_units(
    recipe: Recipe, factor: float, shift: float, vec_steps: int | None, device: str | None = None
) -> Recipe:
    agent: Any = recipe.agent
    if hasattr(agent, "v_min"):
        agent = replace(agent, v_min="auto", v_max="auto")
    total = vec_steps or recipe.total_vec_steps
    return replace(
        recipe,
        env=OtherUnitsConfig(env=recipe.env, factor=factor, shift=shift),
        agent=agent,
        total_vec_steps=total,
        device=device or recipe.device,
        evaluation=replace(recipe.evaluation, every_vec_steps=max(1, total // 5)),
        log=LogConfig(every_vec_steps=max(1, total // 20), tensorboard=False, console=False),
        checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
    )
