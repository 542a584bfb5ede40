"""HumanoidBench: whole-body tasks of the Unitree H1, with and without hands, in several processes.

The package is installed from its repository (docs/environments/humanoid_bench.md). Its environments are Gymnasium's and
their steps are Python around MuJoCo, some milliseconds each.
"""

from __future__ import annotations

import importlib.util
from dataclasses import field
from typing import Any, ClassVar

import torch

from fleetfoot.config import at_least, part
from fleetfoot.envs.subprocess.env import ProcessEnv
from fleetfoot.envs.vec_env import check_module
from fleetfoot.errors import UserError, nearest
from fleetfoot.system import usable_cores

ROBOTS = ("h1", "h1hand", "h1simplehand", "h1strong", "h1touch", "g1")
TASKS = (
    "stand",
    "walk",
    "run",
    "kitchen",
    "maze",
    "hurdle",
    "cube",
    "bookshelf_simple",
    "bookshelf_hard",
    "highbar_simple",
    "highbar_hard",
    "crawl",
    "window",
    "spoon",
    "door",
    "push",
    "reach",
    "basketball",
    "truck",
    "package",
    "cabinet",
    "sit_simple",
    "sit_hard",
    "balance_simple",
    "balance_hard",
    "stair",
    "slide",
    "pole",
    "room",
    "insert_normal",
    "insert_small",
    "powerlift",
)


@part
class HumanoidBenchConfig:
    """A robot and a task, as in HumanoidBench's ids, without the version."""

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    task: str = "h1hand-walk"
    processes: int = 0
    """Processes that step the environments; 0: all available cores."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments for `gymnasium.make`."""

    def __post_init__(self) -> None:
        at_least(self, "env", processes=0)

    def build(self, num_envs: int, seed: int, device: torch.device) -> ProcessEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        if self.task not in names():
            raise UserError(
                f"HumanoidBench has no task {self.task!r}.{nearest(self.task, names())}"
            )
        if importlib.util.find_spec("humanoid_bench") is None:
            raise UserError(
                "HumanoidBench is not installed; it comes from its repository: see "
                "docs/environments/humanoid_bench.md."
            )
        from fleetfoot.envs.render import backend

        # `package` reads this setting of its hierarchical policies even where there is none.
        settings = {"policy_path": None} if self.task.endswith("-package") else {}
        surroundings = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}  # JAX is imported, not used
        # The environments start OpenGL when they are made, unless they are told that they are never rendered.
        try:
            surroundings["MUJOCO_GL"] = backend()
        except UserError:
            settings["render_mode"] = None
        return ProcessEnv(
            f"humanoid_bench/{self.task}",
            f"humanoid_bench:{self.task}-v0",
            settings | self.kwargs,
            num_envs,
            self.processes or usable_cores(),
            seed,
            device,
            surroundings,
        )

    def when_stored(self) -> HumanoidBenchConfig:
        if self.kwargs:  # some name files with pickled policies, which the package loads
            check_module("humanoid_bench:with kwargs")
        return self

    def for_evaluation(self) -> HumanoidBenchConfig:
        return self


def names() -> list[str]:
    """The tasks, whether or not the package is there."""
    return [f"{robot}-{task}" for robot in ROBOTS for task in TASKS]
