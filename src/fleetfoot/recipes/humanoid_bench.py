"""Recipes for each task of HumanoidBench: fast_td3/h1hand-TASK, fast_td3/h1-TASK, and the same with flash_sac.

FlashSAC has one environment, as for every simulator in which a step is expensive. FastTD3's settings are those of its
authors' code: 128 environments in processes, 2 updates of 32,768 rows after each vec step.
Where they state a value range or a length for one task of the H1 with hands, both robots have it here: what a task pays
does not depend on the hands. Their lengths for balancing are entered under names that no task has; here they count.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.humanoid_bench import TASKS, HumanoidBenchConfig
from fleetfoot.errors import UserError, nearest
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import flash_sac
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

ROBOTS = {"h1hand": "Unitree H1 with hands", "h1": "Unitree H1"}
FAMILIES = ("fast_td3", "flash_sac")
PREFIXES = tuple(f"{family}/{robot}-" for family in FAMILIES for robot in ROBOTS)
VALUE = {
    "reach": 2_000.0,
    "basketball": 2_000.0,
    "package": 10_000.0,
    "maze": 1_000.0,
    "truck": 1_000.0,
    "push": 1_000.0,
}
VEC_STEPS = {
    "basketball": 250_000,
    "push": 1_000_000,
    "window": 250_000,
    "pole": 150_000,
    "balance_simple": 200_000,
    "balance_hard": 1_000_000,
}


def find(name: str) -> Recipe:
    """The recipe of a name that starts with one of the prefixes."""
    family, rest = name.split("/", 1)
    robot, task = rest.split("-", 1)
    if task not in TASKS:
        known = [f"{family}/{robot}-{task}" for task in TASKS]
        raise UserError(
            f"there is no recipe named {name!r}.{nearest(name, known)} HumanoidBench's tasks are {', '.join(TASKS)}."
        )
    if family == "flash_sac":
        return flash_sac.one_environment(rest, HumanoidBenchConfig(task=rest))
    value, num_envs = VALUE.get(task, 250.0), 128
    return Recipe(
        name=name,
        env=HumanoidBenchConfig(task=f"{robot}-{task}"),
        agent=FastTD3Config(v_min=-value, v_max=value),
        explorer=NoiseLadderConfig(std_min=0.001, std_max=0.4),
        replay=ReplayConfig(capacity=51_200 * num_envs),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=10),
        topology=SynchronousConfig(overlap=True),
        # Few episodes: a vec step takes longer than one of most simulators, and an episode 1,000 of them.
        evaluation=EvaluationConfig(every_vec_steps=5_000, episodes=16),
        checkpoint=CheckpointConfig(every_vec_steps=5_000, replay=False),
        num_envs=num_envs,
        batch_size=32_768,
        total_vec_steps=VEC_STEPS.get(task, 100_000),
        precision="bf16",
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    f"{family}/{robot}-walk": (
        f"{title} walks (HumanoidBench, CPU cores and a GPU); {family}/{robot}-TASK: {len(TASKS)} tasks",
        partial(find, f"{family}/{robot}-walk"),
    )
    for family in FAMILIES
    for robot, title in ROBOTS.items()
}
