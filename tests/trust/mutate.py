"""Seeded damage to files, and seeded changes to the JSON and the tensors in them."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

# Amounts that a run could really be asked for are small: one that is asked for too much takes long, and is no hang.
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, -(10**9), -(10**30), 0.0, -1.0, 0.5, 2.5, -1e308),
    *(float("nan"), float("-inf"), 1e-320, "", "x", "0", "auto", "../..", "\u0000", "x" * 5000),
    *([], {}, [1], [None], ["x"], [[[]]], [-1], {"part": 1}, {"part": []}, {"part": "Recipe"}),
    *({"part": "GymConfig", "id": "nowhere:Evil-v0"}, {"part": "TensorConfig", "task": "x"}),
    *(
        {"part": "MLPConfig"},
        {"part": "FastTD3Config"},
        {"part": "SynchronousConfig", "overlap": 3},
    ),
    *({"part": "ActorLearnerConfig", "actors": 0}, {"part": "GymConfig", "kwargs": {"x": 1}}),
]


def damage(rng: Random, folder: Path, files: str) -> str:
    """Spoil one file; returns what was done to which."""
    chosen = rng.choice(sorted(p for p in folder.glob(files) if p.is_file()))
    data = bytearray(chosen.read_bytes())
    how = rng.choice(
        ["flip", "flip", "flip", "byte", "cut", "zero", "insert", "drop", "swap", "gone"]
    )
    at = rng.randrange(max(1, len(data)))
    if how == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif how == "byte" and data:
        data[at] = rng.randrange(256)
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif how == "insert":
        data[at:at] = rng.randbytes(rng.randrange(1, 20))
    elif how == "drop":
        del data[at : at + rng.randrange(1, 20)]
    elif how == "swap":  # another file of the run in its place
        other = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
        data = bytearray(other.read_bytes())
    if how == "gone":
        os.unlink(chosen)
    else:
        chosen.write_bytes(data)
    return f"{how} {chosen.relative_to(folder)} at {at}"


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in a tree."""
    items: Any = tree.items() if isinstance(tree, dict) else ()
    if isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed_json(rng: Random, tree: Any) -> tuple[Any, str]:
    """A copy with one or two values replaced, moved, added or taken away."""
    tree = copy.deepcopy(tree)
    said = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        path = rng.choice(list(places(tree)))
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        how = rng.choice(["odd", "odd", "odd", "drop", "add", "move"])
        if how == "odd":
            parent[path[-1]] = rng.choice(ODD)
        elif how == "drop":
            del parent[path[-1]]
        elif how == "add" and isinstance(parent, dict):
            parent[rng.choice(["x", "part", "when_stored", "__class__"])] = rng.choice(ODD)
        else:
            other = tree
            for key in rng.choice(list(places(tree))):
                other = other[key]
            parent[path[-1]] = copy.deepcopy(other)
        said.append(f"{how} {'.'.join(map(str, path))}")
    return tree, ", ".join(said)


def odd_tensor(rng: Random, tensor: Tensor) -> Any:
    flat = tensor.reshape(-1)
    how = rng.randrange(9)
    if how == 0:
        return flat[: rng.randrange(max(1, len(flat)))].clone()
    if how == 1:
        return torch.cat([flat, flat[:1]])
    if how == 2:
        return tensor.to(
            rng.choice([torch.float64, torch.int64, torch.bool, torch.uint8, torch.float16])
        )
    if how == 3:
        return tensor.unsqueeze(0).contiguous()
    if how == 4:
        return rng.choice([None, 3, "x", [tensor], {}, (tensor,), {"a": tensor}])
    if how == 5 and tensor.is_floating_point():
        return torch.full_like(tensor, rng.choice([float("nan"), float("inf"), 3e38, -1.0, 0.0]))
    if how == 6 and not tensor.is_floating_point() and tensor.dtype != torch.bool:
        info = torch.iinfo(tensor.dtype)
        return torch.full_like(tensor, rng.choice([info.min, info.max, 0, 1, info.max // 2]))
    raw = tensor.clone().contiguous()
    if raw.numel():  # random content
        data = bytearray(rng.randbytes(raw.numel() * raw.element_size()))
        raw = torch.frombuffer(data, dtype=torch.uint8).view(
            torch.uint8 if raw.dtype == torch.bool else raw.dtype
        )
        raw = (raw % 2).bool() if tensor.dtype == torch.bool else raw
        raw = raw.reshape(tensor.shape)
    return raw


NUMBERS: list[Any] = [-1, 0, 1, 3, 2**31, 2**63, -(2**63), 10**30, 0.5, "x", None, True, [], {}]


def changed_state(rng: Random, state: dict[str, Any]) -> tuple[dict[Any, Any], str]:
    """A state with one or two leaves or branches changed."""
    said = []
    for _ in range(rng.choice([1, 1, 2])):
        path = rng.choice([p for p in places(state) if p != ("replay",)])
        parent: Any = state
        for key in path[:-1]:
            parent = parent[key]
        value, how = parent[path[-1]], rng.choice(["odd", "odd", "odd", "odd", "drop", "rename"])
        if isinstance(parent, tuple) or how == "odd":
            new = odd_tensor(rng, value) if isinstance(value, Tensor) else rng.choice(NUMBERS)
            if not isinstance(parent, tuple):
                parent[path[-1]] = new
        elif how == "drop":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[rng.choice([7, "x", ""])] = parent.pop(path[-1])
        said.append(f"{how} {'.'.join(map(str, path))}")
    return state, ", ".join(said)
