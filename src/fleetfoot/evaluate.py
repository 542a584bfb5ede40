"""Evaluation of the greedy policy in separate environments, on the first episode of each."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot import diagnose
from fleetfoot.config import at_least, part
from fleetfoot.data import Continuous, Obs, Step
from fleetfoot.envs.vec_env import EnvConfig, VecEnv, closed_on_error
from fleetfoot.guard import build_env

# Vec steps between two checks whether all episodes have ended: each check waits for the device.
CHECK_EVERY = 16
# Set while a run of this process is asked to stop: evaluations end after the vec step under way.
STOPPING = threading.Event()


class EvaluationCut(Exception):  # noqa: N818
    """The run was asked to stop during an evaluation, which has no result."""


@part
class EvaluationConfig:
    """When and how the greedy policy is evaluated."""

    every_vec_steps: int = 5_000
    """Training vec steps between two evaluations; 0: evaluate only at the end."""
    episodes: int = 8
    """Episodes per evaluation, each in its own environment."""
    max_vec_steps: int = 10_000
    """Limit on the length of an evaluation, for tasks without a time limit."""
    diagnose: bool = False
    """Measure the learner too: overestimation, dormant units, effective rank, norms. This does not change the run."""

    def __post_init__(self) -> None:
        at_least(self, "evaluation", every_vec_steps=0, episodes=1, max_vec_steps=1)


class QEstimate(NamedTuple):
    """The action values of an agent, to compare with the discounted returns."""

    q: Callable[[Obs, Tensor], Tensor]
    gamma: float


@dataclass(frozen=True)
class Evaluation:
    """What the episodes of one evaluation gave."""

    returns: Tensor  # [episodes] undiscounted, on the CPU
    lengths: Tensor  # [episodes]
    success: (
        Tensor | None
    )  # [episodes] 1 after a success at any step; None: the task does not report it
    overestimation: Tensor | None = None  # of a `QEstimate`, relative to the mean absolute return
    tasks: tuple[str, ...] = ()  # names, where there are several tasks
    task_ids: tuple[int, ...] = ()  # [episodes], where there are several tasks
    smoothness: dict[str, float] = field(default_factory=dict[str, float])  # of continuous actions
    task_means: dict[str, float] = field(default_factory=dict[str, float])  # of what the task logs

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    def metrics(self) -> dict[str, float]:
        metrics = {f"eval/{name}": value for name, value in self.task_means.items()}
        # What is measured here goes by its name, whatever a task calls its own.
        metrics |= {
            "eval/return": self.mean_return,
            "eval/return_std": float(self.returns.std(correction=0)),
            "eval/length": float(self.lengths.mean()),
        }
        metrics |= {f"eval/{name}": value for name, value in self.smoothness.items()}
        if self.success is not None:
            metrics["eval/success"] = float(self.success.mean())
        if self.overestimation is not None:
            metrics["diagnose/overestimation"] = float(self.overestimation)
        ids = torch.tensor(self.task_ids)
        for number, task in enumerate(self.tasks):
            if number in self.task_ids:
                metrics[f"eval/return/{task}"] = float(self.returns[ids == number].mean())
                if self.success is not None:
                    metrics[f"eval/success/{task}"] = float(self.success[ids == number].mean())
        return metrics


class Evaluator:
    """The evaluation environments. Every evaluation starts from the same states, if the simulator can save them."""

    def __init__(
        self,
        config: EnvConfig,
        cfg: EvaluationConfig,
        seed: int,
        device: torch.device,
        timeout: float = math.inf,
    ):
        self.cfg = cfg
        self.env = build_env(config.for_evaluation(), cfg.episodes, seed, device, timeout)
        with closed_on_error(self.env):
            self.env.reset()
            self.start = self.env.state_dict()

    def __call__(self, policy: nn.Module, q_estimate: QEstimate | None = None) -> Evaluation:
        obs = self.env.reset() if self.start is None else self.env.load_state_dict(self.start)
        return first_episodes(policy, self.env, obs, self.cfg.max_vec_steps, q_estimate)

    def close(self) -> None:
        self.env.close()


@torch.no_grad()
def first_episodes(
    policy: nn.Module,
    env: VecEnv,
    obs: Obs,
    max_vec_steps: int,
    q_estimate: QEstimate | None = None,
) -> Evaluation:
    """Step all environments until each has finished the episode that starts with `obs`."""
    spec = env.spec
    returns = torch.zeros(spec.num_envs, device=spec.device)
    lengths = torch.zeros(spec.num_envs, device=spec.device)
    success: Tensor | None = None
    running = torch.ones(spec.num_envs, dtype=torch.bool, device=spec.device)
    meter = None if q_estimate is None else OverestimationMeter(policy, q_estimate)
    smoothness, task_means = diagnose.SmoothnessMeter(spec.step_seconds), InfoMeter()
    for count in range(1, max_vec_steps + 1):
        if STOPPING.is_set():
            raise EvaluationCut
        action: Tensor = policy(obs)
        step = env.step(action.float() if action.is_floating_point() else action)
        returns += torch.where(running, step.reward, 0.0)
        lengths += running
        if isinstance(spec.action, Continuous):
            smoothness.update(action, running)
        task_means.update(step.info, running)
        if meter is not None:
            meter.update(obs, action, step, running)
        if "success" in step.info:
            succeeds = step.info["success"].float() * running
            success = succeeds if success is None else torch.maximum(success, succeeds)
        running = running & ~(step.terminated | step.truncated)
        obs = step.obs
        if count % CHECK_EVERY == 0 and not bool(running.any()):
            break
    return Evaluation(
        returns.cpu(),
        lengths.cpu(),
        None if success is None else success.cpu(),
        None if meter is None else meter.overestimation().cpu(),
        spec.tasks,
        spec.task_ids,
        smoothness.metrics(),
        task_means.metrics(),
    )


class InfoMeter:
    """Means of what a task tells the log as `env/NAME` (tracking errors, reward terms, power), over those steps of its
    episodes in which it tells anything: every eighth for robots on a GPU, every one elsewhere.

    What a Gymnasium task begins to tell later, at the end of an episode for instance, has no mean over steps.
    """

    def __init__(self) -> None:
        self.names: list[str] = []  # env/NAME
        self.totals: Tensor | None = None  # [K]
        self.count: Tensor | None = None

    def update(self, info: dict[str, Tensor], running: Tensor) -> None:
        """Add one vec step. `running` [N]: where the first episode has not ended."""
        names = self.names or [name for name in info if name.startswith("env/")]
        if not names or not all(name in info for name in names):
            return
        rows = torch.stack([info[name].float() for name in names])  # [K, N]
        total, count = torch.where(running, rows, 0.0).sum(1), running.sum()
        if self.totals is None or self.count is None:
            self.names, self.totals, self.count = names, total, count
        else:
            self.totals, self.count = self.totals + total, self.count + count

    def metrics(self) -> dict[str, float]:
        """Waits for the device."""
        if self.totals is None or self.count is None:
            return {}
        means = (self.totals / self.count).tolist()
        named = zip(self.names, means, strict=True)
        return {name.removeprefix("env/"): mean for name, mean in named if math.isfinite(mean)}


class OverestimationMeter:
    """Collects action values and rewards during episodes, and compares the values with the discounted returns."""

    def __init__(self, policy: nn.Module, q_estimate: QEstimate):
        self.policy, self.q_estimate = policy, q_estimate
        self.rows: list[tuple[Tensor, ...]] = []  # [N] each

    def update(self, obs: Obs, action: Tensor, step: Step, running: Tensor) -> None:
        """Add one vec step. `running` [N]: where the first episode has not ended."""
        q = self.q_estimate.q(obs, action)
        next_q = self.q_estimate.q(step.next_obs, self.policy(step.next_obs))
        self.rows.append((step.reward, step.terminated, step.truncated, next_q, q, running))

    def overestimation(self) -> Tensor:
        reward, terminated, truncated, next_q, q, running = map(
            torch.stack, zip(*self.rows, strict=True)
        )
        gamma = self.q_estimate.gamma
        returns = diagnose.monte_carlo(reward, terminated, truncated, next_q, gamma)
        return diagnose.overestimation(q, returns, running)
