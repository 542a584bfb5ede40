"""Some columns of a ring as a ring of their own, and several such rings as one.

Rows keep their lines, so only what counts columns changes: addresses, names, and the entries of the side table with the
last observations, which are handed out anew in the order in which the episodes ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fleetfoot.replay.ring import TRUNCATED, Ring

BY_ENTRY = ("final_obs.actor", "final_obs.privileged", "final_owner")
NUMBERED = (*BY_ENTRY, "entry", "final_count")  # not one value for each row


class Finals(NamedTuple):
    """Last observations that are still in the side table, the oldest first."""

    owner: Tensor  # [k] names of the rows they belong to
    values: dict[str, Tensor]  # [k, ...] by the names of BY_ENTRY
    size: int
    written: int


def take_columns(ring: Ring, first: int, width: int, room: int) -> dict[str, Any]:
    """The state of a ring with nothing but the `width` columns from `first` on, and `room` for last observations."""
    stored = ring.tensors()
    tensors = {
        name: _only_columns(ring, tensor, first, width)
        for name, tensor in stored.items()
        if name not in NUMBERED
    }
    row = torch.arange(ring.written - ring.size, ring.written, device=ring.reward.device)
    column = torch.arange(first, first + width, device=row.device)
    name_here = row.unsqueeze(1) * ring.columns + column  # [size, width]
    name_there = row.unsqueeze(1) * width + column - first
    address = name_here % (ring.lines * ring.columns)
    entry = ring.entry[address].long()
    has_entry = (ring.ends[address] == TRUNCATED) & (ring.final_owner[entry] == name_here)
    entry, owner = entry[has_entry][-room:], name_there[has_entry][-room:]
    for name in BY_ENTRY:
        if name in stored:
            table = stored[name]
            tensors[name] = table.new_zeros(room + 1, *table.shape[1:])
            tensors[name][: len(entry)] = table[entry]
    tensors["final_owner"].fill_(-1)[: len(entry)] = owner
    tensors["entry"] = torch.zeros(ring.lines * width, dtype=torch.int32, device=row.device)
    tensors["entry"][owner % (ring.lines * width)] = _count(owner)
    tensors["final_count"] = torch.full_like(ring.final_count, len(entry))
    return {"size": ring.size, "written": ring.written, "tensors": tensors}


def put_columns(ring: Ring, first: int, width: int, state: dict[str, Any]) -> Finals:
    """Write the rows of such a ring into columns of `ring`; `put_finals` must follow, for all columns at once."""
    stored: dict[str, Tensor] = state["tensors"]
    for name, tensor in ring.tensors().items():
        if name not in NUMBERED:
            rows = _rows(ring, tensor, ring.columns)[:, first : first + width]
            rows.copy_(_rows(ring, stored[name], width))
    device = ring.reward.device
    owner = stored["final_owner"][:-1]  # the last entry is a place for what is not needed
    oldest = (state["written"] - state["size"]) * width
    entry = (owner >= oldest).nonzero().flatten()  # the others belong to rows that are overwritten
    entry = entry[owner[entry].argsort()]
    owner = owner[entry]
    name_here = owner // width * ring.columns + first + owner % width
    values = {name: stored[name][entry].to(device) for name in BY_ENTRY if name in stored}
    return Finals(name_here.to(device), values, state["size"], state["written"])


def put_finals(ring: Ring, of_all: list[Finals]) -> None:
    """The last observations of all columns into the side table, and the counters of the ring."""
    sizes = {(finals.size, finals.written) for finals in of_all}
    if len(sizes) > 1:
        raise ValueError(f"these rings are not equally full: {sorted(sizes)}")
    ((ring.size, ring.written),) = sizes
    ring.sync_counters()
    owner = torch.cat([finals.owner for finals in of_all])
    newest = owner.argsort()[-ring.finals :]
    tensors = ring.tensors()
    for name in of_all[0].values:
        values = torch.cat([finals.values[name] for finals in of_all])
        tensors[name][: len(newest)] = values[newest]
    ring.final_owner[: len(newest)] = owner[newest]
    ring.entry[owner[newest] % (ring.lines * ring.columns)] = _count(newest)
    ring.final_count.fill_(len(newest))


def _rows(ring: Ring, tensor: Tensor, columns: int) -> Tensor:
    """[lines, columns, ...], of a tensor with one value for each row."""
    return tensor[: ring.lines * columns].view(ring.lines, columns, *tensor.shape[1:])


def _only_columns(ring: Ring, tensor: Tensor, first: int, width: int) -> Tensor:
    """What follows the rows (the blank frame, with stacks of frames) belongs to no column and comes along."""
    rows = _rows(ring, tensor, ring.columns)[:, first : first + width].flatten(0, 1)
    rest = tensor[ring.lines * ring.columns :]
    return torch.cat([rows, rest]) if len(rest) else rows


def _count(like: Tensor) -> Tensor:
    return torch.arange(len(like), dtype=torch.int32, device=like.device)
