"""What crosses from one stage to another: orders, weights, vec steps.

Threads of one process copy on their device; on a GPU each has its own stream, and no copy waits on the host. Weights
for another process are flat arrays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fleetfoot.agents.contract import ActorCritic
from fleetfoot.data import EnvSpec, Transition
from fleetfoot.log import Totals
from fleetfoot.optim import LocalStepper

T = TypeVar("T")


class Order(NamedTuple):
    """What a stage is asked to do in one round."""

    amount: int = 0  # vec steps to collect, or updates to make
    follows: tuple[bool, ...] = ()  # of each vec step handed over: does it continue the one before?
    skipped_batches: int = 0  # batches to draw without learning from them


class Outcome(NamedTuple):
    """The result of a round."""

    used: dict[str, int]  # numbers of the versions that it was made with
    changed: tuple[str, ...] = ()  # weights to publish
    fresh: Transition | None = None  # the vec step that it collected
    compile_seconds: float = 0.0


class Report(NamedTuple):
    """What a stage has measured since its last report."""

    totals: Totals
    times: dict[str, float]
    waited: float  # seconds between rounds


class Setup(NamedTuple):
    """What the stages need to know besides the recipe."""

    spec: EnvSpec | None = (
        None  # None: the actor builds the environments, and the others do not exist yet
    )
    same_rows: bool = False  # the policy learner draws the rows that the critic learner draws
    bytes_beside: int = (
        0  # that another stage will fill in the memory of the critic learner's replay
    )
    actors_lost: int = 0
    vec_steps: int = 0  # collected so far
    updates: int = 0  # made so far


def policy_weights(agent: ActorCritic) -> list[Tensor]:
    """What `update_policy` changes and others read."""
    state = [getattr(agent, name) for name in agent.policy_state]
    steppers = [part for part in state if isinstance(part, LocalStepper)]
    return [w for stepper in steppers for w in stepper.parameters] + _buffers(agent.policy, agent)


def critic_weights(agent: ActorCritic) -> list[Tensor]:
    return [*agent.critic.parameters(), *_buffers(agent.critic, agent)]


def statistics(agent: ActorCritic) -> list[Tensor]:
    return list(agent.norms.buffers())


def _buffers(network: nn.Module, agent: ActorCritic) -> list[Tensor]:
    """What belongs to the weights of a network (singular vectors), without the statistics of observations."""
    others = {id(buffer) for buffer in agent.norms.buffers()}
    return [buffer for buffer in network.buffers() if id(buffer) not in others]


WEIGHTS: dict[str, Callable[[ActorCritic], list[Tensor]]] = {
    "policy": policy_weights,
    "critic": critic_weights,
    "statistics": statistics,
}


class Versions:
    """The newest version of some weights, for threads of one process. Publisher and readers each have tensors of their
    own, so nobody reads half an update."""

    def __init__(self, tensors: Sequence[Tensor]):
        """`tensors`: the publisher's."""
        self.source = [tensor.detach() for tensor in tensors]
        self.newest = [tensor.clone() for tensor in self.source]
        self.number = 0
        self.lock = threading.Lock()
        self.written: torch.cuda.Event | None = None
        self.read: dict[int, torch.cuda.Event] = {}  # by thread
        self.on_gpu = any(tensor.is_cuda for tensor in self.newest)

    def publish(self) -> None:
        """Make the publisher's tensors, as they are now, the newest version."""
        with self.lock:
            if self.on_gpu:
                for event in self.read.values():
                    torch.cuda.current_stream().wait_event(event)
            _copy_(self.newest, self.source)
            if self.on_gpu:
                self.written = torch.cuda.current_stream().record_event()
            self.number += 1

    def copy(self, into: Sequence[Tensor]) -> int:
        """Copy the newest version; returns its number."""
        with self.lock:
            if self.written is not None:
                torch.cuda.current_stream().wait_event(self.written)
            _copy_(into, self.newest)
            if self.on_gpu:
                self.read[threading.get_ident()] = torch.cuda.current_stream().record_event()
            return self.number


@torch.no_grad()
def _copy_(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    # In one call: between two calls other threads get the interpreter, and it takes time to get it back.
    if into:
        torch._foreach_copy_(list(into), list(tensors))


class FlatVersion(NamedTuple):
    """One version of some weights, from another process."""

    number: int
    arrays: Any  # as `flat` makes them; None: lost together with a machine, so the reader stays with what it has

    def copy(self, into: Sequence[Tensor]) -> int:
        if self.arrays is not None:
            copy_flat_(into, self.arrays)
        return self.number


def flat(tensors: Sequence[Tensor]) -> list[Any]:
    """Copies of the tensors for another process, as one long array per dtype."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    joined = [
        torch.cat([t.detach().reshape(-1) for t in tensors if t.dtype == dtype]) for dtype in dtypes
    ]
    return [tensor.cpu().numpy() for tensor in joined]


@torch.no_grad()
def copy_flat_(into: Sequence[Tensor], arrays: Sequence[Any]) -> None:
    """The inverse of `flat`, for tensors of the same dtypes and sizes in the same order."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in into)
    for dtype, array in zip(dtypes, arrays, strict=True):
        targets = [tensor for tensor in into if tensor.dtype == dtype]
        joined = torch.from_numpy(array).to(targets[0].device)
        start = 0
        for tensor in targets:
            tensor.copy_(joined[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


Version: TypeAlias = Versions | FlatVersion


class Parcel(NamedTuple, Generic[T]):
    """Something on its way from one thread to others."""

    item: T
    sent: torch.cuda.Event | None  # on the sender's stream; None on a CPU


def parcel(item: T) -> Parcel[T]:
    on_gpu = any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in tree_leaves(item))
    return Parcel(item, torch.cuda.current_stream().record_event() if on_gpu else None)


class Inbox(Generic[T]):
    """Opens the parcels for one thread."""

    def __init__(self) -> None:
        self.current: list[T] = []
        self.in_use: deque[tuple[list[T], torch.cuda.Event]] = deque()

    def open(self, parcels: Sequence[Parcel[T]]) -> list[T]:
        """The items, ready to use on this thread's stream."""
        items = [item for item, _ in parcels]
        events = [event for _, event in parcels if event is not None]
        for event in events:
            torch.cuda.current_stream().wait_event(event)
        if events:
            self._hold(items)
        return items

    def _hold(self, items: list[T]) -> None:
        """Hold a reference to items until the device has finished with them. Memory that a simulator owns goes back to
        it with the last reference, and the simulator does not wait for this stream."""
        if self.current:
            # All kernels that read the items opened before have been queued by the time more are opened.
            self.in_use.append((self.current, torch.cuda.current_stream().record_event()))
        self.current = items
        while self.in_use and self.in_use[0][1].query():  # type: ignore[no-untyped-call]
            self.in_use.popleft()


def copied(tree: T) -> T:
    """The same with its own tensors; one that occurs twice stays one.

    For what a simulator on a GPU returns: one that records CUDA graphs knows its memory by address, so it must get the
    same memory back before every step, even while other streams still read the last ones.
    """
    copies: dict[int, Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.clone()
        return copies[id(leaf)]

    result: T = tree_map(copy, tree)
    return result
