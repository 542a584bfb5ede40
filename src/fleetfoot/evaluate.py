"""Evaluation: the greedy policy, in environments of its own, on the first episode of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot import diagnose
from fleetfoot.config import at_least, part
from fleetfoot.data import Obs, Step
from fleetfoot.envs.vec_env import EnvConfig, VecEnv

CHECK_EVERY = (
    16  # steps between looks at whether all episodes are over: each look waits for the device
)


@part
class EvaluationConfig:
    every_vec_steps: int = 5_000
    """Training steps between evaluations; 0: only at the end."""
    episodes: int = 8
    """Episodes per evaluation, one in each of so many environments."""
    max_vec_steps: int = 10_000
    """Longest evaluation, for tasks without a time limit."""
    diagnose: bool = False
    """Examine the learner too: overestimation, dormant units, effective rank, norms. It does not change the run."""

    def __post_init__(self) -> None:
        at_least(self, "evaluation", every_vec_steps=0, episodes=1, max_vec_steps=1)


class Belief(NamedTuple):
    """What an agent thinks its actions are worth, to be held against what they earn."""

    q: Callable[[Obs, Tensor], Tensor]
    gamma: float


@dataclass(frozen=True)
class Evaluation:
    returns: Tensor  # [episodes] undiscounted, on the CPU
    lengths: Tensor  # [episodes]
    success: Tensor | None  # [episodes] 1 where the task said so at any step, for tasks that tell
    overestimation: Tensor | None = None  # of a `Belief`, relative to the size of returns
    tasks: tuple[str, ...] = ()  # names, in multi-task sets
    task_ids: tuple[int, ...] = ()  # [episodes], in multi-task sets

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    def metrics(self) -> dict[str, float]:
        found = {
            "eval/return": self.mean_return,
            "eval/return_std": float(self.returns.std(correction=0)),
            "eval/length": float(self.lengths.mean()),
        }
        if self.success is not None:
            found["eval/success"] = float(self.success.mean())
        if self.overestimation is not None:
            found["diagnose/overestimation"] = float(self.overestimation)
        ids = torch.tensor(self.task_ids)
        for number, task in enumerate(self.tasks):
            if number in self.task_ids:
                found[f"eval/return/{task}"] = float(self.returns[ids == number].mean())
                if self.success is not None:
                    found[f"eval/success/{task}"] = float(self.success[ids == number].mean())
        return found


class Evaluator:
    """Environments that serve evaluation alone, and begin the same way every time where the simulator allows it."""

    def __init__(self, config: EnvConfig, cfg: EvaluationConfig, seed: int, device: torch.device):
        self.cfg = cfg
        self.env = config.for_evaluation().build(cfg.episodes, seed, device)
        self.env.reset()
        self.start = self.env.state_dict()

    def __call__(self, policy: nn.Module, belief: Belief | None = None) -> Evaluation:
        obs = self.env.reset() if self.start is None else self.env.load_state_dict(self.start)
        return first_episodes(policy, self.env, obs, self.cfg.max_vec_steps, belief)

    def close(self) -> None:
        self.env.close()


@torch.no_grad()
def first_episodes(
    policy: nn.Module,
    env: VecEnv,
    obs: Obs,
    max_vec_steps: int,
    belief: Belief | None = None,
) -> Evaluation:
    """Step all environments until each has finished the episode that begins with `obs`."""
    spec = env.spec
    returns = torch.zeros(spec.num_envs, device=spec.device)
    lengths = torch.zeros(spec.num_envs, device=spec.device)
    success: Tensor | None = None
    running = torch.ones(spec.num_envs, dtype=torch.bool, device=spec.device)
    trial = None if belief is None else Trial(policy, belief)
    for count in range(1, max_vec_steps + 1):
        action: Tensor = policy(obs)
        step = env.step(action.float() if action.is_floating_point() else action)
        returns += torch.where(running, step.reward, 0.0)
        lengths += running
        if trial is not None:
            trial.see(obs, action, step, running)
        if "success" in step.info:
            hit = step.info["success"].float() * running
            success = hit if success is None else torch.maximum(success, hit)
        running = running & ~(step.terminated | step.truncated)
        obs = step.obs
        if count % CHECK_EVERY == 0 and not bool(running.any()):
            break
    return Evaluation(
        returns.cpu(),
        lengths.cpu(),
        None if success is None else success.cpu(),
        None if trial is None else trial.overestimation().cpu(),
        spec.tasks,
        spec.task_ids,
    )


class Trial:
    """Holds a belief against the discounted returns of the episodes, along the way."""

    def __init__(self, policy: nn.Module, belief: Belief):
        self.policy, self.belief = policy, belief
        self.rows: list[tuple[Tensor, ...]] = []  # [N] each

    def see(self, obs: Obs, action: Tensor, step: Step, running: Tensor) -> None:
        """One vec step; `running` [N]: where it belongs to the first episode."""
        q = self.belief.q(obs, action)
        ahead = self.belief.q(step.next_obs, self.policy(step.next_obs))
        self.rows.append((step.reward, step.terminated, step.truncated, ahead, q, running))

    def overestimation(self) -> Tensor:
        reward, terminated, truncated, ahead, q, running = map(
            torch.stack, zip(*self.rows, strict=True)
        )
        returns = diagnose.monte_carlo(reward, terminated, truncated, ahead, self.belief.gamma)
        return diagnose.overestimation(q, returns, running)
