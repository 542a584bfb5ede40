"""`policy.json`: everything that whoever runs the policy must know, and what nobody could tell."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fleetfoot
from fleetfoot.checkpoint import Loaded
from fleetfoot.config import to_json
from fleetfoot.data import Discrete, EnvSpec
from fleetfoot.deploy.about import FORMAT, VERSION
from fleetfoot.export.graph import action_map
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import run_of

WANTED = {
    "joints": "names, order, gains and limits of the joints",
    "observation": "names and units of the observation",
    "control_hz": "the control rate",
}


def describe(recipe: Recipe, spec: EnvSpec) -> dict[str, Any]:
    """What is known of the robot, in the words of `policy.json`."""
    told = json.loads(json.dumps(dict(spec.description)))  # plain lists and dictionaries
    discrete = isinstance(spec.action, Discrete)
    has_target = not discrete and action_map(told)[0] is not None
    terms = told.pop("observation", [])
    action = told.pop("action", {})
    known = {
        "joints": told.pop("joints", []),
        "control_hz": told.pop("control_hz", None),
        "commands": told.pop("commands", {}),
    }
    history = told.pop("history", 1)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": recipe.name,
        "env": spec.name,
        "obs": {
            "shape": list(spec.obs_shape),
            "dtype": str(spec.obs_dtype).removeprefix("torch."),
            "frame_stack": spec.frame_stack,
            "history": history,
            "terms": terms,
        },
        "action": {
            **action,
            "kind": "discrete" if discrete else "continuous",
            "size": spec.action.count if isinstance(spec.action, Discrete) else spec.action.size,
            "has_target": has_target,
        },
        **known,
        "tasks": list(spec.tasks),
        "robot": told,
        "missing": missing(spec, has_target),
    }


def missing(spec: EnvSpec, has_target: bool) -> list[str]:
    """What the adapter could not tell, in words."""
    told = spec.description
    if isinstance(spec.action, Discrete) or spec.obs_dtype == torch.uint8:
        return [WANTED["control_hz"]] if "control_hz" not in told else []
    lacking = [words for key, words in WANTED.items() if not told.get(key)]
    if not has_target:
        lacking.append("scale and offset of the actions, which stay in [-1, 1]")
    return lacking


def training(recipe: Recipe, folder: Path, which: str, loaded: Loaded) -> dict[str, Any]:
    """Where the policy comes from."""
    return {
        "recipe": to_json(recipe),
        "seed": recipe.seed,
        "checkpoint": which,
        "vec_steps": loaded.step,
        "env_steps": loaded.step * recipe.num_envs,
        "evaluation": evaluation(folder, loaded.step, recipe.evaluation.episodes),
    }


def evaluation(folder: Path, step: int, episodes: int) -> dict[str, Any] | None:
    """Mean return and its spread over episodes, as the log has them for this checkpoint."""
    path = run_of(folder) / "metrics.jsonl"
    rows = read_lines(path, step) if path.is_file() else []
    evaluated = [row for row in rows if row.get("vec_steps") == step and "eval/return" in row]
    found = evaluated[-1] if evaluated else None
    if found is None:
        return None
    return {
        "return": found["eval/return"],
        "return_std": found.get("eval/return_std"),
        "episodes": episodes,
    }


def made_by() -> dict[str, str]:
    """Versions of what wrote the file."""
    found = {"fleetfoot": fleetfoot.__version__, "python": platform.python_version()}
    for package in ("torch", "onnx", "onnxscript", "onnxruntime", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def weights_sha256(policy: nn.Module) -> str:
    """Of all numbers of the policy with their names, kinds and shapes, in the order of the names."""
    whole = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().items()):
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
