"""The processes of one run that `torchrun` started, and what they say to each other.

Numbers that learning needs (gradients, fresh rows) travel on the device that holds them, through NCCL or gloo, and no
host waits for its GPU. Everything else (errors, interrupts, metrics, checkpoints) travels between hosts through gloo.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetfoot.checkpoint.tree import DTYPES, pack, unpack
from fleetfoot.errors import UserError

# Nobody waits longer for the others, say while the first evaluates. A rank that dies is noticed at once.
PATIENCE = timedelta(minutes=30)
CHUNK = 64 << 20  # bytes sent at a time
# The older name is going away, and older versions have no other.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


class ReportedElsewhere(UserError):  # noqa: N818
    """Another rank tells the user what is wrong; this one ends without a word."""


class RankLost(UserError):  # noqa: N818
    """Another process of the run does not answer any more."""

    def __init__(self) -> None:
        super().__init__(
            "another process of this run has ended or lost contact (its own message says why); "
            "fleetfoot resume, started the same way, goes on from the last checkpoint."
        )


@dataclass(frozen=True)
class Ranks:
    """This process among its equals. Every method is called by all of them, in the same order."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0  # among the processes of this machine
    local_world: int = 1

    @property
    def first(self) -> bool:
        """The one that logs, evaluates and writes files."""
        return self.rank == 0

    def mean(self, tensors: list[Tensor]) -> list[Tensor]:
        """The mean over all ranks, the same bits everywhere, in one message; the tensors given may be used up."""
        if self.world == 1:
            return tensors
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with talking(flat.device):
            dist.all_reduce(flat)
        flat /= self.world
        pieces = flat.split_with_sizes([tensor.numel() for tensor in tensors])
        return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]

    def gather(self, tensors: list[Tensor]) -> list[Tensor]:
        """Rows [n, ...] of all ranks, one rank after the other: [world * n, ...], in one message."""
        if self.world == 1:
            return tensors
        rows = tensors[0].shape[0]
        columns = [t.reshape(rows, -1).contiguous().view(torch.uint8) for t in tensors]
        packed = torch.cat(columns, dim=1)
        whole = packed.new_empty(self.world * rows, packed.shape[1])
        with talking(packed.device):
            all_gather(whole, packed)
        pieces = whole.split_with_sizes([column.shape[1] for column in columns], dim=1)
        return [
            piece.clone(memory_format=torch.contiguous_format).view(t.dtype).view(-1, *t.shape[1:])
            for piece, t in zip(pieces, tensors, strict=True)
        ]

    def any(self, flag: bool) -> bool:
        """Is it so on any rank? The hosts wait for each other, their devices do not."""
        if self.world == 1:
            return flag
        flags = torch.tensor([int(flag)])
        with talking():
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags[0])

    def gather_json(self, value: Any) -> list[Any]:
        """What each rank has to say, by rank."""
        if self.world == 1:
            return [value]
        mine = _bytes(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        with talking():
            dist.all_gather(sizes, torch.tensor([mine.numel()]))
            widest = max(int(size) for size in sizes)
            said = [torch.empty(widest, dtype=torch.uint8) for _ in sizes]
            dist.all_gather(said, torch.cat([mine, mine.new_zeros(widest - mine.numel())]))
        pairs = zip(said, sizes, strict=True)
        return [json.loads(text[: int(size)].numpy().tobytes()) for text, size in pairs]

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """What goes wrong on one rank inside goes wrong on all; the first says it. Nothing inside may leave a rank
        waiting for another that failed before."""
        mine: str | None = None
        cause: UserError | None = None
        try:
            yield
        except UserError as error:
            if self.world == 1 or isinstance(error, (ReportedElsewhere, RankLost)):
                raise
            mine, cause = str(error), error
        errors = self.gather_json(mine)
        wrong = [(rank, error) for rank, error in enumerate(errors) if error is not None]
        if not wrong:
            return
        if not self.first:
            raise ReportedElsewhere(wrong[0][1]) from cause
        if cause is not None:
            raise cause
        raise UserError("rank {}: {}".format(*wrong[0]))

    def first_says(self, speak: Callable[[], Any]) -> Any:
        """Let the first rank find out, and all know: `speak` returns something that JSON can carry."""
        said: Any = None
        with self.raise_together():
            said = speak() if self.first else None
        return self.gather_json(said)[0]

    def assemble(self, part: Any, write: Callable[[Iterator[Any]], None]) -> None:
        """On the first rank, `write` gets the trees `part` of the others, in order; each is fetched when asked for, so
        that no more than one lies in memory."""
        if not self.first:
            while (said := self._hear(0)) == "send":
                self._send_tree(part)
            if said is not None:
                raise ReportedElsewhere(said)
            return
        error: UserError | None = None
        try:
            write(self._fetch())
        except RankLost:
            raise
        except UserError as why:
            error = why
        for rank in range(1, self.world):
            self._tell(rank, None if error is None else str(error))
        if error is not None:
            raise error

    def _fetch(self) -> Iterator[Any]:
        for rank in range(1, self.world):
            self._tell(rank, "send")
            yield self._receive_tree(rank)

    def _send_tree(self, tree: Any) -> None:
        tensors, form = pack(tree)
        about = [[name, DTYPES[t.dtype], list(t.shape)] for name, t in tensors.items()]
        self._tell(0, {"form": form, "tensors": about})
        for tensor in tensors.values():
            raw = tensor.contiguous().reshape(-1).view(torch.uint8)
            with talking():
                for piece in _chunks(raw):
                    dist.send(piece.cpu(), 0)

    def _receive_tree(self, rank: int) -> Any:
        about = self._hear(rank)
        tensors: dict[str, Tensor] = {}
        for name, kind, shape in about["tensors"]:
            tensors[name] = torch.empty(shape, dtype=BY_NAME[kind])
            with talking():
                for piece in _chunks(tensors[name].reshape(-1).view(torch.uint8)):
                    dist.recv(piece, rank)
        return unpack(tensors, about["form"])

    def _tell(self, rank: int, value: Any) -> None:
        text = _bytes(value)
        with talking():
            dist.send(torch.tensor([text.numel()]), rank)
            dist.send(text, rank)

    def _hear(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with talking():
            dist.recv(size, rank)
            text = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(text, rank)
        return json.loads(text.numpy().tobytes())


ALONE = Ranks()


def here() -> Ranks:
    """The ranks this process has joined; alone where it has joined none."""
    if not dist.is_initialized():
        return ALONE
    return _launched()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that the launcher started; alone without a launcher, or with one process.

    They stay joined until the program ends, since one that left and came back could meet others that have not left yet.
    """
    ranks = _launched()
    if ranks.world == 1:
        yield ranks
        return
    if not dist.is_initialized():
        if ranks.world == ranks.local_world:
            stay_on_this_machine()
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        with talking():
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
        atexit.register(leave)
    try:
        yield ranks
    except BaseException as error:
        # It would wait for ranks that may be waiting for this one. Mistakes of users end all ranks alike.
        if not isinstance(error, UserError) or isinstance(error, RankLost):
            atexit.unregister(leave)
        raise


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def stay_on_this_machine() -> None:
    """Talk through the loopback interface, which no other machine can reach."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if loopback:
            os.environ.setdefault(variable, loopback[0])


def line_for(error: UserError) -> str | None:
    """What this process should print about an error that ends it; None where another rank says it.

    An error from before the processes have joined is settled with the others first, so that it is said once.
    """
    ranks = _launched()
    if ranks.world == 1:
        return str(error)
    if isinstance(error, ReportedElsewhere):
        return None
    if dist.is_initialized():
        return f"rank {ranks.rank}: {error}" if not ranks.first else str(error)
    try:
        with joined(), ranks.raise_together():
            raise error
    except ReportedElsewhere:
        return None
    except UserError as settled:
        return str(settled)


@contextmanager
def talking(device: torch.device | None = None) -> Iterator[None]:
    """A failure to reach another host is that rank's end. (NCCL reports its failures later, and elsewhere.)"""
    try:
        yield
    except RuntimeError as error:
        if device is not None and device.type != "cpu":
            raise
        raise RankLost from error


def _launched() -> Ranks:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, world, local_rank, local_world = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        return ALONE
    return Ranks(rank, world, local_rank, local_world)


def _chunks(raw: Tensor) -> list[Tensor]:
    return [raw[start : start + CHUNK] for start in range(0, raw.numel(), CHUNK)]


def _bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
