"""Every command without the packages of any extra: one line that says what to install, and exit code 2.

One process runs all commands, because what matters is what they import, and other tests have imported much already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetfoot.cli.main import COMMANDS

ABSENT = (
    *("viser", "trimesh", "scipy", "onnx", "onnxscript", "onnxruntime", "matplotlib"),
    *("rliable", "pandas", "plotly", "jinja2", "optuna", "yaml", "ray", "huggingface_hub", "wandb"),
    *("trackio", "jax", "brax", "mujoco_playground", "mujoco_warp", "warp", "envpool", "ale_py"),
    *("Box2D", "mjlab", "isaaclab", "humanoid_bench", "stable_baselines3", "playwright"),
)
SCRIPT = """
import contextlib, io, json, sys, traceback
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from fleetfoot.cli.main import main
for args in json.loads(sys.argv[2]):
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(args)
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, *(stream.buffer.getvalue().decode() for stream in (out, err))]))
"""
PENDULUM = ("train", "fast_td3/pendulum")
HELP: list[tuple[str, ...]] = [(name, "--help") for name in COMMANDS]
HELP += [("scale", "fit", "--help"), ("bench", "play", "--help"), ("bench", "peers", "--help")]
# The arguments, and two parts of the line: what needs the packages, and a package of the right extra.
CALLS: dict[tuple[str, ...], tuple[str, str]] = {
    ("play",): ("play needs", "'viser~="),
    ("play", "nowhere"): ("play needs", "'viser~="),
    ("play", "run"): ("play needs", "'onnxscript>="),
    ("play", "--viewer", "native"): ("play needs", "'onnxruntime>="),
    ("watch", "run"): ("watch needs", "'onnxscript>="),
    ("bench", "play"): ("bench play needs", "'viser~="),
    ("bench", "wmpg", "--picture", "a.png"): ("a picture needs", "'matplotlib>="),
    ("export", "run"): ("export needs", "'onnx>="),
    ("compare", "run"): ("compare needs", "'rliable~="),
    ("report", "run"): ("report needs", "'plotly>="),
    ("dashboard", "."): ("dashboard needs", "'plotly>="),
    ("scale", "fit", "table.csv"): ("fitting laws needs", "'scipy>="),
    (
        "sweep",
        "fast_td3/pendulum",
        "--over",
        "agent.tau=0.1..0.2",
        "--search",
        "optuna",
        "--folder",
        "s",
    ): (
        "Optuna",
        "'optuna>=",
    ),
    ("push", "run", "me/walker"): ("huggingface_hub", "'huggingface-hub>="),
    ("pull", "me/walker"): ("huggingface_hub", "'huggingface-hub>="),
    ("train", "own.yaml"): ("YAML needs", "'pyyaml>="),
    ("recipe", "show", "run", "--yaml"): ("YAML needs", "'pyyaml>="),
    ("list", "playground"): ("MuJoCo Playground needs", "'playground>="),
    ("list", "envpool"): ("EnvPool", "'envpool~="),
    (*PENDULUM, "--log.wandb-project", "a"): ("W&B logging needs", "'wandb>="),
    (*PENDULUM, "--log.trackio-project", "a"): ("Trackio logging needs", "'trackio>="),
    ("train", "apex_dqn/cartpole"): ("needs Ray", "'ray>="),
    ("train", "gorila_dqn/cartpole"): ("needs Ray", "'ray>="),
    ("train", "pql/pendulum", "--topology.placement", "OnRayConfig"): ("needs Ray", "'ray>="),
    ("train", "fast_td3/t1-joystick-flat", "--device", "cpu"): (
        "Playground needs",
        "'playground>=",
    ),
    ("train", "fast_td3/mjlab-go1-velocity-flat"): ("mjlab tasks need", "'mjlab~="),
    ("train", "daa/cheetah-run"): ("EnvPool", "'envpool~="),
    ("train", "brc/mt10"): ("EnvPool", "'envpool~="),
    ("train", "dqn/pong"): ("Atari games need", "'ale-py>="),
    ("train", "wmpg/lunarlander"): ("LunarLander-v3 needs Box2D", "'gymnasium[box2d]>="),
}
ELSEWHERE = {  # no extra: pip cannot bring them
    ("train", "fast_td3/h1hand-walk"): "docs/environments/humanoid_bench.md",
    (*PENDULUM, "--env", "IsaacLabConfig", "--env.id", "Isaac-Ant-v0"): "isaac-sim.github.io",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Any]:
    """(exit code, stdout, stderr) of each command."""
    folder = tmp_path_factory.mktemp("missing")
    make_run(folder / "run")
    (folder / "own.yaml").write_text("recipe: fast_td3/pendulum\n")
    (folder / "table.csv").write_text("")
    commands = [*HELP, *CALLS, *ELSEWHERE]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(ABSENT), json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,  # a command that asks for nothing would begin to train
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(commands, lines, strict=True))


def make_run(folder: Path) -> None:
    from dataclasses import replace

    from fleetfoot import recipes, train

    recipe = recipes.get("fast_td3/pendulum")
    train(replace(recipe, total_vec_steps=1, log=replace(recipe.log, console=False)), folder)


@pytest.mark.parametrize("args", HELP, ids=" ".join)
def test_help_needs_no_extra(args: tuple[str, ...], answers: dict[tuple[str, ...], Any]) -> None:
    code, out, err = answers[args]
    assert (code, err) == (0, "")
    assert "usage" in out or "fleetfoot" in out


@pytest.mark.parametrize("args", CALLS, ids=" ".join)
def test_one_line_says_what_to_install(
    args: tuple[str, ...], answers: dict[tuple[str, ...], Any]
) -> None:
    code, out, err = answers[args]
    what, package = CALLS[args]
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("fleetfoot: ")
    assert what in err
    assert package in err.partition("pip install ")[2]


@pytest.mark.parametrize("args", ELSEWHERE, ids=" ".join)
def test_one_line_says_where_it_comes_from(
    args: tuple[str, ...], answers: dict[tuple[str, ...], Any]
) -> None:
    code, out, err = answers[args]
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert ELSEWHERE[args] in err
