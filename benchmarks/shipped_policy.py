"""Makes the policy that ships with the package (`fleetfoot play` without arguments): two files, below 2 MB.

    python -m benchmarks.shipped_policy runs/RUN       # a run of a robot of the package: this is all it takes
    python -m benchmarks.play_pictures docs/images     # and its picture

The one that is there now is a run of `flash_sac/t1`. A policy that was trained in MuJoCo Playground, whose task
`RobotConfig(variant="stock")` equals, is made from its weights, the name of its recipe and the evaluations in its log:

    python -m benchmarks.shipped_policy --robot t1 --recipe flash_sac/t1-joystick-flat
        --weights t1-policy.safetensors --metrics t1.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fleetfoot import deploy, recipes
from fleetfoot.config import to_json
from fleetfoot.envs.robot import RobotConfig
from fleetfoot.errors import UserError
from fleetfoot.export import describe, export_run
from fleetfoot.export.graph import Exported
from fleetfoot.export.observations import record
from fleetfoot.export.run import CHECKED, package

SHIPPED = Path(__file__).parents[1] / "src/fleetfoot/play/shipped"
LIMIT = 2 << 20  # bytes of the whole folder
PREFIX = "agent/policy/"


def from_run(run: Path) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        folder = export_run(run, Path(place) / "export").folder
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def from_weights(weights: Path, name: str, robot: str, metrics: Path) -> dict[str, bytes]:
    """A policy of Playground's task of the same robot: observations and actions are those of the stock robot."""
    trained = recipes.get(name)
    recipe = dataclasses.replace(
        trained, env=RobotConfig(robot=robot, variant="stock", engine="cpu")
    )
    env = recipe.env.build(1, 0, torch.device("cpu"))
    spec = env.spec
    env.close()
    policy = recipe.build_agent(spec, torch.device("cpu")).policy.eval()
    stored = load_file(weights)
    policy.load_state_dict(
        {key.removeprefix(PREFIX): value for key, value in stored.items() if key.startswith(PREFIX)}
    )
    obs, source = record(recipe, spec, policy, CHECKED)
    described = describe.describe(recipe, spec) | {
        "training": {
            "recipe": to_json(trained),
            "seed": trained.seed,
            "checkpoint": "last",
            **_evaluation(metrics, trained.evaluation.episodes),
            "note": "trained in MuJoCo Playground on one NVIDIA H200",
        },
        "made_by": describe.made_by(),
        "weights_sha256": describe.weights_sha256(policy),
    }
    module = Exported(policy, spec).eval().requires_grad_(False)
    return package(module, spec, obs, source, described).files


def _evaluation(metrics: Path, episodes: int) -> dict[str, Any]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    last = [row for row in rows if "eval/return" in row][-1]
    counted = {name: last[name] for name in ("vec_steps", "env_steps")}
    found = {"return": last["eval/return"], "return_std": last["eval/return_std"]}
    return counted | {"evaluation": found | {"episodes": episodes}}


def ship(files: dict[str, bytes]) -> None:
    """Without `policy.pt2`, which nothing here reads."""
    about = json.loads(files["policy.json"])
    del about["files"]["policy.pt2"]
    files = {
        "policy.onnx": files["policy.onnx"],
        "policy.json": (json.dumps(about, indent=1) + "\n").encode(),
    }
    size = sum(map(len, files.values()))
    if size > LIMIT:
        raise UserError(f"{size:,} bytes are too many to ship; at most {LIMIT:,}.")
    SHIPPED.mkdir(exist_ok=True)
    for name, content in files.items():
        (SHIPPED / name).write_bytes(content)
        print(f"{name}  {len(content):,} bytes  sha256 {hashlib.sha256(content).hexdigest()}")
    deploy.load(SHIPPED)


def main() -> int:
    options = argparse.ArgumentParser(description="Make the policy that ships with the package.")
    options.add_argument("run", type=Path, nargs="?")
    options.add_argument("--weights", type=Path)
    options.add_argument("--recipe")
    options.add_argument("--robot")
    options.add_argument("--metrics", type=Path, help="metrics.jsonl of the training")
    given = options.parse_args()
    try:
        if given.run is not None:
            ship(from_run(given.run))
        else:
            ship(from_weights(given.weights, given.recipe, given.robot, given.metrics))
    except UserError as error:
        print(f"fleetfoot: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
