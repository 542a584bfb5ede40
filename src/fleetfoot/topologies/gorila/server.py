"""The parameter server of Gorila, without anything that moves bytes: its shards, and all shards as one.

The parameters of a network, laid end to end, are cut into shards. Each shard owns its slice of the weights, of the
optimiser's state and of the target, and changes them by the gradients it is sent:

    (1)  age = updates of the server - updates of the weights that the gradient was computed with
    (2)  a gradient with age > max_age is stale and is thrown away
    (3)  weights <- optimiser(weights, gradient), one update
    (4)  target <- (1 - tau) target + tau weights, every `target_every` updates of the server

The first shard decides (2), gives every gradient it takes the number of its update, and keeps the books; the other
shards take what it took. So all agree on which gradients count and on when to make (4).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.errors import UserError
from fleetfoot.optim import OptimConfig

LAGS = (0, 1, 2, 4, 8, 16, 32, 64)  # upper ends of the bars of the lag histogram; the last is open


class Version(NamedTuple):
    """Which weights and which target."""

    generation: int  # how often the server went back to a checkpoint; others' numbers mean nothing
    version: int  # updates made
    follows: int  # steps of the target made


NOTHING = Version(-1, -1, -1)


class Pulled(NamedTuple):
    stamp: Version
    weights: Tensor | None  # the slice of one shard; None: the one who asks has it already
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
    """What became of the gradients of each bundle, and how old they were when they arrived."""

    accepted: dict[int, int] = field(default_factory=dict)
    stale: dict[int, int] = field(default_factory=dict)
    outlying: dict[int, int] = field(default_factory=dict)
    lags: list[int] = field(default_factory=lambda: [0] * (len(LAGS) + 1))
    lag_sum: int = 0

    def count(self, what: str, bundle: int) -> None:
        counts = getattr(self, what)
        counts[bundle] = counts.get(bundle, 0) + 1

    def lag(self, age: int) -> None:
        self.lags[sum(age > end for end in LAGS)] += 1
        self.lag_sum += age

    def total(self, what: str) -> int:
        return sum(getattr(self, what).values())


class ServerShard:
    """One slice of the server. `pieces` are the sizes of its parts of the parameters: optimisers work on those, so that
    one shard alone does what a local optimiser would do, bit for bit."""

    def __init__(self, weights: Tensor, pieces: Sequence[int], rule: ServerConfig):
        self.rule, self.pieces = rule, list(pieces)
        self.weights, self.target = weights.clone(), weights.clone()
        self.generation = self.version = self.follows = 0
        self.books = GradientStats()
        parts = [nn.Parameter(piece) for piece in self.weights.split_with_sizes(self.pieces)]
        # They share memory with `weights`.
        self.step = rule.optim.build(nn.ParameterList(parts), rule.total_updates)

    def stamp(self) -> Version:
        return Version(self.generation, self.version, self.follows)

    def pull(self, known: Version) -> Pulled:
        """What is newer than what the asker has."""
        mine = self.stamp()
        same, same_target = known[:2] == mine[:2], known[::2] == mine[::2]
        return Pulled(
            mine,
            None if same else self.weights.clone(),
            None if same_target else self.target.clone(),
        )

    def push(self, gradient: Tensor, known: Version, bundle: int) -> Version | None:
        """Take a gradient computed with the weights `known`, as the next update, or throw it away: None. Only the first
        shard is asked."""
        age = self.version - known.version
        if known.generation != self.generation or age > self.rule.max_age:  # (1), (2)
            self.books.count("stale", bundle)
            if known.generation == self.generation:
                self.books.lag(age)
            return None
        self.books.count("accepted", bundle)
        self.books.lag(age)
        self.apply(gradient, self.stamp()._replace(version=self.version + 1))
        return self.stamp()

    def apply(self, gradient: Tensor, number: Version) -> None:
        """Make the update that the first shard gave this number."""
        if number.generation != self.generation:
            return
        self.step.apply(list(gradient.split_with_sizes(self.pieces)))  # (3)
        due = self.version // self.rule.target_every
        self.version = max(self.version, number.version)
        if self.version // self.rule.target_every > due:
            target, weights = (
                list(x.split_with_sizes(self.pieces)) for x in (self.target, self.weights)
            )
            torch._foreach_lerp_(target, weights, self.rule.tau)  # (4)
            self.follows += 1

    def outlying(self, bundle: int) -> None:
        """Note that a bundle threw a gradient away itself."""
        self.books.count("outlying", bundle)

    def read_books(self) -> GradientStats:
        return self.books

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.clone(),
            "target": self.target.clone(),
            "step": self.step.state_dict(),
            "version": self.version,
            "follows": self.follows,
            "books": copy.deepcopy(vars(self.books)),
        }

    def load_state_dict(self, state: dict[str, Any], generation: int) -> None:
        """Go to a saved state, as the so-many-th generation."""
        self.weights.copy_(state["weights"])
        self.target.copy_(state["target"])
        self.step.load_state_dict(state["step"])
        self.version, self.follows = state["version"], state["follows"]
        self.books = GradientStats(**copy.deepcopy(state["books"]))
        self.generation = generation


class ShardSlice(NamedTuple):
    """The slice of one shard, and the sizes of its parts of the parameters."""

    start: int
    stop: int
    pieces: list[int]


def cut(sizes: Sequence[int], shards: int) -> list[ShardSlice]:
    """Lay parameters of these sizes end to end and cut them into equal shards, to one number."""
    total = sum(sizes)
    if not 1 <= shards <= total:
        raise UserError(
            f"topology.shards must lie between 1 and the {total:,} parameters of the network, not {shards}."
        )
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    cuts = []
    for i in range(shards):
        start, stop = total * i // shards, total * (i + 1) // shards
        at = [start, *(end for end in ends if start < end < stop), stop]
        cuts.append(ShardSlice(start, stop, [b - a for a, b in pairwise(at)]))
    return cuts


Call = Callable[[Sequence[Any], str, Sequence[tuple[Any, ...]]], list[Any]]


def call_here(
    shards: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Call a method of each of several shards, with its own arguments; here they live in this process."""
    return [getattr(s, method)(*a) for s, a in zip(shards, arguments, strict=True)]


class Server:
    """All shards as one. `call` is how they are reached."""

    def __init__(self, shards: Sequence[Any], cuts: Sequence[ShardSlice], call: Call = call_here):
        self.shards, self.cuts, self.call = list(shards), list(cuts), call

    def pull(self, known: Sequence[Version]) -> list[Pulled]:
        answers: list[Pulled] = self.call(self.shards, "pull", [(stamp,) for stamp in known])
        return answers

    def push(self, gradient: Tensor, known: Version, bundle: int) -> bool:
        """Returns when every shard has made the update, or when the first has found it stale: False."""
        first, *others = (gradient[c.start : c.stop] for c in self.cuts)
        number = self.call(self.shards[:1], "push", [(first, known, bundle)])[0]
        if number is not None and others:
            self.call(self.shards[1:], "apply", [(part, number) for part in others])
        return number is not None

    def outlying(self, bundle: int) -> None:
        self.call(self.shards[:1], "outlying", [(bundle,)])

    def books(self) -> GradientStats:
        books: GradientStats = self.call(self.shards[:1], "read_books", [()])[0]
        return books

    def state_dict(self) -> list[dict[str, Any]]:
        return self.call(self.shards, "state_dict", [()] * len(self.shards))

    def load_state_dict(self, state: Sequence[dict[str, Any]], generation: int) -> None:
        self.call(self.shards, "load_state_dict", [(s, generation) for s in state])
