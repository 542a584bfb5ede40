"""Some columns of a ring as a ring of their own, and several such rings as one.

Rows keep their lines, so only what counts columns changes: addresses, names, and the entries of the side table with the
last observations, which are handed out anew in the order in which the episodes ended. Not for stacks of frames.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fleetfoot.replay.ring import TRUNCATED, Ring

BY_ENTRY = ("final_obs.actor", "final_obs.privileged", "final_owner")
NUMBERED = (*BY_ENTRY, "entry", "final_count")  # not one value for each row


class Finals(NamedTuple):
    """Last observations that are still there, the oldest first."""

    owner: Tensor  # [k] names of the rows they belong to
    parts: dict[str, Tensor]  # [k, ...] by the names of BY_ENTRY
    size: int
    written: int


def of_columns(ring: Ring, first: int, width: int, room: int) -> dict[str, Any]:
    """The state of a ring with nothing but the `width` columns from `first` on, and `room` for last observations."""
    held = ring.tensors()
    tensors = {
        name: _rows(ring, held[name], ring.columns)[:, first : first + width].flatten(0, 1)
        for name in held
        if name not in NUMBERED
    }
    row = torch.arange(ring.written - ring.size, ring.written, device=ring.reward.device)
    column = torch.arange(first, first + width, device=row.device)
    name = row.unsqueeze(1) * ring.columns + column  # [size, width]
    at = name % (ring.lines * ring.columns)
    entry = ring.entry[at].long()
    kept = (ring.ends[at] == TRUNCATED) & (ring.final_owner[entry] == name)
    entry, own_name = entry[kept][-room:], (row.unsqueeze(1) * width + column - first)[kept][-room:]
    for each in BY_ENTRY:
        if each in held:
            tensors[each] = torch.zeros_like(held[each][:1]).repeat(
                room + 1, *[1] * (held[each].dim() - 1)
            )
            tensors[each][: len(entry)] = held[each][entry]
    tensors["final_owner"].fill_(-1)[: len(entry)] = own_name
    tensors["entry"] = torch.zeros(ring.lines * width, dtype=torch.int32, device=row.device)
    tensors["entry"][own_name % (ring.lines * width)] = _numbers(own_name)
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
    own = stored["final_owner"][:-1]  # the last entry is a place for what nobody needs
    gone = (state["written"] - state["size"]) * width
    there = (own >= gone).nonzero().flatten()  # the others belong to rows that are overwritten
    there = there[own[there].argsort()]
    owner = own[there] // width * ring.columns + first + own[there] % width
    parts = {each: stored[each][there].to(device) for each in BY_ENTRY if each in stored}
    return Finals(owner.to(device), parts, state["size"], state["written"])


def put_finals(ring: Ring, of_all: list[Finals]) -> None:
    sizes = {(each.size, each.written) for each in of_all}
    if len(sizes) > 1:
        raise ValueError(f"these rings are not equally full: {sorted(sizes)}")
    ((ring.size, ring.written),) = sizes
    ring.sync_counters()
    owner = torch.cat([each.owner for each in of_all])
    newest = owner.argsort()[-ring.finals :]
    held = ring.tensors()
    for name in of_all[0].parts:
        held[name][: len(newest)] = torch.cat([each.parts[name] for each in of_all])[newest]
    ring.final_owner[: len(newest)] = owner[newest]
    ring.entry[owner[newest] % (ring.lines * ring.columns)] = _numbers(newest)
    ring.final_count.fill_(len(newest))


def _rows(ring: Ring, tensor: Tensor, columns: int) -> Tensor:
    """[lines, columns, ...], of a tensor with one value for each row."""
    return tensor[: ring.lines * columns].view(ring.lines, columns, *tensor.shape[1:])


def _numbers(like: Tensor) -> Tensor:
    return torch.arange(len(like), dtype=torch.int32, device=like.device)
