"""What those who learn and collect at the same time hand each other.

Threads of one process copy; on a GPU each has a stream of its own, and none waits on the host. To other processes
weights go as flat arrays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

T = TypeVar("T")


class Versions:
    """The newest version of some tensors. Makers and readers have tensors of their own, and copy."""

    def __init__(self, tensors: Sequence[Tensor]):
        """`tensors`: the maker's."""
        self.made = [tensor.detach() for tensor in tensors]
        self.newest = [tensor.clone() for tensor in self.made]
        self.number = 0
        self.lock = threading.Lock()
        self.written: torch.cuda.Event | None = None
        self.read: dict[int, torch.cuda.Event] = {}  # by thread
        self.on_gpu = any(tensor.is_cuda for tensor in self.newest)

    def publish(self) -> None:
        """The maker's tensors as they are now."""
        with self.lock:
            if self.on_gpu:
                for event in self.read.values():
                    torch.cuda.current_stream().wait_event(event)
            _copy_(self.newest, self.made)
            if self.on_gpu:
                self.written = torch.cuda.current_stream().record_event()
            self.number += 1

    def copy(self, into: Sequence[Tensor]) -> int:
        """Copy the newest version; tells its number."""
        with self.lock:
            if self.written is not None:
                torch.cuda.current_stream().wait_event(self.written)
            _copy_(into, self.newest)
            if self.on_gpu:
                self.read[threading.get_ident()] = torch.cuda.current_stream().record_event()
            return self.number


class Reader:
    """Tensors that follow a published version, whenever their owner asks for it."""

    def __init__(self, versions: Versions, tensors: Sequence[Tensor]):
        self.versions, self.tensors, self.number = versions, tensors, 0

    def refresh(self) -> None:
        if self.lag():
            self.number = self.versions.copy(self.tensors)

    def lag(self) -> int:
        """Versions that are newer than the one that is used."""
        return self.versions.number - self.number


@torch.no_grad()
def _copy_(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    # In one call: between two calls other threads get the interpreter, and it takes time to get it back.
    if into:
        torch._foreach_copy_(list(into), list(tensors))


def flat(tensors: Sequence[Tensor]) -> list[Any]:
    """Copies of the tensors for another process, as one long array per kind of number."""
    kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
    long = [
        torch.cat([t.detach().reshape(-1) for t in tensors if t.dtype == kind]) for kind in kinds
    ]
    return [each.cpu().numpy() for each in long]


@torch.no_grad()
def copy_flat_(into: Sequence[Tensor], arrays: Sequence[Any]) -> None:
    """The inverse of `flat`, for tensors of the same kinds and sizes in the same order."""
    kinds = dict.fromkeys(tensor.dtype for tensor in into)
    for kind, array in zip(kinds, arrays, strict=True):
        mine = [tensor for tensor in into if tensor.dtype == kind]
        long = torch.from_numpy(array).to(mine[0].device)
        at = 0
        for tensor in mine:
            tensor.copy_(long[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()


class Channel(Generic[T]):
    """From one thread to another, in order. How much may wait in it is up to those who use it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[T, torch.cuda.Event | None]] = deque()
        self.taken: list[T] = []
        self.in_use: deque[tuple[list[T], torch.cuda.Event]] = deque()

    def put(self, item: T) -> None:
        on_gpu = any(tensor.is_cuda for tensor in _tensors(item))
        event = torch.cuda.current_stream().record_event() if on_gpu else None
        self.waiting.append((item, event))

    def take(self, most: int | None) -> list[T]:
        """The next items, `most` of them or (None) all there are."""
        count = len(self.waiting) if most is None else min(most, len(self.waiting))
        items, on_gpu = [], False
        for _ in range(count):
            item, event = self.waiting.popleft()
            if event is not None:
                on_gpu = True
                torch.cuda.current_stream().wait_event(event)
            items.append(item)
        if on_gpu:
            self._keep(items)
        return items

    def _keep(self, items: list[T]) -> None:
        """Hold on to items until the device is done with them: memory that a simulator owns goes back to it with the
        last reference, and it does not know of this stream."""
        if self.taken:
            # Whatever the taker wants of the device with its items, it has asked for by the time it takes more.
            self.in_use.append((self.taken, torch.cuda.current_stream().record_event()))
        self.taken = items
        while self.in_use and self.in_use[0][1].query():  # type: ignore[no-untyped-call]
            self.in_use.popleft()


def copied(tree: T) -> T:
    """The same with tensors of its own; one that is there twice stays one.

    For what a simulator on a GPU hands out: one that records CUDA graphs knows them by the addresses of its memory, so
    it must get the same memory back before every step, whoever is still busy with the last ones.
    """
    known: dict[int, Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.clone()
        return known[id(leaf)]

    whole: T = tree_map(copy, tree)
    return whole


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from _tensors(branch)
