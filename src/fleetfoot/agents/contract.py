"""What a topology may ask of an agent."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from fleetfoot.data import Batch, Continuous, EnvSpec, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.rng import generator_state, restore_generator

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

    def update(self, batch: Batch) -> UpdateResult:
        """One update."""
        ...

    def pattern(self, count: int) -> Pattern:
        """What of the coming `count` updates the host decides: where two patterns are equal, so are the operations."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning changes. The entry "policy" holds `policy.state_dict()`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class InitialPriority(Protocol):
    """What an actor needs to know the errors of its own transitions: a module, so that its weights can be published.

    With R the discounted rewards of a window and d what is left of the discount, the error of the row where the window
    begins is |reward_scale * R + d * value - q|, the mean over heads.
    """

    reward_scale: float

    def __call__(self, obs: Obs, action: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """q of the action taken, [E, N], and the value of the observation, [N]; `said` is what `behaviour` said."""
        ...


class GivesInitialPriorities(Agent, Protocol):
    """An agent whose actors can state the first priorities of what they collect (Ape-X).

    Its config says so in a class variable `gives_initial_priorities`, which is true.
    """

    @property
    def initial_priority(self) -> nn.Module:
        """An `InitialPriority`. Weights that `behaviour` has already need not be in it."""
        ...


class CanDiagnose(Agent, Protocol):
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

    policy_state: ClassVar[tuple[str, ...]]
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

    def update_critic(self, batch: Batch) -> UpdateResult:
        """Reads the policy, and counts in `updates`."""
        ...

    def update_policy(self, obs: Obs) -> UpdateResult:
        """Reads the critic, and of the data nothing but observations."""
        ...


class Stateful:
    """`state_dict` and `load_state_dict` of an agent."""

    kept: ClassVar[tuple[str, ...]]
    """Attributes with a state. One that is None is left out, and what two of them name is saved once."""
    counted: ClassVar[tuple[str, ...]] = ("updates",)
    """Attributes that are numbers."""

    def state_dict(self) -> dict[str, Any]:
        state = {
            name: generator_state(part) if isinstance(part, torch.Generator) else part.state_dict()
            for name, part in self._kept().items()
        }
        return state | {name: getattr(self, name) for name in self.counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._kept().items():
            if isinstance(part, torch.Generator):
                restore_generator(part, state[name])
            else:
                part.load_state_dict(state[name])
        for name in self.counted:
            setattr(self, name, state[name])

    def _kept(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self.kept:
            part = getattr(self, name)
            if part is not None and not any(part is other for other in found.values()):
                found[name] = part
        return found


class AgentConfig(Protocol):
    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> Agent:
        """`total_updates` is the length of the learning-rate schedules."""
        ...


@runtime_checkable
class CannotStack(Protocol):
    """What an `AgentConfig` may say besides: why several seeds of its agent cannot be trained as one (`stack.py`)."""

    @property
    def cannot_stack_reason(self) -> str | None:
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


def flat_actions(agent: str, spec: EnvSpec) -> int:
    """The size of an action; UserError unless actions are continuous and observations vectors."""
    if not isinstance(spec.action, Continuous) or len(spec.obs_shape) != 1:
        raise UserError(
            f"{agent} needs continuous actions and flat observations; {spec.name} has "
            f"{spec.action} and observations of shape {spec.obs_shape}."
        )
    return spec.action.size


def check_tau(tau: float) -> None:
    if not 0.0 < tau <= 1.0:
        raise UserError(f"agent.tau must be above 0 and at most 1, not {tau}.")


def check_above_zero(cfg: object, *names: str) -> None:
    for name in names:
        if not getattr(cfg, name) > 0.0:
            raise UserError(f"agent.{name} must be above 0, not {getattr(cfg, name)}.")


def check_at_least(cfg: object, **least: int) -> None:
    for name, smallest in least.items():
        if getattr(cfg, name) < smallest:
            raise UserError(f"agent.{name} must be at least {smallest}, not {getattr(cfg, name)}.")


def check_value_learner(cfg: ValueLearnerConfig) -> None:
    """Refuse settings that cannot learn, in one line."""
    if cfg.v_min >= cfg.v_max:
        raise UserError(f"agent.v_min ({cfg.v_min}) must be below agent.v_max ({cfg.v_max}).")
    check_at_least(cfg, atoms=2, critics=1, policy_every=1)
    check_tau(cfg.tau)
    if cfg.normalize_reward and not cfg.v_min < 0.0 < cfg.v_max:
        raise UserError(
            "agent.normalize_reward fits returns into the value range, so 0 must lie inside it; "
            f"v_min is {cfg.v_min} and v_max is {cfg.v_max}."
        )
