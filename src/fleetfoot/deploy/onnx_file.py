"""What an ONNX file holds, read byte by byte before ONNX Runtime sees it. No package is needed, nothing is executed.

An ONNX file is a protobuf message: fields of (key, value), where the key is number * 8 + kind. Only the few fields that
matter here are looked at (numbers from onnx.proto):

    model      7 graph, 8 operator sets, 14 metadata, 20 training, 25 functions
    graph      1 nodes, 5 initial tensors, 15 sparse ones
    node       4 operator, 5 attributes, 7 domain
    attribute  5 tensor, 6 graph, 10 tensors, 11 graphs, 22 and 23 sparse ones
    tensor     13 external data, 14 where its data are
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from fleetfoot.errors import UserError

METADATA = 14
STANDARD = ("", "ai.onnx")  # domains of operators that ONNX itself defines
# Operators that can keep a computer busy for ever, or whose result is another one each time.
REFUSED = ("Loop", "Scan", "If", "SequenceMap")
RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")


class Damaged(ValueError):  # noqa: N818
    """These bytes are no protobuf message."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """(number, value, all bytes) of each field: numbers as int, everything else as bytes."""
    place = 0
    while place < len(data):
        begin = place
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == 0:
            value, place = _varint(data, place)
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, place = _varint(data, place)
            value, place = data[place : place + size], place + size
            if place > len(data):
                raise Damaged
        else:
            raise Damaged
        yield number, value, data[begin:place]


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise Damaged
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise Damaged


def check(model: bytes, name: str) -> None:
    """UserError where the file holds anything but a graph of standard operators with its own weights."""
    try:
        _check_model(memoryview(model), name)
    except (Damaged, UnicodeDecodeError, RecursionError):
        raise UserError(f"{name} is not an ONNX file, or is damaged.") from None


def _check_model(model: memoryview, name: str) -> None:
    graphs = 0
    for number, value, _ in fields(model):
        if number == 7:
            graphs += 1
            _check_graph(_bytes(value), name)
        elif number == 8:
            _check_domain(_text_of(_bytes(value), 1), name)
        elif number in (20, 25):
            raise UserError(f"{name} defines its own functions, which are refused.")
    if graphs != 1:
        raise Damaged


def _check_graph(graph: memoryview, name: str) -> None:
    for number, value, _ in fields(graph):
        if number == 1:
            _check_node(_bytes(value), name)
        elif number == 5:
            _check_tensor(_bytes(value), name)
        elif number == 15:
            raise UserError(f"{name} holds sparse tensors, which are refused.")


def _check_node(node: memoryview, name: str) -> None:
    operator = _text_of(node, 4)
    _check_domain(_text_of(node, 7), name, operator)
    if operator in REFUSED or operator.startswith(RANDOM):
        raise UserError(f"{name} has an operator {operator!r}, which is refused in a policy.")
    for number, value, _ in fields(node):
        if number != 5:
            continue
        for inner, content, _ in fields(_bytes(value)):
            if inner in (5, 10):
                _check_tensor(_bytes(content), name)
            elif inner in (6, 11, 22, 23):
                raise UserError(f"{name} has an operator {operator!r} that holds another graph.")


def _check_domain(domain: str, name: str, operator: str = "") -> None:
    if domain not in STANDARD:
        what = f"operator {operator!r}" if operator else "operators"
        raise UserError(
            f"{name} uses the custom {what} of {domain!r}; only standard ONNX operators are accepted."
        )


def _check_tensor(tensor: memoryview, name: str) -> None:
    if any(number == 13 or (number == 14 and value) for number, value, _ in fields(tensor)):
        raise UserError(f"{name} keeps weights in another file, which is refused.")


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise Damaged
    return value


def _text_of(message: memoryview, wanted: int) -> str:
    found = ""
    for number, value, _ in fields(message):
        if number == wanted:
            found = bytes(_bytes(value)).decode()
    return found


def metadata(model: bytes, name: str) -> dict[str, str]:
    try:
        entries = [_bytes(v) for number, v, _ in fields(memoryview(model)) if number == METADATA]
        return {_text_of(entry, 1): _text_of(entry, 2) for entry in entries}
    except (Damaged, UnicodeDecodeError):
        raise UserError(f"{name} is not an ONNX file, or is damaged.") from None


def digest(model: bytes) -> str:
    """SHA-256 of the file without its metadata, which can therefore hold it."""
    whole = hashlib.sha256()
    for number, _, raw in fields(memoryview(model)):
        if number != METADATA:
            whole.update(raw)
    return whole.hexdigest()


def with_metadata(model: bytes, entries: Mapping[str, str]) -> bytes:
    """The same model with these entries as its only metadata."""
    parts = [bytes(raw) for number, _, raw in fields(memoryview(model)) if number != METADATA]
    for key, value in entries.items():
        entry = _field(1, key.encode()) + _field(2, value.encode())
        parts.append(_field(METADATA, entry))
    return b"".join(parts)


def _field(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | 2) + _encoded(len(content)) + content


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
