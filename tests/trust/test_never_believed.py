"""What is on disk is verified before it is used: it may be damaged, old, or a stranger's."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import UserError, api, checkpoint
from fleetfoot.checkpoint import Checkpoint
from fleetfoot.config import from_json, to_json
from fleetfoot.envs.gym import GymConfig
from fleetfoot.errors import Notice
from fleetfoot.files import write_text
from fleetfoot.run import folder as folders
from fleetfoot.run.stored import from_stranger, write_stored
from fleetfoot.study.folder import open_study
from fleetfoot.topologies.apex.loop import ActorLearnerConfig
from fleetfoot.topologies.ray.cluster import RayConfig
from support.forked import command
from support.trust_recipes import tiny

SAMPLES = Path(__file__).parent / "samples"


def resealed(run: Path, change: Callable[[dict[str, Any]], None], recipe: Any = None) -> None:
    """The newest checkpoint again, with another state or recipe and every digest right: as a stranger can make it."""
    loaded = checkpoint.load(run)
    change(loaded.state)
    shutil.rmtree(run / "checkpoints")
    Checkpoint(run / "checkpoints").save(
        loaded.state, recipe_json=recipe or loaded.recipe_json, step=loaded.step
    )


# recipe.json


def test_a_flipped_byte_in_the_recipe_is_found(run: Path) -> None:
    path = run / "recipe.json"
    text = path.read_text()
    assert '"tau": 0.05' in text
    path.write_text(text.replace('"tau": 0.05', '"tau": 0.85'))
    for read in (folders.read_recipe, api.resume, api.evaluate_run, api.record_run):
        with pytest.raises(UserError, match=r"recipe.json was damaged or edited"):
            read(run)


def test_the_recipe_of_another_run_is_found(run: Path) -> None:
    recipe = folders.read_recipe(run)
    agent: Any = recipe.agent
    folders.write_recipe(run, replace(recipe, agent=replace(agent, tau=0.85)))
    for use in (lambda: api.resume(run, total_vec_steps=30), lambda: api.evaluate_run(run)):
        with pytest.raises(UserError, match=r"agent.tau is 0.85, and was 0.05"):
            use()


def test_what_may_change_may_differ_from_the_checkpoint(run: Path) -> None:
    """A run that was resumed with other settings and killed before its next checkpoint."""
    recipe = folders.read_recipe(run)
    folders.write_recipe(run, replace(recipe, total_vec_steps=25))
    assert api.resume(run).finished


def test_a_spec_that_was_edited_is_found(run: Path) -> None:
    path = run / "spec.json"
    path.write_text(path.read_text().replace('"pendulum"', '"pendulun"').replace("3", "4"))
    with pytest.raises(UserError, match=r"spec.json was damaged or edited"):
        api.load_policy(run)


# state


def at(state: Any, *path: Any) -> tuple[Any, Any]:
    for name in path[:-1]:
        state = state[name]
    return state, path[-1]


TENSORS = [
    ("agent", "step_critic", "optimizer", 0, "exp_avg"),
    ("agent", "step_critic", "steps"),
    ("agent", "policy", "net.body.0.weight"),
    ("agent", "critic_noise", "state"),
    ("explorer", "random", "generator", "state"),
    ("explorer", "std"),
    ("episodes", "returns"),
    ("env", "state"),
    ("replay", "ring", "tensors", "reward"),
    ("replay", "ring", "tensors", "obs.actor"),
    ("replay", "sampler", "generator", "state"),
]
SPOILED: dict[str, Callable[[torch.Tensor], Any]] = {
    "one row short": lambda t: t.flatten()[:-1].clone() if t.numel() > 1 else torch.zeros(2),
    "of another dtype": lambda t: t.double() if t.dtype != torch.float64 else t.float(),
}


@pytest.mark.parametrize("path", TENSORS, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("how", ["one row short", "of another dtype"])
def test_a_tensor_that_does_not_fit_is_refused(path: Any, how: str, run: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        parent, name = at(state, *path)
        parent[name] = SPOILED[how](parent[name])

    resealed(run, change)
    with pytest.raises(UserError, match="does not fit this recipe") as caught:
        api.resume(run, total_vec_steps=30)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("owed",), 10**12),
        (("vec_steps",), -1),
        (("vec_steps",), "20"),
        (("updates",), 1.5),
        (("pace", "vec_steps"), 10**9),
        (("replay", "ring", "size"), 10**6),
        (("replay", "ring", "written"), -1),
        (("agent", "updates"), "many"),
        (("last_return",), "high"),
        (("agent",), [1]),
        (("env",), {}),
        (("explorer",), {0: 1}),
        ((5,), 1),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(path: Any, value: Any, run: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        parent, name = at(state, *path)
        parent[name] = value

    resealed(run, change)
    with pytest.raises(UserError) as caught:
        api.resume(run, total_vec_steps=30)
    assert "\n" not in str(caught.value)


def test_an_index_that_points_outside_is_refused(run: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        state["replay"]["ring"]["tensors"]["entry"].fill_(10**6)

    resealed(run, change)
    with pytest.raises(UserError, match="lie outside"):
        api.resume(run, total_vec_steps=30)


def test_weights_that_are_no_numbers_are_refused(run: Path) -> None:
    resealed(run, lambda state: state["agent"]["policy"]["net.body.0.weight"].fill_(float("nan")))
    for args in (["evaluate", "--episodes", "1"], ["record", "--seconds", "0.2"]):
        outcome = command(run.parent, args[0], str(run), *args[1:], "--which", "last")
        outcome.assert_clean(2)
        assert "is NaN or infinite" in outcome.err


# a stranger's recipe


def test_a_stored_recipe_imports_nothing(run: Path, tmp_path: Path) -> None:
    module = f"strangers_{os.getpid()}"
    (tmp_path / f"{module}.py").write_text("raise SystemExit('executed')")
    env = GymConfig(id=f"{module}:Evil-v0")
    recipe = replace(folders.read_recipe(run), env=env)
    write_stored(run / "recipe.json", "recipe", to_json(recipe))
    resealed(run, lambda state: None, to_json(recipe))
    sys.path.insert(0, str(tmp_path))
    try:
        for use in (api.resume, api.evaluate_run, api.record_run, api.load_policy):
            with pytest.raises(UserError, match=f"if you trust that, name it: --import {module}"):
                use(run)
    finally:
        sys.path.remove(str(tmp_path))
    sys.modules[module] = sys.modules[__name__]  # as --import does
    try:
        assert folders.read_recipe(run).env == env
    finally:
        del sys.modules[module]


def test_a_stored_study_imports_nothing(tmp_path: Path) -> None:
    open_study(tmp_path / "s", {"a": tiny()}, seeds=2, imports=["nowhere_to_be_found"])
    with pytest.raises(UserError, match="name it: --import nowhere_to_be_found"):
        open_study(tmp_path / "s", {"a": tiny()}, seeds=2)


def test_a_stored_address_is_used_only_if_repeated() -> None:
    topology = ActorLearnerConfig(actors=1, ray=RayConfig(address="10.0.0.1:6379"))
    with pytest.warns(Notice, match=r"Ray cluster at 10.0.0.1:6379; to join it again, repeat"):
        found = from_stranger(tiny(topology=topology))
    assert found.topology.ray.address == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent", {"part": "NoiseLadderConfig"}),
        ("env", {"part": "MLPConfig"}),
        ("env", {"task": "pendulum"}),
        ("explorer", None),
        ("replay", {"part": "PaceConfig"}),
        ("topology", "SynchronousConfig"),
        ("log", {"part": "CheckpointConfig"}),
        ("pace", [1, 2]),
    ],
)
def test_a_part_of_another_kind_is_refused(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"Recipe.{field} cannot be"):
        from_json(to_json(tiny()) | {field: value})


@pytest.mark.parametrize("value", [1e39, -1e308, 10**400, float("nan")])
def test_numbers_that_no_tensor_holds_are_refused(value: float) -> None:
    with pytest.raises(UserError, match=r"Recipe.gamma cannot be"):
        from_json(to_json(tiny()) | {"gamma": value})


@pytest.mark.parametrize("hidden", [["wide"], [64.5], [None], 64, "64", [[64]], {"0": 64}])
def test_tuples_are_checked(hidden: Any) -> None:
    tree = to_json(tiny())
    tree["agent"]["policy_net"]["hidden"] = hidden
    with pytest.raises(UserError, match=r"MLPConfig.hidden cannot be"):
        from_json(tree)


def test_a_message_cannot_command_the_terminal() -> None:
    assert str(UserError("task \x1b[2J\x07evil\u2028")) == "task ?[2J?evil?"


# links, pipes and devices


READ = ["recipe.json", "spec.json", "metrics.jsonl"]
INSIDE = ["last.json", "000000020/state.json", "000000020/state.safetensors"]


@pytest.mark.parametrize("name", [*READ, *(f"checkpoints/{name}" for name in INSIDE)])
@pytest.mark.parametrize("kind", ["zero", "link", "pipe", "folder", "huge"])
def test_only_plain_files_of_a_sane_size_are_read(name: str, kind: str, run: Path) -> None:
    path = run / name
    target = path.with_name("moved")
    path.rename(target)
    if kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 43)  # takes no room
    args = ("resume", str(run), "--total-vec-steps", "25", "--no-video")
    if name == "spec.json":  # only written by a resume
        with pytest.raises(UserError, match=r"spec.json"):
            api.load_policy(run)
        return
    outcome = command(run.parent, *args)
    outcome.assert_clean(2)
    assert str(path) in outcome.err or path.parent.name in outcome.err


@pytest.mark.parametrize(
    "name",
    [".lock", "metrics.jsonl", "recipe.json", "spec.json", "checkpoints/last.json", "videos",
     "tensorboard", "checkpoints"],
)  # fmt: skip
def test_no_link_is_followed_when_writing(name: str, run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    path = run / name
    if name in ("videos", "tensorboard", "checkpoints"):
        outside.mkdir()
        (outside / "000000001").mkdir()
        (outside / ".tmp-mine").mkdir()
        if path.is_dir():
            path.rename(tmp_path / "moved")
        path.symlink_to(outside)
    else:
        outside.write_text("precious")
        if path.exists():
            path.unlink()
        path.symlink_to(outside)
    before = sorted(p.name for p in outside.iterdir()) if outside.is_dir() else outside.read_text()
    side = {"videos": [], "tensorboard": ["--no-video", "--log.tensorboard"]}
    args = ("--total-vec-steps", "25", "--restart", *side.get(name, ["--no-video"]))
    command(tmp_path, "resume", str(run), *args).assert_clean()
    after = sorted(p.name for p in outside.iterdir()) if outside.is_dir() else outside.read_text()
    assert after == before


# versions


@pytest.mark.parametrize("odd", [1, 0, -1, True, None, "2", 2.0])
def test_only_the_format_of_this_version_is_read(odd: Any, run: Path) -> None:
    table = json.loads((run / "recipe.json").read_text())
    write_text(run / "recipe.json", json.dumps(table | {"version": odd}))
    with pytest.raises(UserError, match=r"has format .*, this fleetfoot reads 2$"):
        folders.read_recipe(run)


def test_a_newer_recipe_asks_for_an_upgrade(run: Path) -> None:
    table = json.loads((run / "recipe.json").read_text())
    write_text(run / "recipe.json", json.dumps(table | {"version": 99}))
    with pytest.raises(UserError, match=r"has format 99, .* a newer version"):
        folders.read_recipe(run)


def test_nothing_is_said_where_nothing_is_wrong(run: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        api.resume(run, total_vec_steps=25)
