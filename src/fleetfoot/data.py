"""The named bundles that travel through the library. Nothing here computes.

Shape letters, here and everywhere: N environments, B batch rows, E ensemble members, A action size, K atoms,
T ring length, n steps of the return. A *vec step* is one step of all N environments, an *env step* is one row of it,
an *update* is one call of `Agent.update`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Continuous:
    """Actions are float32 in [-1, 1]^size; the adapter maps them onto the simulator's own bounds."""

    size: int


@dataclass(frozen=True)
class Discrete:
    """Actions are int64 in 0..count-1."""

    count: int


Action: TypeAlias = Continuous | Discrete


@dataclass(frozen=True)
class Reflection:
    """The mirror image of a row: number i of it is `sign[i]` times number `index[i]` of the row."""

    index: tuple[int, ...]
    sign: tuple[float, ...]  # 1 or -1


@dataclass(frozen=True)
class Symmetry:
    """A mirror in which the task looks the same: the image of a transition is one that could have happened, with the
    same reward and the same end."""

    actor: Reflection
    action: Reflection
    critic: Reflection | None = None  # None: the critic sees what the actor sees


@dataclass(frozen=True)
class EnvSpec:
    """What the rest of the library may know about an environment set."""

    name: str
    num_envs: int
    obs_shape: tuple[int, ...]  # what the actor sees, one environment: (D,) or an image (C, H, W)
    action: Action
    device: torch.device
    critic_shape: tuple[int, ...] | None = None  # None: the critic sees what the actor sees
    critic_prefix: int = (
        0  # this many first critic features repeat the actor's, and are stored once
    )
    obs_dtype: torch.dtype = torch.float32  # torch.uint8 for images
    # Above 1: obs_shape is (frame_stack, H, W), the newest frame last. From step to step of an episode the stack moves
    # on by one frame; where an episode begins, the frames before its first are blank (all zero).
    frame_stack: int = 1
    critic_dtype: torch.dtype = torch.float32  # of what only the critic sees
    episode_length: int | None = None  # vec steps until truncation, if there is a limit
    tasks: tuple[str, ...] = ()  # names, for multi-task sets; empty otherwise
    task_ids: tuple[
        int, ...
    ] = ()  # the task of each environment (it never changes); empty otherwise
    exact_final_obs: bool = (
        True  # False where the simulator loses the last observation of an episode
    )
    any_stream: bool = True  # on a GPU: False where only the default stream is safe to step on
    step_seconds: float = 0.05  # simulated time of one step, for video
    # What whoever runs the policy elsewhere must know, as far as the adapter can tell: joints, gains, limits, units,
    # control rate (docs/guides/deploy.md). JSON values, for the exported file; no algorithm reads them.
    description: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    # For those who learn from mirror images (replay.mirror); what it is does not change what a policy sees or does.
    symmetry: Symmetry | None = field(default=None, compare=False)
    no_symmetry: str = field(default="", compare=False)  # why there is none, if the adapter knows


class Obs(NamedTuple):
    """Observations of N environments (or of B batch rows)."""

    actor: Tensor  # [N, *obs_shape]
    critic: (
        Tensor  # [N, *critic_shape]; the very same tensor as `actor` where nothing is privileged
    )
    task: Tensor | None = None  # [N] int64, in multi-task sets


class Step(NamedTuple):
    """What `VecEnv.step` returns. Every tensor is on `EnvSpec.device` and is not written to afterwards."""

    obs: Obs  # what to act on now
    next_obs: Obs  # what followed the action; differs from `obs` only where an episode ended
    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool: the task itself ended; the future is worth nothing
    truncated: (
        Tensor  # [N] bool: a time limit ended it (and `terminated` is False); the future counts
    )
    info: dict[str, Tensor]  # [N] tensors for the log; no algorithm reads them


class Transition(NamedTuple):
    """One vec step, raw. Written to replay once."""

    obs: Obs
    # [N, A] float32 or [N] int64, as executed; on-policy: as the policy drew it, before it was clipped for execution
    action: Tensor
    reward: Tensor  # [N]
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    next_obs: Obs
    info: dict[str, Tensor]


class Batch(NamedTuple):
    """What learning needs. Every target reads `reward + discount * next_value`."""

    obs: Obs
    action: Tensor  # [B, A] or [B]
    reward: Tensor  # [B] discounted sum over the window
    discount: Tensor  # [B] what is left of gamma: gamma^m after m steps, zero only after a true termination
    next_obs: Obs  # what followed the window
    weight: Tensor  # [B] importance of each row
    row_id: Tensor  # [B] int64, for `Replay.reprioritize`
    held_out: Batch | None = (
        None  # other rows, that are never learned from, where the sampler holds some out
    )


class Rollout(NamedTuple):
    """T vec steps that follow one another, and all that an on-policy agent learns from. Every one-step target reads
    `reward + discount * next_value`; what comes before a row with `ended` knows nothing of what comes after it."""

    obs: Obs  # [T, N, ...]
    action: Tensor  # [T, N, A] or [T, N], as the policy drew it
    reward: Tensor  # [T, N]
    discount: Tensor  # [T, N] gamma, or zero after a true termination
    ended: Tensor  # [T, N] bool: the next row of this environment does not follow from this one
    next_obs: Obs  # [T, N, ...] what followed the action, also where an episode ended


class Loss(NamedTuple):
    """What `critic_loss`, `policy_loss` and their like return. All of it is tensors, so that a loss can be compiled,
    and computed for several sets of weights at once.
    """

    loss: Tensor  # a scalar, to take a step down
    metrics: dict[str, Tensor]  # scalars for the log, without a gradient
    # What else the update needs of it, such as "td_error", by name. Nobody writes into the default.
    aux: dict[str, Tensor] = {}  # noqa: RUF012

    @property
    def td_error(self) -> Tensor | None:
        """[B] the absolute error in value of each row, where the loss knows it."""
        return self.aux.get("td_error")


@dataclass(frozen=True)
class UpdateResult:
    """What one update returns. The metrics stay tensors on their device until the log reads them."""

    metrics: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    td_error: Tensor | None = (
        None  # [B] absolute, unweighted: what prioritised replay wants to know
    )

    def with_metrics(self, more: dict[str, Tensor]) -> UpdateResult:
        return UpdateResult(self.metrics | more, self.td_error)
