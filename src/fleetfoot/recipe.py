"""A recipe: one value that says everything about a run.

from dataclasses import replace
from fleetfoot import recipes, train

result = train(replace(recipes.get("fast_td3/halfcheetah"), seed=3))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from fleetfoot.agents.contract import Agent, AgentConfig, check_agent, traits
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import flat_fields, part, to_json
from fleetfoot.data import EnvSpec
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.execution import Mode, Precision
from fleetfoot.explore import ExplorerConfig, FromPolicyConfig
from fleetfoot.log import Counters, LogConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.system import resolve_device

MOST_THREADS = 1_024  # with many more, torch's thread pool ends the process
MOST_NAME = 150  # characters; it becomes a part of a folder's name


@dataclass(frozen=True)
class Result:
    """What a finished (or interrupted) run leaves in memory; everything else is in its folder."""

    folder: Path
    policy: nn.Module
    counters: Counters
    last_return: float  # mean return of the last evaluation, NaN if there was none
    best_return: float
    finished: bool  # False after Ctrl-C


class TopologyConfig(Protocol):
    """How the loop collect -> append -> sample -> update is spread over threads, processes and machines.

    One in which the newest policy collects every vec step has an attribute `on_policy` that is true.
    """

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        """Train from the start, or from a checkpoint's `state`."""
        ...


class Seeds(NamedTuple):
    """Independent seeds for the parts of a run, all from one number."""

    env: int
    evaluation: int
    agent: int
    explorer: int
    replay: int

    @staticmethod
    def of(seed: int, *worker: int) -> Seeds:
        """`worker`: numbers that name one of several workers, which need seeds of their own."""
        source = np.random.SeedSequence(seed, spawn_key=worker)
        words = source.generate_state(len(Seeds._fields), np.uint32)
        return Seeds(*(int(word) for word in words))


@part
class Recipe:
    """Everything about a run. Recipes with equal values give equal weights on a CPU."""

    name: str
    """The recipe's name; the run folder is named after it."""
    env: EnvConfig
    agent: AgentConfig
    explorer: ExplorerConfig
    replay: ReplayConfig | RolloutConfig
    pace: PaceConfig = PaceConfig()
    """With a RolloutConfig this is fixed: one update per rollout."""
    topology: TopologyConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    log: LogConfig = LogConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    num_envs: int
    """Environments stepped together (N)."""
    batch_size: int = 0
    """Rows per update (B), sampled from all environments. With a RolloutConfig: all rows of the rollout."""
    total_vec_steps: int
    """Length of the run in steps of all environments together."""
    gamma: float = 0.99
    """Discount of one step."""
    seed: int = 0
    """Seed of all random numbers of the run."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:K."""
    precision: Precision = "float32"
    """Precision of matrix products. tf32: TF32 on a GPU that supports it (on a CPU the same as float32);
    bf16: bfloat16 under autocast, with master weights in float32. Convolutions on a GPU use TF32 in
    any case."""
    execution: Mode = "auto"
    """How updates are executed. eager: as written; compiled: losses, and on a GPU optimiser steps, through
    torch.compile (on a CPU this needs a C++ compiler); captured: compiled, and then CUDA graphs; auto: captured on a
    GPU, eager on a CPU."""
    threads: int = 0
    """CPU threads of torch; 0: all available cores."""
    env_timeout: float = 600.0
    """Seconds that one reset or step of all environments may take. After that they count as hung, and the run
    ends."""

    def __post_init__(self) -> None:
        if isinstance(self.replay, RolloutConfig):
            length = self.replay.length
            pace = PaceConfig(updates_per_vec_step=1.0 / length, warmup_vec_steps=0)
            object.__setattr__(self, "pace", pace)
            object.__setattr__(self, "batch_size", length * self.num_envs)

    def derived_fields(self) -> tuple[str, ...]:
        """The fields that follow from others, so that nobody can set them."""
        return ("pace", "batch_size") if isinstance(self.replay, RolloutConfig) else ()

    def off_policy_replay(self) -> ReplayConfig:
        """The replay; UserError where there are rollouts instead, which most topologies cannot collect."""
        if isinstance(self.replay, RolloutConfig):
            raise UserError(
                f"{type(self.topology).__name__} has a replay, but {self.name} learns from rollouts: use "
                "--topology SynchronousConfig."
            )
        return self.replay

    def torch_device(self) -> torch.device:
        return resolve_device(self.device)

    def seeds(self, rank: int = 0) -> Seeds:
        """`rank` numbers the processes of a run that is spread over several; the first has those of a run alone."""
        return Seeds.of(self.seed, *((rank,) if rank else ()))

    def total_updates(self) -> int:
        return max(1, self.pace.updates_after(self.total_vec_steps))

    def build_agent(
        self, spec: EnvSpec, device: torch.device, *, total_updates: int | None = None
    ) -> Agent:
        """`total_updates`: the length of its schedules where they are not those of a run in one process."""
        agent = self.agent.build(
            spec,
            gamma=self.gamma,
            total_updates=self.total_updates() if total_updates is None else total_updates,
            seed=self.seeds().agent,
            device=device,
        )
        return check_agent(agent, self.agent)

    def check(self) -> None:
        """Refuse what cannot work before anything is built."""
        positive = ("num_envs", "batch_size", "total_vec_steps")
        for name in positive:
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not self.name.strip() or not self.name.isprintable() or len(self.name) > MOST_NAME:
            raise UserError(
                f"name must be 1 to {MOST_NAME} printable characters, not {self.name!r:.80}."
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise UserError(f"gamma must lie between 0 and 1, not {self.gamma}.")
        if not self.env_timeout > 0:
            raise UserError(f"env_timeout must be above 0, not {self.env_timeout}.")
        for name in ("seed", "threads"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be 0 or more, not {getattr(self, name)}.")
        if self.threads > MOST_THREADS:
            raise UserError(f"threads must be at most {MOST_THREADS:,}, not {self.threads:,}.")
        self.torch_device()
        self._check_learning_rates()
        self._check_on_policy()

    def _check_learning_rates(self) -> None:
        """A rate that was lowered below the end of its schedule would rise.

        Refused here, where the names of fields are known, and not where optimisers are built: a run that was trained so
        can still be evaluated.
        """
        fields = dict(flat_fields(to_json(self)))
        for path, end in fields.items():
            start = fields.get(path.removesuffix("_end"))
            if path.endswith(".lr_end") and end is not None and start is not None and end > start:
                option = f"--{path.replace('_', '-')}"
                raise UserError(
                    f"{path} is {end}, above the {start} where it starts: the learning rate would rise; set {option} "
                    f"too, to {start} or less, or to None for a constant rate."
                )

    def _check_on_policy(self) -> None:
        """On-policy agents, rollouts and topologies that can collect them go together, or none of them."""
        agent, topology = type(self.agent).__name__, type(self.topology).__name__
        on_policy, rollouts = traits(self.agent).on_policy, isinstance(self.replay, RolloutConfig)
        if on_policy and not rollouts:
            raise UserError(f"{agent} learns on-policy, from rollouts: use --replay RolloutConfig.")
        if rollouts and not on_policy:
            raise UserError(f"{agent} learns off-policy, from a replay: use --replay ReplayConfig.")
        late = isinstance(self.explorer, FromPolicyConfig)
        if on_policy and not late:
            raise UserError(
                f"{agent} needs its policy's own samples: use --explorer FromPolicyConfig."
            )
        if late and not on_policy:
            raise UserError(
                f"{agent} learns from executed actions, but FromPolicyConfig stores them as drawn: use --explorer "
                "AsSampledConfig, or another one."
            )
        if on_policy and not getattr(self.topology, "on_policy", False):
            overlaps = getattr(self.topology, "overlap", False)
            use = "--topology.no-overlap" if overlaps else "--topology SynchronousConfig"
            raise UserError(
                f"{agent} learns on-policy, but in {topology} the newest policy does not collect every vec step: "
                f"use {use}."
            )
