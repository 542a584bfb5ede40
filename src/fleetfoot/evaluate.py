"""Evaluation: the greedy policy, in environments of its own, on the first episode of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fleetfoot.data import Obs
from fleetfoot.envs.vec_env import EnvConfig, VecEnv
from fleetfoot.part import UserError, part

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


@dataclass(frozen=True)
class Evaluation:
    returns: Tensor  # [episodes] undiscounted, on the CPU
    lengths: Tensor  # [episodes]
    success: Tensor | None  # [episodes] 1 where the task said so at any step, for tasks that tell
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
        if cfg.episodes < 1:
            raise UserError(f"evaluation.episodes must be at least 1, not {cfg.episodes}.")
        self.cfg = cfg
        self.env = config.for_evaluation().build(cfg.episodes, seed, device)
        self.env.reset()
        self.start = self.env.state_dict()

    def __call__(self, policy: nn.Module) -> Evaluation:
        obs = self.env.reset() if self.start is None else self.env.load_state_dict(self.start)
        return first_episodes(policy, self.env, obs, self.cfg.max_vec_steps)

    def close(self) -> None:
        self.env.close()


@torch.no_grad()
def first_episodes(policy: nn.Module, env: VecEnv, obs: Obs, max_vec_steps: int) -> Evaluation:
    """Step all environments until each has finished the episode that begins with `obs`."""
    spec = env.spec
    returns = torch.zeros(spec.num_envs, device=spec.device)
    lengths = torch.zeros(spec.num_envs, device=spec.device)
    success: Tensor | None = None
    running = torch.ones(spec.num_envs, dtype=torch.bool, device=spec.device)
    for count in range(1, max_vec_steps + 1):
        action: Tensor = policy(obs)
        step = env.step(action.float() if action.is_floating_point() else action)
        returns += torch.where(running, step.reward, 0.0)
        lengths += running
        if "success" in step.info:
            hit = step.info["success"].float() * running
            success = hit if success is None else torch.maximum(success, hit)
        running = running & ~(step.terminated | step.truncated)
        obs = step.obs
        if count % CHECK_EVERY == 0 and not bool(running.any()):
            break
    success = None if success is None else success.cpu()
    return Evaluation(returns.cpu(), lengths.cpu(), success, spec.tasks, spec.task_ids)
