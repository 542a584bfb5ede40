"""The processes of one run that `torchrun` started, and the communication between them.

Tensors for learning (gradients, new transitions) are exchanged on the device that holds them, through NCCL or gloo,
and no host waits for its GPU. Everything else (errors, interrupts, metrics, checkpoints) goes from host to host
through gloo, as JSON and raw tensors.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetfoot.checkpoint.tree import DTYPES, pack, unpack
from fleetfoot.errors import UserError

# How long ranks wait for another, for example while the first one evaluates. They notice its death at once.
TIMEOUT = timedelta(minutes=30)
CHUNK_BYTES = 64 << 20  # of a tensor, per message
GOODBYE_SECONDS = 5.0  # for how long a rank that has failed waits for the others to notice
# torch deprecates the second name; older versions know only that one.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
DTYPE_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


class ReportedElsewhere(UserError):  # noqa: N818
    """An error that another rank prints; this rank ends silently."""


class RankLost(UserError):  # noqa: N818
    """Another process of the run has died."""

    def __init__(self) -> None:
        super().__init__(
            "another process of this run has ended or lost contact (see its own message); "
            "fleetfoot resume, started the same way, continues from the last checkpoint."
        )


@dataclass(frozen=True)
class Ranks:
    """The place of this process among all processes of the run. Every rank calls the same methods in the same
    order."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0  # among the processes of this machine
    local_world: int = 1

    @property
    def first(self) -> bool:
        """The first rank logs, evaluates and writes files."""
        return self.rank == 0

    def mean(self, tensors: list[Tensor]) -> list[Tensor]:
        """The mean over all ranks, in one message and with the same bits everywhere. May overwrite its arguments."""
        if self.world == 1:
            return tensors
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with communication(flat.device):
            dist.all_reduce(flat)
        flat /= self.world
        pieces = flat.split_with_sizes([tensor.numel() for tensor in tensors])
        return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]

    def gather(self, tensors: list[Tensor]) -> list[Tensor]:
        """The rows [n, ...] of all ranks in the order of the ranks: [world * n, ...], in one message."""
        if self.world == 1:
            return tensors
        rows = tensors[0].shape[0]
        columns = [t.reshape(rows, -1).contiguous().view(torch.uint8) for t in tensors]
        packed = torch.cat(columns, dim=1)
        gathered = packed.new_empty(self.world * rows, packed.shape[1])
        with communication(packed.device):
            all_gather(gathered, packed)
        pieces = gathered.split_with_sizes([column.shape[1] for column in columns], dim=1)
        return [
            piece.clone(memory_format=torch.contiguous_format).view(t.dtype).view(-1, *t.shape[1:])
            for piece, t in zip(pieces, tensors, strict=True)
        ]

    def any(self, flag: bool) -> bool:
        """Is the flag set on any rank? Blocks the hosts, not their devices."""
        if self.world == 1:
            return flag
        flags = torch.tensor([int(flag)])
        with communication():
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags[0])

    def gather_json(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of the ranks."""
        if self.world == 1:
            return [value]
        message = _encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        with communication():
            dist.all_gather(sizes, torch.tensor([message.numel()]))
            longest = max(int(size) for size in sizes)
            messages = [message.new_empty(longest) for _ in sizes]
            dist.all_gather(messages, torch.cat([message, message.new_zeros(longest)])[:longest])
        return [_decode(m[: int(size)]) for m, size in zip(messages, sizes, strict=True)]

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """A UserError of one rank inside becomes one of all ranks, and the first rank prints it. The ranks must not
        communicate inside: one would wait for another that has failed."""
        cause: UserError | None = None
        try:
            yield
        except UserError as error:
            if self.world == 1 or isinstance(error, (ReportedElsewhere, RankLost)):
                raise
            cause = error
        messages = self.gather_json(None if cause is None else str(cause))
        errors = [(rank, message) for rank, message in enumerate(messages) if message is not None]
        if not errors:
            return
        rank, message = errors[0]
        if not self.first:
            raise ReportedElsewhere(message) from cause
        raise cause or UserError(f"rank {rank}: {message}")

    def broadcast_from_first(self, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, which only the first rank calls. JSON must be able to hold it."""
        result: Any = None
        with self.raise_together():
            result = compute() if self.first else None
        return self.gather_json(result)[0]

    def write_on_first(self, part: Any, write: Callable[[Iterator[Any]], None]) -> None:
        """Call `write` on the first rank with the trees `part` of all others, in order. Each is requested when the
        iterator reaches it, so the first rank holds only one of them in memory."""
        if not self.first:
            while (sender := self.gather_json(None)[0]) is not None:
                self._send_tree(part if sender == self.rank else None)
        with self.raise_together():
            if self.first:
                try:
                    write(self._request_tree(sender) for sender in range(1, self.world))
                finally:
                    self.gather_json(None)  # no more requests

    def _send_tree(self, tree: Any) -> None:
        tensors, structure = pack(tree)
        layout = [[name, DTYPES[t.dtype], list(t.shape)] for name, t in tensors.items()]
        self.gather_json([structure, layout])
        with communication():
            for tensor in tensors.values():
                for chunk in _chunks(tensor.contiguous()):
                    dist.send(chunk.cpu(), 0)

    def _request_tree(self, sender: int) -> Any:
        self.gather_json(sender)
        structure, layout = self.gather_json(None)[sender]
        tensors = {
            name: torch.empty(shape, dtype=DTYPE_BY_NAME[dtype]) for name, dtype, shape in layout
        }
        with communication():
            for tensor in tensors.values():
                for chunk in _chunks(tensor):
                    dist.recv(chunk, sender)
        return unpack(tensors, structure)


ALONE = Ranks()
STORES: list[Any] = []  # through which the ranks of this process's group met; one or none


def current_ranks() -> Ranks:
    """The ranks of the process group; `ALONE` outside of one."""
    return _ranks_from_launcher() if dist.is_initialized() else ALONE


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the processes that the launcher started. Without a launcher, or with one process: `ALONE`.

    The group lasts until the program ends: a rank that left and joined again could meet ranks that have not left yet.
    """
    ranks = _ranks_from_launcher()
    if ranks.world == 1:
        yield ranks
        return
    if not dist.is_initialized():
        if ranks.world == ranks.local_world:
            _use_loopback()
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        with communication():
            store, *_ = next(dist.rendezvous("env://", timeout=TIMEOUT))  # type: ignore[attr-defined]
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                timeout=TIMEOUT,
                store=dist.PrefixStore("fleetfoot", store),  # type: ignore[attr-defined]
                rank=ranks.rank,
                world_size=ranks.world,
            )
        STORES.append(store)
        atexit.register(_leave_group)
    try:
        yield ranks
    except BaseException as error:
        # Leaving waits for all ranks, which may be waiting for this one. Only a UserError ends them all.
        if not isinstance(error, UserError) or isinstance(error, RankLost):
            atexit.unregister(_leave_group)
        raise


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _use_loopback() -> None:
    """Communicate through the loopback interface, which other machines cannot reach."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if loopback:
            os.environ.setdefault(variable, loopback[0])


def error_line(error: UserError) -> str | None:
    """What this process prints about an error that ends it; None where another rank prints it.

    An error from before the process group exists is first exchanged with the other ranks, so it is printed once.
    """
    ranks = _ranks_from_launcher()
    if ranks.world == 1:
        return str(error)
    if dist.is_initialized():
        if not _speaks_first(ranks, error):
            return None
        return str(error) if ranks.first else f"rank {ranks.rank}: {error}"
    try:
        with process_group(), ranks.raise_together():
            raise error
    except ReportedElsewhere:
        return None
    except UserError as agreed:
        return str(agreed)


def _speaks_first(ranks: Ranks, error: UserError) -> bool:
    """Is this the first rank with something to say? The others have failed for the same reason, or because of it."""
    says = not isinstance(error, ReportedElsewhere)
    with suppress(IndexError, RuntimeError):  # the store lived in a process that is gone
        says = says and STORES[0].add("told", 1) == 1
        STORES[0].add("left", 1)
        if not isinstance(error, RankLost):
            _leave_group()  # those who wait for this rank notice, and come here too
        end = time.monotonic() + GOODBYE_SECONDS
        # The store may live in this process, and the others look into it.
        while says and STORES[0].add("left", 0) < ranks.world and time.monotonic() < end:
            time.sleep(0.02)
    return says


@contextmanager
def communication(device: torch.device | None = None) -> Iterator[None]:
    """Report a failed exchange between hosts as `RankLost`. Failures of NCCL show later and elsewhere."""
    try:
        yield
    except RuntimeError as error:
        if device is not None and device.type != "cpu":
            raise
        raise RankLost from error


def _ranks_from_launcher() -> Ranks:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, world, local_rank, local_world = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        return ALONE
    return Ranks(rank, world, local_rank, local_world)


def _chunks(tensor: Tensor) -> list[Tensor]:
    """Views of the bytes of a contiguous tensor."""
    raw = tensor.reshape(-1).view(torch.uint8)
    return [raw[start : start + CHUNK_BYTES] for start in range(0, raw.numel(), CHUNK_BYTES)]


def _encode(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decode(message: Tensor) -> Any:
    return json.loads(message.numpy().tobytes())
