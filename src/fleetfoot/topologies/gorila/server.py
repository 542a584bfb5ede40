"""The parameter server of Gorila: its shards, and all shards behind one interface. Nothing here depends on processes.

The parameters of a network are concatenated and split into shards of equal size. Each shard owns its slice of the
weights, of the optimiser state and of the target network, and updates them with the gradients it receives:

    (1)  age = updates of the server - updates of the weights that the gradient was computed with
    (2)  a gradient with age > max_age is stale and is dropped
    (3)  weights <- optimiser(weights, gradient), one update
    (4)  target <- (1 - tau) target + tau weights, every `target_every` updates of the server

The first shard decides (2), numbers each accepted gradient and counts what happened to all gradients. The other shards
apply exactly the gradients that it accepted. So all shards agree on the updates and on when to make (4).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.checkpoint import check_fits
from fleetfoot.errors import UserError
from fleetfoot.optim import OptimConfig
from fleetfoot.run.loading import fitting

LAG_BINS = (0, 1, 2, 4, 8, 16, 32, 64)  # upper ends of the lag histogram; one open bin follows


class Version(NamedTuple):
    """Identifies the weights and the target of a shard."""

    generation: (
        int  # how often the server was restored; counts of different generations do not compare
    )
    updates: int
    target_updates: int


NO_VERSION = Version(-1, -1, -1)


class Pulled(NamedTuple):
    """The answer of one shard to a pull."""

    version: Version
    weights: Tensor | None  # the slice of the shard; None: the caller already has it
    target: Tensor | None


@dataclass(frozen=True)
class ServerConfig:
    """How a server learns."""

    optim: OptimConfig  # without clipping: a shard does not see the whole gradient
    total_updates: int
    target_every: int
    tau: float
    max_age: int


@dataclass
class GradientStats:
    """What happened to the gradients of each bundle, and how old they were when they arrived."""

    accepted: dict[int, int] = field(default_factory=dict)
    stale: dict[int, int] = field(default_factory=dict)
    outlying: dict[int, int] = field(default_factory=dict)
    lags: list[int] = field(default_factory=lambda: [0] * (len(LAG_BINS) + 1))
    lag_sum: int = 0

    def count(self, outcome: str, bundle: int) -> None:
        counts = getattr(self, outcome)
        counts[bundle] = counts.get(bundle, 0) + 1

    def add_lag(self, age: int) -> None:
        self.lags[sum(age > end for end in LAG_BINS)] += 1
        self.lag_sum += age

    def total(self, outcome: str) -> int:
        return sum(getattr(self, outcome).values())


class ServerShard:
    """One slice of the server.

    `pieces` are the sizes of the parts of parameters in this slice. The optimiser works on these parts, so a single
    shard computes the same bits as a local optimiser.
    """

    def __init__(self, weights: Tensor, pieces: Sequence[int], cfg: ServerConfig):
        self.cfg, self.pieces = cfg, list(pieces)
        self.weights, self.target = weights.clone(), weights.clone()
        self.generation = self.updates = self.target_updates = 0
        self.gradient_stats = GradientStats()
        # The parameters share memory with `weights`.
        parameters = [nn.Parameter(piece) for piece in self.weights.split_with_sizes(self.pieces)]
        self.step = cfg.optim.build(nn.ParameterList(parameters), cfg.total_updates)

    def version(self) -> Version:
        return Version(self.generation, self.updates, self.target_updates)

    def pull(self, known: Version) -> Pulled:
        """What changed since the version `known`."""
        now = self.version()
        same = known.generation == now.generation
        same_weights = same and known.updates == now.updates
        same_target = same and known.target_updates == now.target_updates
        return Pulled(
            now,
            None if same_weights else self.weights.clone(),
            None if same_target else self.target.clone(),
        )

    def push(self, gradient: Tensor, known: Version, bundle: int) -> Version | None:
        """Apply a gradient that was computed with the weights `known`, and return the new version, or drop it and
        return None. Called on the first shard only."""
        age = self.updates - known.updates
        same_generation = known.generation == self.generation
        accepted = same_generation and age <= self.cfg.max_age  # (1), (2)
        self.gradient_stats.count("accepted" if accepted else "stale", bundle)
        if same_generation:
            self.gradient_stats.add_lag(age)
        if not accepted:
            return None
        self.apply(gradient, self.version()._replace(updates=self.updates + 1))
        return self.version()

    def apply(self, gradient: Tensor, version: Version) -> None:
        """Make the update that leads to `version`, which the first shard assigned."""
        if version.generation != self.generation:
            return
        self.step.apply(list(gradient.split_with_sizes(self.pieces)))  # (3)
        target_updates_due = self.updates // self.cfg.target_every
        self.updates = max(self.updates, version.updates)
        if self.updates // self.cfg.target_every > target_updates_due:
            target = list(self.target.split_with_sizes(self.pieces))
            weights = list(self.weights.split_with_sizes(self.pieces))
            torch._foreach_lerp_(target, weights, self.cfg.tau)  # (4)
            self.target_updates += 1

    def record_outlier(self, bundle: int) -> None:
        """Count a gradient that the bundle itself dropped."""
        self.gradient_stats.count("outlying", bundle)

    def get_gradient_stats(self) -> GradientStats:
        return self.gradient_stats

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.clone(),
            "target": self.target.clone(),
            "step": self.step.state_dict(),
            "updates": self.updates,
            "target_updates": self.target_updates,
            "gradient_stats": copy.deepcopy(vars(self.gradient_stats)),
        }

    def load_state_dict(self, state: dict[str, Any], generation: int) -> None:
        fixed = ("weights", "target", "step", "updates", "target_updates")
        own = self.state_dict()
        with fitting():
            check_fits({k: state[k] for k in fixed}, {k: own[k] for k in fixed}, "server")
        self.weights.copy_(state["weights"])
        self.target.copy_(state["target"])
        self.step.load_state_dict(state["step"])
        self.updates, self.target_updates = state["updates"], state["target_updates"]
        self.gradient_stats = GradientStats(**copy.deepcopy(state["gradient_stats"]))
        self.generation = generation


class ShardSlice(NamedTuple):
    """The place of one shard in the concatenated parameters."""

    start: int
    stop: int
    pieces: list[int]  # sizes of the parts of parameters in it


def shard_slices(sizes: Sequence[int], shards: int) -> list[ShardSlice]:
    """Split concatenated parameters of these sizes into shards whose sizes differ by at most one."""
    total = sum(sizes)
    if not 1 <= shards <= total:
        raise UserError(
            f"topology.shards must be between 1 and {total:,}, the number of parameters of the network, "
            f"not {shards}."
        )
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    slices = []
    for i in range(shards):
        start, stop = total * i // shards, total * (i + 1) // shards
        bounds = [start, *(end for end in ends if start < end < stop), stop]
        slices.append(ShardSlice(start, stop, [b - a for a, b in pairwise(bounds)]))
    return slices


Call = Callable[[Sequence[Any], str, Sequence[tuple[Any, ...]]], list[Any]]


def call_local(
    shards: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Call a method of each shard, each with its own arguments, in this process."""
    return [getattr(shard, method)(*args) for shard, args in zip(shards, arguments, strict=True)]


class Server:
    """All shards behind one interface. `call` reaches them."""

    def __init__(
        self, shards: Sequence[Any], slices: Sequence[ShardSlice], call: Call = call_local
    ):
        self.shards, self.slices, self.call = list(shards), list(slices), call

    def pull(self, known: Sequence[Version]) -> list[Pulled]:
        return self.call(self.shards, "pull", [(version,) for version in known])

    def push(self, gradient: Tensor, known: Version, bundle: int) -> bool:
        """Return True when every shard has made the update, False when the first shard found the gradient stale."""
        first, *others = (gradient[s.start : s.stop] for s in self.slices)
        version = self.call(self.shards[:1], "push", [(first, known, bundle)])[0]
        if version is not None and others:
            self.call(self.shards[1:], "apply", [(part, version) for part in others])
        return version is not None

    def record_outlier(self, bundle: int) -> None:
        self.call(self.shards[:1], "record_outlier", [(bundle,)])

    def gradient_stats(self) -> GradientStats:
        stats: GradientStats = self.call(self.shards[:1], "get_gradient_stats", [()])[0]
        return stats

    def state_dict(self) -> list[dict[str, Any]]:
        return self.call(self.shards, "state_dict", [()] * len(self.shards))

    def load_state_dict(self, state: Sequence[dict[str, Any]], generation: int) -> None:
        self.call(self.shards, "load_state_dict", [(shard, generation) for shard in state])
