"""What a topology may ask of an agent."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from fleetfoot.data import Batch, EnvSpec, Learned, Obs, Transition
from fleetfoot.part import UserError

Pattern: TypeAlias = tuple[bool, ...]


def every(period: int, updates: int, count: int) -> Pattern:
    """Which of the coming `count` updates, after so many `updates`, are multiples of `period`?"""
    return tuple((updates + i) % period == 0 for i in range(1, count + 1))


class Agent(Protocol):
    """A learner. It knows neither episodes' ends nor n: both are folded into `Batch.reward` and `Batch.discount`."""

    @property
    def policy(self) -> nn.Module:
        """Obs -> the greedy action: what is evaluated, exported and deployed."""
        ...

    @property
    def behaviour(self) -> nn.Module:
        """What the explorer reads. Obs -> an action (for noise on top) or q-values; stochastic policies take
        (Obs, standard normal noise [N, A]) -> a sampled action, and own no randomness themselves."""
        ...

    def observe(self, fresh: Transition) -> None:
        """See each new transition once, in order. Running statistics change here and nowhere else.

        Where they follow episodes, and so need vec steps of all environments, the config's `follows_episodes` is true.
        """
        ...

    losses: ClassVar[tuple[str, ...]]
    """Methods that can be compiled and, with other weights, repeated: tensors in, tensors out, no randomness of their
    own, and nothing changed."""

    updates: int
    """Updates so far."""

    def update(self, batch: Batch) -> Learned:
        """One update."""
        ...

    def pattern(self, count: int) -> Pattern:
        """What of the coming `count` updates the host decides: where two patterns are equal, so are the operations."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning changes. The entry "policy" holds `policy.state_dict()`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Appraiser(Protocol):
    """What an actor needs to know the errors of its own transitions: a module, so that its weights can be published.

    With R the discounted rewards of a window and d what is left of the discount, the error of the row where the window
    begins is |reward_scale * R + d * value - q|, the mean over heads.
    """

    reward_scale: float

    def __call__(self, obs: Obs, action: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """q of the action taken, [E, N], and the value of the observation, [N]; `said` is what `behaviour` said."""
        ...


class PrioritisingAgent(Agent, Protocol):
    """An agent whose actors can state the first priorities of what they collect (Ape-X).

    Its config says so in a class variable `appraises`, which is true.
    """

    @property
    def appraiser(self) -> nn.Module:
        """An `Appraiser`. Weights that `behaviour` has already need not be in it."""
        ...


class DiagnosedAgent(Agent, Protocol):
    """An agent that can be examined at each evaluation (`evaluation.diagnose`). Both methods only read: they change
    nothing, and draw nothing from the agent's generators."""

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        """Scalars, logged under diagnose/. `batch` are rows that may be learned from, `held_out` rows that never are;
        None where the replay holds none back."""
        ...

    def q(self, obs: Obs, action: Tensor) -> Tensor:
        """[B] what the targets take an action to be worth, in units of the environment's reward."""
        ...


class ActorCritic(Agent, Protocol):
    """An agent whose update falls apart into two, so that two learners can make them, each with an agent of its own.

    `update` is `update_critic`, and after every `policy_every`-th of these `update_policy` on the same observations.
    """

    policy_half: ClassVar[tuple[str, ...]]
    """Beside the weights of the steppers among them, what `update_policy` alone changes: attributes, which are entries
    of `state_dict` as well."""

    @property
    def critic(self) -> nn.Module: ...

    @property
    def norms(self) -> nn.Module:
        """The running statistics of observations, which all networks share."""
        ...

    @property
    def policy_every(self) -> int:
        """Critic updates per policy update."""
        ...

    def update_critic(self, batch: Batch) -> Learned:
        """Reads the policy, and counts in `updates`."""
        ...

    def update_policy(self, obs: Obs) -> Learned:
        """Reads the critic, and of the data nothing but observations."""
        ...


class AgentConfig(Protocol):
    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> Agent:
        """`total_updates` is the length of the learning-rate schedules."""
        ...


@runtime_checkable
class Solitary(Protocol):
    """What an `AgentConfig` may say besides: why several seeds of its agent cannot be trained as one (`stack.py`)."""

    @property
    def only_alone(self) -> str | None:
        """None: they can."""
        ...


class ValueLearnerConfig(Protocol):
    """The fields that agents with categorical critics share."""

    @property
    def v_min(self) -> float: ...
    @property
    def v_max(self) -> float: ...
    @property
    def atoms(self) -> int: ...
    @property
    def critics(self) -> int: ...
    @property
    def tau(self) -> float: ...
    @property
    def policy_every(self) -> int: ...
    @property
    def normalize_reward(self) -> bool: ...


def check_value_learner(cfg: ValueLearnerConfig) -> None:
    """Refuse settings that cannot learn, in one line."""
    if cfg.v_min >= cfg.v_max:
        raise UserError(f"agent.v_min ({cfg.v_min}) must be below agent.v_max ({cfg.v_max}).")
    for name, least in (("atoms", 2), ("critics", 1), ("policy_every", 1)):
        if getattr(cfg, name) < least:
            raise UserError(f"agent.{name} must be at least {least}, not {getattr(cfg, name)}.")
    if not 0.0 < cfg.tau <= 1.0:
        raise UserError(f"agent.tau must be above 0 and at most 1, not {cfg.tau}.")
    if cfg.normalize_reward and not cfg.v_min < 0.0 < cfg.v_max:
        raise UserError(
            "agent.normalize_reward fits returns into the value range, so 0 must lie inside it; "
            f"v_min is {cfg.v_min} and v_max is {cfg.v_max}."
        )
