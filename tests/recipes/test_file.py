"""Recipes in files: whole and partial, JSON and YAML, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import UserError, recipes, train
from fleetfoot.config import to_json
from fleetfoot.explore import AsSampledConfig
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.recipes.file import read_file, to_yaml
from fleetfoot.run.folder import read_recipe, write_recipe
from support.trust_recipes import tiny

PENDULUM = "fast_td3/pendulum"


def written(folder: Path, text: str, name: str = "r.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [PENDULUM, "ppo/pendulum", "dqn/pong", "brc/pendulums"])
def test_a_whole_recipe_comes_back_equal(name: str, tmp_path: Path) -> None:
    recipe = recipes.get(name)
    assert read_file(written(tmp_path, to_yaml(recipe))) == recipe
    assert read_file(written(tmp_path, json.dumps(to_json(recipe)), "r.json")) == recipe
    write_recipe(tmp_path, recipe)
    assert read_file(tmp_path) == recipe
    assert read_file(tmp_path / "recipe.json") == recipe


def test_a_partial_file_changes_some_fields(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""
recipe: {PENDULUM}   # where to start
name: mine
num_envs: 1_6
gamma: 9e-1
explorer: AsSampledConfig
agent:
  tau: 5e-2
  critic_net: {{part: SimbaV2Config, width: 32}}
  policy_net: {{hidden: [8, 4]}}
""",
    )
    recipe, base = read_file(path), recipes.get(PENDULUM)
    agent: Any = base.agent
    assert recipe == replace(
        base,
        name="mine",
        num_envs=16,
        gamma=0.9,
        explorer=AsSampledConfig(),
        agent=replace(
            agent,
            tau=0.05,
            critic_net=SimbaV2Config(width=32),
            policy_net=replace(agent.policy_net, hidden=(8, 4)),
        ),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "is not a recipe"),
        ("", "is not a recipe"),
        ("num_envs: 3", "does not state name"),
        ("recipe: fast_td3/pendulumm", "Did you mean fast_td3/pendulum"),
        ("recipe: os:abort", "must be the name of a recipe of this library"),
        ("recipe: 3", "must be the name of a recipe"),
        (f"recipe: {PENDULUM}\nnum_env: 3", "Did you mean num_envs"),
        (f"recipe: {PENDULUM}\nnum_envs: many", "num_envs cannot be 'many'"),
        (f"recipe: {PENDULUM}\nagent: {{tua: 3}}", "Did you mean tau"),
        (f"recipe: {PENDULUM}\nagent: FastTD4Config", "agent cannot be 'FastTD4Config'"),
        (f"recipe: {PENDULUM}\nagent: {{part: FastTD4Config}}", "not loaded"),
        (f"recipe: {PENDULUM}\nnum_envs: 3\nnum_envs: 4", "'num_envs' is given twice"),
        (f"recipe: {PENDULUM}\nseed: !!python/object/apply:os.getpid []", "cannot be read as YAML"),
        (f"recipe: {PENDULUM}\nseed: !!binary aaaa", "cannot be read as YAML"),
        (f"recipe: {PENDULUM}\nlog: &a {{}}\nreplay: *a", "it has an alias"),
        ("recipe: [", "cannot be read as YAML"),
        (f"recipe: {PENDULUM}\nenv: {{part: GymConfig, id: 'antigravity:X-v0'}}", "--import"),
        ("recipe: ppo/pendulum\nbatch_size: 3", "batch_size follows from replay"),
        ("a: " + "[" * 5000, "cannot be read as YAML"),
    ],
)
def test_mistakes_get_one_line(text: str, says: str, tmp_path: Path) -> None:
    assert says in refused(written(tmp_path, text))
    assert "antigravity" not in sys.modules


def test_files_of_json_are_checked_as_well(tmp_path: Path) -> None:
    assert "cannot be read as JSON" in refused(written(tmp_path, "{", "r.json"))
    assert "is given twice" in refused(written(tmp_path, '{"a": 1, "a": 2}', "r.json"))
    write_recipe(tmp_path, tiny())
    path = tmp_path / "recipe.json"
    path.write_text(path.read_text().replace('"num_envs": 2', '"num_envs": 3'))
    assert "damaged or edited" in refused(path)
    (tmp_path / "link.json").symlink_to(path)
    assert "it is a link" in refused(tmp_path / "link.json")
    assert "No such file" in refused(tmp_path / "none.json")
    assert "bytes" in refused(written(tmp_path, " " * (2 << 20), "large.json"))


def test_without_the_extra_the_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "YAML needs PyYAML (JSON does not): pip install" in refused(written(tmp_path, "a: 1"))


def test_the_recipe_of_a_run_is_trained_again(tmp_path: Path) -> None:
    first = train(tiny(), tmp_path / "one")
    again = train(read_file(tmp_path / "one"), tmp_path / "two")
    assert again.last_return == first.last_return
    assert read_recipe(tmp_path / "two") == tiny()
