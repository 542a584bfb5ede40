"""What an exported policy says of itself: `policy.json`, and the same inside `policy.onnx`.

Everything is read with a size limit and checked field by field, since the file may come from a stranger.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fleetfoot.deploy import onnx_file
from fleetfoot.deploy.fields import DTYPES, Array, Reader, decode
from fleetfoot.errors import UserError
from fleetfoot.files import read_bytes

FORMAT = "fleetfoot policy"
VERSION = 1
KEY = "fleetfoot.policy"  # of the metadata inside the ONNX file
JSON_BYTES = 64 << 20  # the largest policy.json that is read
MODEL_BYTES = 1 << 30  # the largest policy.onnx

Source: TypeAlias = Literal["sensor", "action", "command", "gait"]


@dataclass(frozen=True)
class Term:
    """A part of the observation.

    `source` says who makes it: the robot's `sensor`s; or the runner, from its last `action`s in [-1, 1], the `command`
    or the clock of the `gait`. `late`: control steps by which it lags behind what a reader would expect.
    """

    name: str
    size: int
    unit: str | None = None
    source: Source = "sensor"
    late: int = 0
    gait: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Joint:
    """One joint of the robot, in the order of the actions. None: not known, or without a limit."""

    name: str
    servo: bool  # it is told a position; otherwise what `unit` says, usually a force
    standing: float
    low: float | None  # of its position
    high: float | None
    target_low: float | None  # of what it may be told
    target_high: float | None
    kp: float | None
    kd: float | None
    unit: str | None = None  # of what it is told; earlier versions do not say it


@dataclass(frozen=True)
class About:
    """The checked content of `policy.json`. `raw` has everything, also what a runner does not need."""

    raw: dict[str, Any]
    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: Any
    terms: tuple[Term, ...]
    history: int
    discrete: bool
    action_size: int  # of a discrete action: how many there are
    has_target: bool  # is there a physical target beside the action in [-1, 1]?
    joints: tuple[Joint, ...]
    control_hz: float | None
    commands: dict[str, tuple[float, float]]
    tasks: tuple[str, ...]
    recorded: dict[str, Array]
    graph_sha256: str


def read(path: Path | str) -> tuple[About, bytes]:
    """What a policy says of itself, and its model. `path`: an exported folder, or a single `policy.onnx`."""
    place = Path(path)
    folder = place if place.is_dir() else None
    onnx = place / "policy.onnx" if folder else place
    model = read_bytes(onnx, most=MODEL_BYTES)
    onnx_file.check(model, str(onnx))
    inside = onnx_file.metadata(model, str(onnx))
    if KEY not in inside:
        raise UserError(f"{onnx} was not written by fleetfoot export: it contains no description.")
    raw = parse(inside[KEY], str(onnx))
    about = understand(raw, str(onnx))
    if about.graph_sha256 != onnx_file.digest(model):
        raise UserError(f"{onnx} is corrupt, or was changed: its content does not match its hash.")
    if folder:
        _compare(folder, raw, model)
    return about, model


def _compare(folder: Path, raw: dict[str, Any], model: bytes) -> None:
    """UserError where `policy.json` does not say what the ONNX file says."""
    path = folder / "policy.json"
    beside = parse(read_bytes(path, most=JSON_BYTES).decode(errors="replace"), str(path))
    understand(beside, str(path))
    files = beside.pop("files", None)
    match files:
        case {"policy.onnx": {"sha256": str(expected)}}:
            if hashlib.sha256(model).hexdigest() != expected:
                raise UserError(f"{folder / 'policy.onnx'} is not the file that {path} describes.")
        case _:
            raise UserError(f"{path} has no field 'files' with the hash of policy.onnx.")
    for key in sorted({*raw, *beside}):
        if raw.get(key) != beside.get(key):
            if key == "joints":
                raise UserError(
                    f"{path} has other joints, or another order of joints, than policy.onnx."
                )
            raise UserError(f"{path} was changed: its field {key!r} is not that of policy.onnx.")


def parse(text: str, name: str) -> dict[str, Any]:
    try:
        raw = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} cannot be read as JSON: {' '.join(str(error).split())}.") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise UserError(f"{name} does not describe a policy of fleetfoot.")
    version = raw.get("version")
    if not isinstance(version, int) or version < 1:
        raise UserError(f"{name} has no version.")
    if version > VERSION:
        raise UserError(
            f"{name} has format {version}, this fleetfoot reads up to {VERSION}: "
            "it was written by a newer version, which can read it."
        )
    return raw


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def understand(raw: dict[str, Any], name: str) -> About:
    """The fields that a runner needs, each of the right kind."""
    read = Reader(raw, name)
    obs, action = read.table("obs"), read.table("action")
    shape = tuple(obs.numbers("shape", int))
    dtype = obs.choice("dtype", ("float32", "uint8"))
    kind = action.choice("kind", ("continuous", "discrete"))
    terms = tuple(_term(one) for one in obs.tables("terms"))
    history = obs.number("history", int)
    joints = tuple(_joint(one) for one in read.tables("joints"))
    size = action.number("size", int)
    if not shape or min(shape) < 1 or history < 1 or size < 1 or math.prod(shape) > 1 << 28:
        raise UserError(f"{name} has impossible sizes: obs {shape}, action {size}.")
    if terms and sum(term.size for term in terms) * history != math.prod(shape):
        raise UserError(f"{name} has terms whose sizes do not add up to its observation.")
    if joints and (len(joints) != size or len({joint.name for joint in joints}) != size):
        raise UserError(f"{name} names {len(joints)} joints for {size} actions.")
    hz = read.number("control_hz", float, optional=True)
    if hz is not None and not 0.0 < hz <= 1e6:
        raise UserError(f"{name} has a control rate of {hz} Hz.")
    commands = read.table("commands")
    recorded = read.table("recorded")
    about = About(
        raw=raw,
        name=read.text("name"),
        obs_shape=shape,
        obs_dtype=DTYPES[dtype],
        terms=terms,
        history=history,
        discrete=kind == "discrete",
        action_size=size,
        has_target=bool(action.value("has_target", bool)),
        joints=joints,
        control_hz=hz,
        commands={key: _range(commands, key) for key in commands.tree},
        tasks=tuple(read.list_of("tasks", str)),
        recorded={key: decode(recorded.table(key).tree, name) for key in recorded.tree},
        graph_sha256=read.text("graph_sha256"),
    )
    for key in ("weights_sha256", "training", "check", "made_by", "missing"):
        read.value(key, object)
    wanted = {"obs", "action"} | ({"task"} if about.tasks else set())
    wanted |= {"target"} if about.has_target else set()
    rows = {len(array) for array in about.recorded.values() if array.ndim}
    if set(about.recorded) != wanted or len(rows) != 1 or rows == {0}:
        raise UserError(f"{name} has no field 'recorded' with {', '.join(sorted(wanted))}.")
    if about.recorded["obs"].shape[1:] != shape:
        raise UserError(f"{name} has recorded observations whose shape is not {shape}.")
    return about


def _term(read: Reader) -> Term:
    gait = read.tree.get("gait")
    source = read.choice("source", ("sensor", "action", "command", "gait"))
    if source == "gait":
        inner = read.table("gait")
        start = inner.numbers("start", float)
        inner.number("frequency", float)
        inner.value("stands", bool)
        if read.number("size", int) != 2 * len(start):
            raise UserError(f"{read.name} has a gait whose size differs from its phases.")
    unit = read.value("unit", str) if read.tree.get("unit") is not None else None
    return Term(
        name=read.text("name"),
        size=read.number("size", int),
        unit=unit,
        source=source,  # type: ignore[arg-type]
        late=read.number("late", int),
        gait=gait,
    )


def _joint(read: Reader) -> Joint:
    keys = ("low", "high", "target_low", "target_high", "kp", "kd")
    rest = {key: read.number(key, float, optional=True) for key in keys}
    servo, standing = read.value("servo", bool), read.number("standing", float)
    unit = read.value("unit", str) if read.tree.get("unit") is not None else None
    return Joint(name=read.text("name"), servo=servo, standing=standing, unit=unit, **rest)


def _range(read: Reader, key: str) -> tuple[float, float]:
    bounds = read.numbers(key, float)
    if len(bounds) != 2 or not -1e15 < bounds[0] <= bounds[1] < 1e15:
        raise UserError(
            f"{read.name} has a command {key!r} without two bounds, the lower one first."
        )
    return bounds[0], bounds[1]
