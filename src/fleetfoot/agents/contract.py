"""What the rest of the library asks of an agent. Nothing here computes; `docs/architecture.md` explains it at length.

required     `Agent`: two networks, `observe`, `update`, a counter and a state. Enough to train anywhere, eagerly.
for speed    `compiled_methods`, `compiled_steps` and `periods`, which say what may be compiled and what may be
             captured as CUDA graphs. Without them an agent runs eagerly, and the learner says so in one line.
offered      protocols with more methods, each of which one topology or feature needs: two learners, a parameter
             server, initial priorities, diagnosis, a memory of its own. A function `as_...` gives the agent back
             with that type, or raises a `UserError` of one sentence.
known early  `Traits`, which a config states, because a topology must know them before an agent is built.

Above 300 lines, most of them docstrings: whoever writes an agent finds everything that is asked of it in one file.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from fleetfoot.agents.state import Stateful
from fleetfoot.data import Batch, EnvSpec, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.network import Network


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

    updates: int
    """Updates so far. `update` adds one; whoever replays a captured update adds it from outside."""

    def observe(self, fresh: Transition) -> None:
        """Called once with each new transition, in order. Running statistics change here and nowhere else; those of an
        on-policy agent are collected here and take effect at the end of the next update."""
        ...

    def update(self, batch: Any) -> UpdateResult:
        """One update, on a `Batch`, or on the `Rollout` of an on-policy agent. On a GPU it must not wait for the device
        (no `.item()`, no `if` on a tensor)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning changes. The entry "policy" holds `policy.state_dict()`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Accelerated(Agent, Protocol):
    """An agent that says what of it may be compiled and captured. Each may be missing."""

    compiled_methods: ClassVar[tuple[str, ...]]
    """Names of pure methods: tensors in, tensors out (also in tuples, lists, dicts and `Loss`), no randomness of their
    own, and nothing changed. Usually the losses. They are also what several seeds compute as one."""

    compiled_steps: ClassVar[tuple[str, ...]]
    """Names of methods without arguments or results that change weights, each number by itself or as `constrain_` does:
    steps of target networks."""

    @property
    def periods(self) -> tuple[int | tuple[int, int], ...]:
        """The period, in updates, of everything in `update` that the host decides: `(policy_every, target_every)`,
        where `updates % period == 0` after counting, or a pair (period, phase), where it is `phase % period`. `()`: all
        updates make the same operations. Updates that the same periods divide share a recording, so an agent may
        declare this only if the host decides nothing else, and draws no random numbers but from the `RandomStream`s
        among its attributes."""
        ...


class ActorCritic(Agent, Protocol):
    """An agent whose update has two halves, so that two learners can make them, each with its own copy of the agent.

    `update` is `update_critic`, and after every `policy_every`-th of these `update_policy` on the same observations.
    """

    policy_state: ClassVar[tuple[str, ...]]
    """Names of the attributes that `update_policy` alone changes: steppers (and their weights), random streams. Each is
    an entry of `state_dict` as well."""

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


class Served(Agent, Protocol):
    """An agent whose learning a parameter server can take over: one critic with one optimiser, and one target that
    follows it."""

    critic: nn.Module
    critic_target: nn.Module
    step_critic: Any  # a `LocalStepper`, until a topology puts its own in its place

    @property
    def target_every(self) -> int:
        """Updates between two calls of `update_target`."""
        ...

    @property
    def tau(self) -> float:
        """Share of the critic that its target then takes over."""
        ...

    def update_target(self) -> None: ...


class InitialPriority(Protocol):
    """What an actor needs to know the errors of its own transitions: a module, so that its weights can be published.

    With R the discounted rewards of a window and d what is left of the discount, the error of the row where the window
    begins is |reward_scale * R + d * value - q|, the mean over heads.
    """

    reward_scale: float

    def __call__(self, obs: Obs, action: Tensor, behaviour_output: Tensor) -> tuple[Tensor, Tensor]:
        """q of the action taken, [E, N], and the value of the observation, [N]; `behaviour_output` is what `behaviour`
        gave for it."""
        ...


class GivesInitialPriorities(Agent, Protocol):
    """An agent whose actors can compute the first priorities of what they collect (Ape-X). Its config says so in its
    `Traits`."""

    @property
    def initial_priority(self) -> nn.Module:
        """An `InitialPriority`. Weights that `behaviour` has already need not be in it."""
        ...


class CanDiagnose(Agent, Protocol):
    """An agent that can be examined at each evaluation (`evaluation.diagnose`). Both methods only read: they change
    nothing, and draw nothing from the agent's random streams."""

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        """Scalars, logged under diagnose/. `batch` are rows that may be learned from, `held_out` rows that never are;
        None where the replay holds none back."""
        ...

    def q(self, obs: Obs, action: Tensor) -> Tensor:
        """[B] what the targets take an action to be worth, in units of the environment's reward."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """An agent that keeps what it observes, in order."""

    def mark_break(self) -> None:
        """The next transition does not follow from the last one, say because the simulator was started anew."""
        ...


class AgentConfig(Protocol):
    """The part of a recipe that builds an agent. It may have an attribute `traits`, a `Traits`."""

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> Agent:
        """`total_updates` is the length of the learning-rate schedules."""
        ...


class Traits(NamedTuple):
    """What a topology must know of an agent before it is built."""

    follows_episodes: bool = False
    """`observe` follows the episodes of each environment, so it needs whole vec steps, in order."""
    gives_initial_priorities: bool = False
    """The agent is a `GivesInitialPriorities`."""
    on_policy: bool = False
    """The agent learns from what its own policy has just collected: `update` takes a `Rollout`, and between two updates
    `behaviour` does not change (so `observe` must not change what it reads)."""
    cannot_stack_reason: str | None = None
    """Why several seeds of it cannot be trained as one batched computation; None: they can."""
    batch_statistics: bool = False
    """The agent calls networks with BatchNorms in training mode and stores what their statistics become."""


def traits(cfg: AgentConfig) -> Traits:
    stated = getattr(cfg, "traits", Traits())
    if not isinstance(stated, Traits):
        raise UserError(f"{type(cfg).__name__}.traits must be a Traits, not {_kind(stated)}.")
    return stated


REQUIRED_ATTRIBUTES: tuple[tuple[str, type, str], ...] = (
    ("policy", nn.Module, "a torch module (Obs -> greedy action)"),
    ("behaviour", nn.Module, "a torch module (Obs -> what the explorer reads)"),
    ("updates", int, "the number of updates so far, an int"),
)
REQUIRED_METHODS = (
    "observe(transition) -> None",
    "update(batch) -> UpdateResult",
    "state_dict() -> dict",
    "load_state_dict(state) -> None",
)


def check_agent(agent: Any, cfg: AgentConfig) -> Agent:
    """The same agent, if it keeps the contract; UserError, which names the first thing that is wrong, if not."""
    name = type(agent).__name__
    for attribute, kind, meaning in REQUIRED_ATTRIBUTES:
        value = getattr(agent, attribute, None)
        if not isinstance(value, kind):
            raise UserError(f"{name}.{attribute} must be {meaning}, not {_kind(value)}.")
    for signature in REQUIRED_METHODS:
        if not callable(getattr(agent, signature.partition("(")[0], None)):
            raise UserError(f"{name} needs a method {signature}.")
    if not _saves_policy(agent):
        raise UserError(f'{name}.state_dict() must have an entry "policy", policy.state_dict().')
    compiled_methods(agent)
    compiled_steps(agent)
    periods(agent)
    if not traits(cfg).batch_statistics:
        _check_no_batch_norms(agent)
    if traits(cfg).gives_initial_priorities:
        as_prioritising(agent)
    return cast(Agent, agent)


def _saves_policy(agent: Any) -> bool:
    """By the names of its parts where they are known: their state would make optimisers, which only learners need."""
    if isinstance(agent, Stateful) and type(agent).state_dict is Stateful.state_dict:
        return "policy" in agent.stateful_parts()
    return "policy" in agent.state_dict()


def _check_no_batch_norms(agent: Any) -> None:
    """Statistics that nobody updates would stay at zero and one, and normalise nothing."""
    values = [agent, *getattr(agent, "__dict__", {}).values()]
    parts = [value for value in values if isinstance(value, nn.Module)]
    for network in (module for part in parts for module in part.modules()):
        if isinstance(network, Network) and network.batch_statistics:
            raise UserError(
                f"{type(agent).__name__} does not update the statistics of networks with BatchNorms, such as "
                f"{type(network).__name__}: choose another network, or FlashSAC. (An agent of your own that updates "
                "them says so in its Traits.)"
            )


def compiled_methods(agent: Agent) -> tuple[str, ...] | None:
    """None where the agent does not say what may be compiled."""
    return _method_names(agent, "compiled_methods")


def compiled_steps(agent: Agent) -> tuple[str, ...]:
    return _method_names(agent, "compiled_steps") or ()


def _method_names(agent: Agent, attribute: str) -> tuple[str, ...] | None:
    """Those that the agent lists; None where it has no such list."""
    names, kind = getattr(agent, attribute, None), type(agent).__name__
    if names is None:
        return None
    if not (isinstance(names, tuple) and all(isinstance(name, str) for name in names)):
        raise UserError(f"{kind}.{attribute} must be a tuple of method names, not {names!r}.")
    for name in names:
        if not callable(getattr(agent, name, None)):
            raise UserError(f"{kind}.{attribute} names {name!r}, which is not a method of it.")
    return names


def periods(agent: Agent) -> tuple[tuple[int, int], ...] | None:
    """Pairs (period, phase); None where the agent declares none: nobody knows which of its updates are alike."""
    declared = getattr(agent, "periods", None)
    if declared is None:
        return None
    pairs = (
        [p if isinstance(p, tuple) else (p, 0) for p in declared]
        if isinstance(declared, tuple)
        else [()]
    )
    if not all(len(p) == 2 and all(isinstance(n, int) for n in p) and p[0] > 0 for p in pairs):
        raise UserError(
            f"{type(agent).__name__}.periods must be a tuple of numbers of updates, 1 or more each, not {declared!r}."
        )
    return tuple((period, phase) for period, phase in pairs)


def every(period: int, updates: int, count: int, phase: int = 0) -> tuple[bool, ...]:
    """Which of the `count` updates after the first `updates` are multiples of `period`, or `phase` above one?"""
    return tuple((updates + i - phase) % period == 0 for i in range(1, count + 1))


def as_actor_critic(agent: Agent) -> ActorCritic:
    why = "cannot be shared by two learners"
    return cast(ActorCritic, _offering(agent, ActorCritic, why, "--topology SynchronousConfig"))


def as_served(agent: Agent) -> Served:
    why = "cannot be taught by a parameter server, which takes agents with one critic"
    return cast(Served, _offering(agent, Served, why, "DQNConfig, or another topology"))


def as_prioritising(agent: Agent) -> GivesInitialPriorities:
    why, use = "cannot give first priorities", "--topology.no-initial-priorities"
    return cast(GivesInitialPriorities, _offering(agent, GivesInitialPriorities, why, use))


def as_diagnosable(agent: Agent) -> CanDiagnose:
    why = "cannot be diagnosed"
    return cast(CanDiagnose, _offering(agent, CanDiagnose, why, "--evaluation.no-diagnose"))


def why_not_stacked(agent: Agent) -> str | None:
    """Why several seeds of this agent cannot be trained as one batched computation (apart from its `Traits`), or
    None."""
    if not compiled_methods(agent):
        return "it declares no compiled_methods"
    for name, value in vars(agent).items():
        if isinstance(value, torch.Generator):
            return f"its {name} is a bare torch.Generator and no RandomStream"
        if isinstance(value, nn.Parameter):
            return f"its {name} is in no module"
        if isinstance(value, torch.optim.Optimizer):
            return f"its {name} is a bare torch optimiser and not built by fleetfoot.optim"
    return None


def _offering(agent: Agent, protocol: type, why: str, use: str) -> Agent:
    missing = [name for name in _members(protocol) if not hasattr(agent, name)]
    if missing:
        lacks = ", ".join(missing)
        raise UserError(f"{type(agent).__name__} {why} (it has no {lacks}): use {use}.")
    return agent


def _members(protocol: type) -> list[str]:
    """What a protocol asks for beyond `Agent`, in the order in which it says so."""
    asked = (*vars(protocol).get("__annotations__", {}), *vars(protocol))
    return [name for name in dict.fromkeys(asked) if not name.startswith("_")]


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
