"""A nested state as named tensors and a JSON tree, and back. No pickle, no code.

Scalars, strings, None and lists stand for themselves in the JSON. All else is an object with one
key that says what it is: `{"tensor": name}`, `{"complex": name}` (stored as pairs of reals),
`{"tuple": [...]}`, `{"dict": [[key, value], ...]}` (int keys and the order stay as they are),
`{"float": "nan"}`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Json: TypeAlias = Any

DEEPEST = 100  # levels of nesting: a real state has about ten, a cycle has no end

DTYPES = {  # as safetensors spells them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def pack(tree: Any) -> tuple[dict[str, Tensor], Json]:
    """Split a state into tensors, named by their path, and the JSON tree that refers to them.

    Allowed: dicts with str and int keys, lists, tuples, None, bool, int, float, str, dense tensors.
    Nothing is copied: the tensors returned are those of the tree, and one that the tree holds twice
    is listed once (and is one tensor again after `unpack`). Parameters come back as plain tensors,
    an OrderedDict as a dict. Anything else is a TypeError that names the place.
    """
    packer = _Packer()
    return packer.tensors, packer.walk(tree, ())


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[tuple[Any, ...], str] = {}  # by the memory a tensor looks at

    def walk(self, value: Any, path: tuple[str, ...]) -> Json:
        if len(path) > DEEPEST:
            start = "/".join(path[:4])
            raise TypeError(f"checkpoint: {start}/... is nested deeper than {DEEPEST} levels")
        kind = type(
            value
        )  # exactly: a subclass (numpy.float64, a named tuple) would come back changed
        if value is None or kind is bool:
            return value
        if kind is int and value.bit_length() <= 4096:  # Python refuses to read very long ones
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is str and not any("\ud800" <= c <= "\udfff" for c in value):
            return value
        if kind is list:
            return self.walk_all(value, path)
        if kind is tuple:
            return {"tuple": self.walk_all(value, path)}
        if kind in (dict, OrderedDict):
            return {"dict": [self.walk_item(k, v, path) for k, v in value.items()]}
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            plain = value.detach().resolve_conj().resolve_neg()
            if plain.is_complex():
                return {"complex": self.add(torch.view_as_real(plain), path)}
            if plain.dtype in DTYPES:
                return {"tensor": self.add(plain, path)}
        shown = f"{kind.__name__} of {value.dtype}" if isinstance(value, Tensor) else kind.__name__
        raise TypeError(
            f"checkpoint: {'/'.join(path) or 'the root'} is a {shown} that cannot be saved; "
            "use dense tensors and plain Python values"
        )

    def walk_all(self, values: list[Any] | tuple[Any, ...], path: tuple[str, ...]) -> Json:
        return [self.walk(v, (*path, str(i))) for i, v in enumerate(values)]

    def walk_item(self, key: Any, value: Any, path: tuple[str, ...]) -> Json:
        if type(key) not in (str, int):
            where = "/".join(path) or "the root"
            raise TypeError(f"checkpoint: {where} has the key {key!r}; use str and int keys only")
        inside = (*path, str(key).encode("utf-8", "replace").decode())
        return [self.walk(key, inside), self.walk(value, inside)]

    def add(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        view = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and view in self.names:
            return self.names[view]
        name = base = "/".join(path) or "tensor"
        count = 1
        # The keys "0" and 0 give the same path, and safetensors reserves one name.
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{base}~{count}"
        self.tensors[name] = tensor
        self.names[view] = name
        return name


def unpack(tensors: Mapping[str, Tensor], tree: Json) -> Any:
    """The inverse of `pack`. A tree that `pack` cannot have made is a ValueError."""
    return _unpack(tensors, tree, 0)


def _unpack(tensors: Mapping[str, Tensor], node: Json, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"the tree is nested deeper than {DEEPEST} levels")
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if isinstance(node, list):
        return [_unpack(tensors, v, depth + 1) for v in node]
    match node:
        case {"float": "nan" | "inf" | "-inf" as text}:
            return float(text)
        case {"tuple": list(values)}:
            return tuple(_unpack(tensors, v, depth + 1) for v in values)
        case {"dict": list(pairs)} if all(_is_pair(p) for p in pairs):
            return {key: _unpack(tensors, v, depth + 1) for key, v in pairs}
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"complex": str(name)} if name in tensors:
            halves = tensors[name]
            if halves.shape[-1:] != (2,) or halves.dtype not in _HALVES:
                raise ValueError(f"the tensor {name!r:.80} does not hold complex numbers")
            return torch.view_as_complex(halves)
        case {"tensor": name} | {"complex": name}:
            raise ValueError(f"the tensor {name!r:.80} is missing")
    raise ValueError(f"the tree holds {node!r:.80}, which means nothing")


_HALVES = (torch.float16, torch.float32, torch.float64)


def _is_pair(node: Json) -> bool:
    return isinstance(node, list) and len(node) == 2 and type(node[0]) in (str, int)
