"""An exported policy as a function of observations, through ONNX Runtime: no torch, no simulator, no state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fleetfoot.deploy.about import About, read
from fleetfoot.deploy.fields import Array
from fleetfoot.errors import UserError

# How far an action in [-1, 1] may be from the recorded one: another processor adds in another order.
TOLERANCE = 1e-4


class Output(NamedTuple):
    """What a policy answers, with a batch axis where the observation has one."""

    action: Array  # float32 in [-1, 1], or int64
    # What the joints are to do, in their own units; None where that is not known.
    target: Array | None = None
    scores: Array | None = None  # of each discrete action, where the policy tells them


class Policy:
    """Physical observations -> actions, one [*obs_shape] or several [B, *obs_shape]."""

    def __init__(self, about: About, model: bytes, *, threads: int = 1) -> None:
        self.about = about
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what goes wrong is raised
        try:
            self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"ONNX Runtime {ort.__version__} cannot load {about.name}: {reason}"
            ) from None
        found = {entry.name for entry in self.session.get_inputs()}
        if found != ({"obs", "task"} if about.tasks else {"obs"}):
            raise UserError(f"the model of {about.name} has other inputs: {', '.join(found)}.")
        self.names = [entry.name for entry in self.session.get_outputs()]
        wanted = ["action", "target"] if about.has_target else ["action"]
        if self.names != wanted and self.names != ["action", "scores"]:
            raise UserError(
                f"the model of {about.name} has other outputs: {', '.join(self.names)}."
            )

    def __call__(self, obs: ArrayLike, task: int | str | None = None) -> Output:
        rows = np.asarray(obs)
        single = rows.shape == self.about.obs_shape
        if not single and rows.shape[1:] != self.about.obs_shape:
            raise UserError(
                f"{self.about.name} sees observations of shape {self.about.obs_shape}, not {rows.shape}."
            )
        if self.about.obs_dtype == np.uint8 and rows.dtype != np.uint8:
            raise UserError(f"{self.about.name} sees bytes (uint8), not {rows.dtype}.")
        rows = np.ascontiguousarray(rows[None] if single else rows, self.about.obs_dtype)
        given = {"obs": rows}
        if self.about.tasks:
            given["task"] = np.full(len(rows), self._task(task), np.int64)
        answer = self.run(given)
        if single:
            answer = [array[0] for array in answer]
        return Output(**dict(zip(self.names, answer, strict=True)))

    def run(self, given: dict[str, Array]) -> list[Array]:
        try:
            answer: list[Array] = self.session.run(None, given)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"ONNX Runtime cannot run {self.about.name}: {reason}") from None
        return answer

    def check(self) -> float:
        """Recorded observations must give their recorded actions; the largest difference."""
        recorded = self.about.recorded
        names = ("obs", "task") if self.about.tasks else ("obs",)
        answer = self.run({key: recorded[key] for key in names})
        if answer[0].shape != recorded["action"].shape:
            raise UserError(
                f"{self.about.name} returns actions of another shape than the recorded ones."
            )
        worst = _largest(answer[0], recorded["action"])
        if not worst <= (0.0 if self.about.discrete else TOLERANCE):
            raise UserError(
                f"{self.about.name} does not give the recorded actions here: the largest difference is {worst:.2g}. "
                "The file was changed, or this ONNX Runtime computes something else."
            )
        if self.about.has_target:
            scale = max(1.0, float(np.abs(recorded["target"]).max()))
            off = _largest(answer[1], recorded["target"])
            if not off <= TOLERANCE * scale:
                raise UserError(
                    f"{self.about.name} does not give the recorded targets: {off:.2g} apart."
                )
        return worst

    def _task(self, task: int | str | None) -> int:
        names = self.about.tasks
        if isinstance(task, str) and task in names:
            return names.index(task)
        if isinstance(task, int) and 0 <= task < len(names):
            return task
        raise UserError(f"which task? {self.about.name} knows {', '.join(names)}, not {task!r}.")


def load(path: Path | str, *, threads: int = 1) -> Policy:
    """An exported folder, or a `policy.onnx` alone. Refused with one line: what is damaged, changed, of a newer format,
    or does not give the recorded actions."""
    about, model = read(path)
    policy = Policy(about, model, threads=threads)
    policy.check()
    return policy


def _largest(one: Array, two: Array) -> float:
    difference = np.abs(one.astype(np.float64) - two.astype(np.float64))
    return float(difference.max(initial=0.0))


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError("running a policy needs ONNX Runtime: pip install onnxruntime") from None
    return onnxruntime
