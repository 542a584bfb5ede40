"""From a run to a folder that explains itself and was checked: `policy.onnx`, `policy.pt2`, `policy.json`."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot import api, checkpoint
from fleetfoot.data import Discrete, EnvSpec, Obs
from fleetfoot.deploy import about as deploy_about
from fleetfoot.deploy import onnx_file
from fleetfoot.deploy.fields import encode
from fleetfoot.deploy.policy import Policy, load
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.export import describe, graph
from fleetfoot.export.observations import observe
from fleetfoot.run.folder import read_recipe, run_of

TOLERANCE = 1e-5  # between the live policy and the exported ones, on actions in [-1, 1]
CHECKED = 1_000  # observations that are compared
RECORDED = 16  # of them that go into the file
RECORDED_IMAGES = 4
FILES = ("policy.json", "policy.onnx", "policy.pt2")


@dataclass(frozen=True)
class Export:
    """What was written, and how it was checked."""

    folder: Path
    observations: int
    source: str  # where they come from
    differences: dict[str, float]  # the largest from the live policy, by program
    missing: tuple[str, ...]  # what the environment could not tell


def export_run(
    folder: Path | str,
    out: Path | str | None = None,
    *,
    which: api.Which = "best",
    draw: bool = False,
) -> Export:
    """Export the policy of a run into `out`, by default the folder `export` inside the run.

    `draw`: build no environment for the check; observations are drawn from the normaliser's statistics.
    """
    graph.check_packages()
    recipe = read_recipe(folder)
    target = run_of(folder) / "export" if out is None else Path(out)
    _check_target(target)
    policy, spec = api.load_policy(folder, which)
    chosen = api.which_there_is(folder, which)
    loaded = checkpoint.load(folder, which=chosen, with_replay=False)
    obs, source = observe(recipe, spec, policy.network, CHECKED, draw=draw)
    try:
        module = graph.Exported(policy.network, spec).eval().requires_grad_(False)
        known = describe.describe(recipe, spec)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{spec.name} has a description that does not follow docs/guides/deploy.md: {one_line(error)}."
        ) from error
    described = known | {
        "training": describe.training(recipe, Path(folder), chosen, loaded),
        "made_by": describe.made_by(),
        "weights_sha256": describe.weights_sha256(policy.network),
    }
    made = package(module, spec, obs, source, described)
    _write(target, made.files)
    check = made.about["check"]
    return Export(target, len(obs.actor), source, check["differences"], tuple(described["missing"]))


@dataclass(frozen=True)
class Package:
    """The three files, in memory."""

    about: dict[str, Any]
    files: dict[str, bytes]


def package(
    module: graph.Exported, spec: EnvSpec, obs: Obs, source: str, described: dict[str, Any]
) -> Package:
    """The files of a policy, after they were checked with `obs`. UserError where they disagree with the live policy."""
    given = {"obs": module.physical(obs.actor)}
    if spec.tasks:
        assert obs.task is not None
        given["task"] = obs.task
    program = graph.to_program(module, spec)
    pt2, onnx = graph.to_pt2(program), graph.to_onnx(program, spec, module.outputs)
    live = _live(module, obs, list(given.values()))
    arrays = dict(zip(given, graph.as_arrays(list(given.values())), strict=True))
    rows = RECORDED if spec.obs_dtype == torch.float32 else RECORDED_IMAGES
    recorded = {name: live[name] for name in ("action", "target") if name in live}
    some = _sure(live)
    some = some[np.linspace(0, len(some) - 1, rows).astype(np.int64)]
    about = described | {
        "recorded": {name: encode(values[some]) for name, values in (arrays | recorded).items()},
        "graph_sha256": onnx_file.digest(onnx),
        "check": {},
    }
    runner = Policy(deploy_about.understand(about, "policy.json"), onnx)
    with torch.no_grad():
        reloaded = torch.export.load(io.BytesIO(pt2)).module()
        again = graph.as_arrays(reloaded(*given.values()))
    part = {name: values[some] for name, values in live.items()}
    single = [
        runner.run({name: values[i : i + 1] for name, values in arrays.items()}) for i in some
    ]
    alone = [np.concatenate(parts) for parts in zip(*single, strict=True)]
    differences = {
        "ONNX Runtime": compare(runner.run(arrays)[0], live, spec),
        "ONNX Runtime, row by row": compare(alone[0], part, spec),
        "torch.export": compare(again[0], live, spec),
    }
    worst = max(differences, key=lambda name: differences[name])
    if not differences[worst] <= TOLERANCE:
        raise UserError(
            f"nothing was written: {worst} differs from the live policy by {differences[worst]:.2g} on "
            f"{len(obs.actor)} observations ({source}); {TOLERANCE:g} is allowed."
        )
    about["check"] = {
        "observations": len(obs.actor),
        "source": source,
        "tolerance": TOLERANCE,
        "differences": differences,
    }
    onnx = onnx_file.with_metadata(onnx, {deploy_about.KEY: json.dumps(about)})
    files = {"policy.onnx": onnx, "policy.pt2": pt2}
    hashes = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    text = json.dumps(about | {"files": hashes}, indent=1) + "\n"
    return Package(about, {"policy.json": text.encode(), **files})


@torch.no_grad()
def _live(module: graph.Exported, obs: Obs, given: list[Tensor]) -> dict[str, NDArray[Any]]:
    """What the policy itself answers to the same observations, by the names of the outputs."""
    x = module.prepare(given[0])
    answer = dict(zip(module.outputs, graph.as_arrays(module(*given)), strict=True))
    action: Tensor = module.policy(Obs(x, x, obs.task))
    return answer | {"action": action.cpu().numpy()}


def compare(action: NDArray[Any], live: dict[str, NDArray[Any]], spec: EnvSpec) -> float:
    """The largest difference of actions in [-1, 1]. Of discrete actions: by how much one scores less than the live
    policy's, where scores are known, or else the share of other actions."""
    wanted = live["action"]
    if action.shape != wanted.shape:
        return float("inf")
    if isinstance(spec.action, Discrete):
        if "scores" not in live:
            return float((action != wanted).mean())
        scores, rows = live["scores"].astype(np.float64), np.arange(len(action))
        size = max(1.0, float(np.abs(scores).max()))
        return float((scores[rows, wanted] - scores[rows, action]).max()) / size
    difference = np.abs(action.astype(np.float64) - wanted.astype(np.float64)).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def _sure(live: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Rows in which no two discrete actions are so close that another processor may take the other one."""
    if "scores" in live:
        best = np.sort(live["scores"], axis=1)[:, -2:]
        sure = np.flatnonzero(best[:, 1] - best[:, 0] > 1e-4 * np.abs(best[:, 1]))
        if len(sure):
            return sure
    return np.arange(len(live["action"]))


def _check_target(target: Path) -> None:
    if target.is_file():
        raise UserError(f"{target} is a file; give another --out.")
    if target.is_dir():
        others = sorted(path.name for path in target.iterdir() if path.name not in FILES)
        if others:
            raise UserError(f"{target} holds other files ({others[0]}); give --out a new folder.")


def _write(target: Path, files: dict[str, bytes]) -> None:
    """All files or none: they are written beside the folder, loaded as a robot would, and moved into place."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with writing(target):
            for name, content in files.items():
                (hidden / name).write_bytes(content)
        load(hidden)
        with writing(target):
            if target.is_dir():
                shutil.rmtree(target)
            hidden.chmod(0o755)
            hidden.rename(target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
