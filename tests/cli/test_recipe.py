"""Recipes on the command line: from files, shown, compared, and looked at before they are trained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fleetfoot import recipes
from fleetfoot.config import to_json
from fleetfoot.recipes.file import read_file
from fleetfoot.run.folder import read_recipe, write_recipe
from support.command import call, refusal
from support.trust_recipes import tiny

pytestmark = pytest.mark.usefixtures("elsewhere")
Capsys = pytest.CaptureFixture[str]


def test_a_file_is_trained_with_flags_on_top_and_a_name(capsys: Capsys) -> None:
    code, out, _ = call(
        capsys, "recipe", "show", "support.trust_recipes:tiny", "--yaml", "--num-envs", "3"
    )
    assert code == 0
    Path("mine.yaml").write_text(out)
    args = ("mine.yaml", "--name", "my/own one", "--total-vec-steps", "12", "--no-video")
    assert call(capsys, "train", *args)[0] == 0
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("my-own-one-seed0-")
    stored = read_recipe(run)
    assert (stored.name, stored.num_envs, stored.total_vec_steps) == ("my/own one", 3, 12)
    assert call(capsys, "train", str(run), "--folder", "again", "--no-video")[0] == 0
    assert call(capsys, "recipe", "diff", str(run), "again")[1] == "no field differs.\n"


def test_a_dry_run_tells_all_and_writes_nothing(capsys: Capsys) -> None:
    args = ("train", "fast_td3/pendulum", "--dry-run", "--num-envs", "8", "--seeds", "3")
    code, out, err = call(capsys, *args)
    assert (code, err) == (0, "")
    body, _, rest = out.partition("\n}\n")
    assert json.loads(body + "}")["num_envs"] == 8
    assert "12,000 env steps, 2,960 updates of 512 rows for each seed" in rest
    # a policy of 3 - 64 - 64 - 1
    assert "(policy 4,481, critic 47,462, critic_target 47,462) for each seed" in rest
    assert "would write to runs/fast_td3-pendulum-seed0-" in rest
    assert "nothing was trained or written." in rest
    assert list(Path().iterdir()) == []
    code, out, _ = call(capsys, "train", "ppo/pendulum", "--dry-run")
    assert (code, "memory       replay" in out) == (0, True)
    _, out, _ = call(capsys, "train", "flash_sac/pendulum", "--dry-run")
    # Its policy, behaviour and gaussian share 6 + 3*32 + 2*32*128 + 2*128 + 2*32 + 32 + 32*2 + 2 numbers.
    assert "(gaussian 8,712, critic 80,602, critic_target 80,602, alpha 1)" in out


def test_show_and_diff(capsys: Capsys) -> None:
    out = call(capsys, "recipe", "show", "ppo/pendulum")[1]
    assert json.loads(out) == to_json(recipes.get("ppo/pendulum"))
    Path("p.yaml").write_text(
        "recipe: fast_td3/pendulum\nagent: {tau: 0.5, critic_net: SimbaV2Config}\ngamma: 1\n"
    )
    code, out, _ = call(capsys, "recipe", "diff", "fast_td3/pendulum", "p.yaml")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert code == 0
    assert rows["agent.tau"] == ["0.05", "0.5"]
    assert rows["agent.critic_net"] == ["MLPConfig", "SimbaV2Config"]
    assert rows["agent.critic_net.width"][0] == "-"
    assert rows["gamma"][1] == "1"
    assert "num_envs" not in rows


def test_help_lists_what_can_stand_in_each_place(capsys: Capsys) -> None:
    code, out, _ = call(capsys, "train", "fast_td3/pendulum", "--help")
    text = " ".join(out.replace("│", " ").split())
    assert code == 0
    # Other tests of this process may have brought parts of their own.
    places = [
        set(names.split(", ")) for names in re.findall(r"Can be replaced by: ([\w, ]+)\.", text)
    ]
    topologies = {"ActorLearnerConfig", "ParameterServerConfig", "SplitLearnersConfig"}
    assert [place for place in places if place >= topologies]
    assert [place for place in places if "RolloutConfig" in place]
    assert "AsSampledConfig, EpsilonAnnealConfig" in text
    assert "--name" in text
    for words in ([], ["show"], ["diff"]):
        code, out, _ = call(capsys, "recipe", *words, "--help")
        assert (code, "recipe diff A B" in out) == (0, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["recipe", "sho", "x"], "Did you mean show"),
        (["recipe", "show"], "which recipe?"),
        (["recipe", "show", "fast_td3/pendulmu"], "Did you mean fast_td3/pendulum"),
        (["recipe", "show", "none.yaml"], "No such file"),
        (["recipe", "show", "fast_td3/pendulum", "--agent.tua", "3"], "--agent.tau"),
        (["recipe", "diff", "fast_td3/pendulum"], "which two?"),
        (["recipe", "diff", "fast_td3/pendulum", "bad.json"], "bad.json cannot be read as JSON"),
        (["train", "bad.json"], "bad.json cannot be read as JSON"),
        (["train", "part.json"], "part.json does not state name"),
        (["train", "edited.json"], "damaged or edited"),
        (["train", "fast_td3/pendulum", "--name", " "], "name must be"),
        (["train", "fast_td3/pendulum", "--dry-run", "--folder", "full"], "is not empty"),
        (["train", "fast_td3/pendulum", "--dry-run", "--env", "GymConfig", "--env.id", "X"], "X"),
    ],
)
def test_mistakes_get_one_line(args: list[str], says: str, capsys: Capsys) -> None:
    Path("bad.json").write_text("{")
    Path("part.json").write_text('{"num_envs": 3}')
    Path("full").mkdir()
    write_recipe(Path("full"), tiny())
    text = Path("full/recipe.json").read_text()
    Path("edited.json").write_text(text.replace('"gamma": 0.99', '"gamma": 0.9'))
    assert says in refusal(capsys, *args)
    assert not Path("runs").exists()


def test_a_file_from_a_run_can_be_edited_after_show(capsys: Capsys) -> None:
    write_recipe(Path(), tiny())
    text = call(capsys, "recipe", "show", "recipe.json")[1]
    Path("mine.json").write_text(text.replace('"num_envs": 2', '"num_envs": 5'))
    assert read_file("mine.json").num_envs == 5
