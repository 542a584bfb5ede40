"""The memory of an on-policy agent: the rollout that is being collected, and nothing else.

To a learner it is a memory like a replay (`execution/learner.py`). `append` writes the vec steps of the running rollout
into tensors [T, N, ...] that stay where they are; there is nothing to `draw`; `gather` returns the whole rollout, which
the agent's `update` takes as one batch; `trim` begins the next one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import Discrete, EnvSpec, Obs, Rollout, Transition
from fleetfoot.errors import UserError
from fleetfoot.system import free_bytes

GIB = 1024**3


@part
class RolloutConfig:
    """Rollouts of an on-policy agent. They set the pace too: one update per rollout."""

    length: int = 24
    """Vec steps of a rollout (T); each update learns from T * num_envs rows."""

    def __post_init__(self) -> None:
        at_least(self, "replay", length=1)

    def build(self, spec: EnvSpec, *, gamma: float, seed: int, device: torch.device) -> Rollouts:
        """`seed` is for memories that draw; this one does not."""
        self.check_fit(spec, device)
        return Rollouts(self, spec, gamma, device)

    def check_fit(self, spec: EnvSpec, device: torch.device) -> None:
        """Refuse rollouts that do not fit on the device."""
        need, free = Rollouts(self, spec, 1.0, torch.device("meta")).bytes(), free_bytes(device)
        if need > free:
            raise UserError(
                f"rollouts of {self.length:,} vec steps of {spec.num_envs:,} environments need "
                f"{need / GIB:.1f} GiB, but only {free / GIB:.1f} GiB are free on {device}: "
                "lower --replay.length or --num-envs."
            )


class NoDraws:
    """The sampler of a memory from which nothing is drawn."""

    prioritised = False


class Rollouts:
    """The running rollout, [T, N, ...]."""

    def __init__(self, cfg: RolloutConfig, spec: EnvSpec, gamma: float, device: torch.device):
        self.cfg, self.spec, self.gamma, self.device = cfg, spec, gamma, device
        self.sampler = NoDraws()
        self.filled = 0  # vec steps of the running rollout
        rows = cfg.length, spec.num_envs
        discrete = isinstance(spec.action, Discrete)
        action = () if isinstance(spec.action, Discrete) else (spec.action.size,)
        self.tensors = {
            "action": _zeros(rows, action, torch.int64 if discrete else torch.float32, device),
            "reward": _zeros(rows, (), torch.float32, device),
            "terminated": _zeros(rows, (), torch.bool, device),
            "ended": _zeros(rows, (), torch.bool, device),
            "actor": _zeros(rows, spec.obs_shape, spec.obs_dtype, device),
            "next_actor": _zeros(rows, spec.obs_shape, spec.obs_dtype, device),
        }
        if spec.critic_shape is not None:
            for name in ("critic", "next_critic"):
                self.tensors[name] = _zeros(rows, spec.critic_shape, spec.critic_dtype, device)
        self.task = torch.tensor(spec.task_ids, device=device) if spec.task_ids else None

    @property
    def size(self) -> int:
        """Transitions of the running rollout."""
        return self.filled * self.spec.num_envs

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    @torch.no_grad()
    def append(self, step: Transition) -> None:
        """Store one vec step. The rollout must not be full: an update was due when it became so."""
        next_obs = step.next_obs
        if not self.spec.exact_final_obs:
            # The simulator has lost the last observation of a truncated episode: the one before it stands in.
            next_obs = _where(step.truncated, step.obs, next_obs)
        values = {
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "ended": step.terminated | step.truncated,
            "actor": step.obs.actor,
            "next_actor": next_obs.actor,
            "critic": step.obs.critic,
            "next_critic": next_obs.critic,
        }
        for name, tensor in self.tensors.items():
            tensor[self.filled].copy_(values[name])
        self.filled += 1

    def mark_break(self) -> None:
        """The next transition does not follow from the last one, say because the simulator was started anew."""
        if self.filled:
            self.tensors["ended"][self.filled - 1] = True

    def draw(self, rows: int) -> tuple[()]:
        """Nothing to choose: `gather` gives all rows."""
        return ()

    def gather(self) -> Rollout:
        """The whole rollout, which is full."""
        stored = self.tensors
        return Rollout(
            obs=self._obs("actor", "critic"),
            action=stored["action"],
            reward=stored["reward"],
            discount=torch.where(stored["terminated"], 0.0, self.gamma),
            ended=stored["ended"],
            next_obs=self._obs("next_actor", "next_critic"),
        )

    def _obs(self, actor: str, critic: str) -> Obs:
        seen = self.tensors[actor]
        task = None if self.task is None else self.task.expand(len(seen), -1)
        return Obs(seen, self.tensors.get(critic, seen), task)

    def trim(self, updates: int) -> None:
        """After an update the next rollout begins."""
        if updates:
            self.filled = 0

    def state_dict(self) -> dict[str, Any]:
        return {"filled": self.filled, "tensors": self.tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not 0 <= state["filled"] < self.cfg.length:
            raise ValueError(f"it holds {state['filled']} vec steps of a rollout")
        self.filled = state["filled"]
        for name, tensor in self.tensors.items():
            tensor.copy_(state["tensors"][name])


def _zeros(
    rows: tuple[int, int], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.zeros(*rows, *shape, dtype=dtype, device=device)


def _where(condition: Tensor, one: Obs, other: Obs) -> Obs:
    def choose(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(condition.view(-1, *[1] * (x.dim() - 1)), x, y)

    actor = choose(one.actor, other.actor)
    shared = other.critic is other.actor
    return Obs(actor, actor if shared else choose(one.critic, other.critic), other.task)
