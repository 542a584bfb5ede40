"""The policy as it is exported: physical observations in, physical targets out, as one graph of standard operators.

    x       = (obs - shift) * gain        what the network was trained on, where the adapter names its units
    action  = policy(x)                   in [-1, 1], or the number of a discrete action
    scores  = policy.scores(x)            of each discrete action, where the policy can tell them
    target  = offset + scale * action     what the joints are told, where the adapter knows it

Normaliser and squashing are inside the policy's own network.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fleetfoot.data import Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.extras import check

PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # of the extra `export`
ROWS = 3  # of the example with which a graph is traced: neither 0 nor 1, which torch would take for constants


class Exported(nn.Module):
    """(obs [, task]) -> (action [, target or scores]); `outputs` are their names."""

    shift: Tensor | None
    gain: Tensor | None
    offset: Tensor | None
    scale: Tensor | None

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__()
        self.policy = policy
        told = spec.description
        for name, values in zip(("shift", "gain"), _of_observation(spec), strict=True):
            self.register_buffer(name, values)
        for name, values in zip(("offset", "scale"), action_map(told), strict=True):
            self.register_buffer(name, values)
        self.outputs = ["action"]
        if self.offset is not None:
            self.outputs.append("target")
        elif isinstance(spec.action, Discrete) and hasattr(policy, "scores"):
            self.outputs.append("scores")

    def prepare(self, obs: Tensor) -> Tensor:
        if self.shift is None or self.gain is None:
            return obs
        return (obs - self.shift) * self.gain

    def physical(self, obs: Tensor) -> Tensor:
        """The inverse of `prepare`."""
        if self.shift is None or self.gain is None:
            return obs
        return obs / self.gain + self.shift

    def forward(self, obs: Tensor, task: Tensor | None = None) -> tuple[Tensor, ...]:
        x = self.prepare(obs)
        seen = Obs(x, x, task)
        if "scores" in self.outputs:
            scores: Tensor = self.policy.scores(seen)  # type: ignore[operator]
            return scores.argmax(-1), scores
        action: Tensor = self.policy(seen)
        if self.offset is None or self.scale is None:
            return (action,)
        return action, self.offset + self.scale * action


def action_map(told: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Offset and scale [A] of what the joints are told, where they are known."""
    joints = told.get("joints")
    if joints:
        pairs = [(joint["action_offset"], joint["action_scale"]) for joint in joints]
        offset, scale = zip(*pairs, strict=True)
    elif "action" in told:
        offset, scale = told["action"]["offset"], told["action"]["scale"]
    else:
        return None, None
    return torch.tensor(offset, dtype=torch.float32), torch.tensor(scale, dtype=torch.float32)


def _of_observation(spec: EnvSpec) -> tuple[Tensor | None, Tensor | None]:
    """Offset and scale [D] of the observations, None where they are physical as they are."""
    terms: Sequence[Mapping[str, Any]] = spec.description.get("observation", ())
    if not terms:
        return None, None
    history = int(spec.description.get("history", 1))
    shift, gain = (
        np.concatenate([np.broadcast_to(term[key], term["size"]) for term in terms]).astype(
            np.float32
        )
        for key in ("offset", "scale")
    )
    if len(shift) * history != math.prod(spec.obs_shape):
        raise UserError(
            f"the terms of {spec.name} have {len(shift)} numbers and a history of {history}, and its observation "
            f"{spec.obs_shape}."
        )
    if not shift.any() and (gain == 1.0).all():
        return None, None
    return torch.from_numpy(np.tile(shift, history)), torch.from_numpy(np.tile(gain, history))


def example(spec: EnvSpec) -> tuple[Tensor, ...]:
    obs = torch.zeros(ROWS, *spec.obs_shape, dtype=spec.obs_dtype)
    return (obs, torch.zeros(ROWS, dtype=torch.int64)) if spec.tasks else (obs,)


def to_program(module: Exported, spec: EnvSpec) -> torch.export.ExportedProgram:
    """The graph, for any number of rows."""
    rows = torch.export.Dim("rows")
    inputs = example(spec)
    with torch.no_grad():
        try:
            program = torch.export.export(
                module, inputs, dynamic_shapes=tuple({0: rows} for _ in inputs)
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"torch.export cannot follow this policy: {reason}") from error
    for node in program.graph.nodes:  # it names files of this computer
        node.meta.pop("stack_trace", None)
    return program


def to_pt2(program: torch.export.ExportedProgram) -> bytes:
    out = io.BytesIO()
    torch.export.save(program, out)
    return out.getvalue()


def check_packages() -> None:
    check("export", PACKAGES, "export")


def to_onnx(program: torch.export.ExportedProgram, spec: EnvSpec, outputs: list[str]) -> bytes:
    """The same graph as an ONNX file, without names of this computer's files."""
    check_packages()
    names = ["obs", "task"] if spec.tasks else ["obs"]
    logger = logging.getLogger("torch.onnx")  # it tells which packages it could do without
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program,
            (),
            input_names=names,
            output_names=outputs,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    logger.setLevel(level)
    assert made is not None
    model = made.model_proto
    model.ClearField("metadata_props")
    model.graph.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    for node in model.graph.node:  # they hold lines of the source
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    return bytes(model.SerializeToString(deterministic=True))


def as_arrays(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    return [tensor.detach().cpu().numpy() for tensor in tensors]
