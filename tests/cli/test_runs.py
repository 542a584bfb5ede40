"""Whole runs through the command: what they leave behind, and how they survive being stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
import torch

from fleetfoot import UserError, api, checkpoint, load_policy, recipes, resume, train
from fleetfoot.cli.main import main
from fleetfoot.cli.run_folder import one_seed
from fleetfoot.cli.train import finish_seeds, report
from fleetfoot.data import Obs
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import Notice
from fleetfoot.recipe import Recipe
from fleetfoot.rollout import rollout
from fleetfoot.run import folder as folders
from fleetfoot.run.build import announced
from fleetfoot.topologies import synchronous
from support.forked import start

SMALL = [
    "--num-envs",
    "8",
    "--batch-size",
    "16",
    "--threads",
    "1",
    "--device",
    "cpu",
    "--evaluation.episodes",
    "2",
    "--evaluation.every-vec-steps",
    "30",
    "--evaluation.max-vec-steps",
    "20",
    "--agent.policy-net.hidden",
    "16",
    "--agent.critic-net.hidden",
    "16",
    "--checkpoint.every-vec-steps",
    "10",
    "--log.every-vec-steps",
    "10",
    "--pace.warmup-vec-steps",
    "5",
    "--replay.capacity",
    "4000",
    "--agent.num-atoms",
    "11",
    "--log.no-tensorboard",
]


def fleetfoot(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fleetfoot", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def small_recipe(total_vec_steps: int = 20) -> Recipe:
    recipe = recipes.get("fast_td3/pendulum")
    return replace(
        recipe,
        num_envs=4,
        batch_size=8,
        total_vec_steps=total_vec_steps,
        device="cpu",
        threads=1,
        evaluation=replace(recipe.evaluation, episodes=2, every_vec_steps=10, max_vec_steps=20),
        checkpoint=replace(recipe.checkpoint, every_vec_steps=10),
        log=replace(recipe.log, every_vec_steps=5, console=False, tensorboard=False),
        replay=replace(recipe.off_policy_replay(), capacity=400),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run made by the command with its default folder, and what the command printed."""
    where = tmp_path_factory.mktemp("finished")
    args = [word for word in SMALL if word != "--log.no-tensorboard"]
    done = fleetfoot("train", "fast_td3/pendulum", *args, "--total-vec-steps", "60", cwd=where)
    assert done.returncode == 0, done.stderr
    (folder,) = (where / "runs").iterdir()
    return folder, done.stdout


def test_a_run_leaves_a_whole_folder(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    assert re.fullmatch(r"fast_td3-pendulum-seed0-\d{8}-\d{6}", folder.name)
    assert (folder / "metrics.jsonl").read_text().count("\n") == 6
    assert any((folder / "tensorboard").glob("events.*"))
    assert folders.has_checkpoint(folder)
    assert folders.read_recipe(folder).total_vec_steps == 60
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(folder / "videos" / "best.mp4"))
    assert frames == 200
    assert seconds == pytest.approx(10.0, abs=0.2)


def test_the_end_message_says_what_where_and_how_to_go_on(finished: tuple[Path, str]) -> None:
    folder, said = finished
    assert "60 vec steps" in said  # the curve's axis
    assert re.search(r"return +last -[\d,]+\.\d, best -[\d,]+\.\d", said)
    for part in ("checkpoints", "tensorboard", "videos/best.mp4"):
        assert f"runs/{folder.name}/{part}" in said
    assert f"resume runs/{folder.name} --total-vec-steps 120" in said
    assert f"record runs/{folder.name}" in said
    assert f"--logdir runs/{folder.name}" in said


def test_the_first_line_says_what_is_trained_on_and_from_where(
    finished: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = finished[1].removeprefix("building 8 environments ...\n")  # where that takes long
    assert first.startswith("fast_td3/pendulum: tensor/pendulum, 8 environments, cpu\n")
    spoken = replace(small_recipe(), log=replace(small_recipe().log, console=True))
    folder = train(spoken, tmp_path / "run").folder
    capsys.readouterr()
    resume(folder, total_vec_steps=30)
    first = capsys.readouterr().out.removeprefix("building 4 environments ...\n")
    assert first.startswith(
        "fast_td3/pendulum: tensor/pendulum, 4 environments, cpu, from vec step 20 on\n"
    )


def test_slow_work_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with announced("building 8 environments", after=0) as timer:
        timer.join()
    with announced("never said"):
        pass
    assert capsys.readouterr().out == "building 8 environments ...\n"


def test_a_checkpoint_without_a_replay_says_so(tmp_path: Path) -> None:
    folder = train(small_recipe(), tmp_path / "run").folder
    (best,) = (folder / "checkpoints").glob("best-*")
    with pytest.warns(Notice, match="holds no replay: it fills again"):
        resume(best, total_vec_steps=30)


def test_a_run_cannot_be_resumed_to_a_step_behind_it(tmp_path: Path) -> None:
    folder = train(small_recipe(), tmp_path / "run").folder
    with pytest.raises(
        UserError, match="is at vec step 20 already; --total-vec-steps 10 is behind"
    ):
        resume(folder, total_vec_steps=10)


@pytest.mark.parametrize("count", ["0", "-2"])
def test_there_is_at_least_one_seed(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["train", "fast_td3/pendulum", "--seeds", count, "--dry-run"])
    assert f"--seeds must be at least 1, not {count}." in capsys.readouterr().err


def test_the_end_message_suggests_no_film_where_none_can_be_made(tmp_path: Path) -> None:
    result = train(small_recipe(), tmp_path / "run")
    assert "record" in report(result, None)
    assert "record" not in report(result, None, can_film=False)


def test_the_end_message_names_no_tensorboard_files_that_were_not_written(tmp_path: Path) -> None:
    said = report(train(small_recipe(), tmp_path / "run"), None)
    assert "checkpoints" in said
    assert "tensorboard" not in said.replace(str(tmp_path), "").lower()


def test_evaluate_and_record_read_the_run(
    finished: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(finished[0])

    def said(*args: str) -> str:
        with pytest.raises(SystemExit) as caught:
            main(args)
        assert caught.value.code == 0
        return capsys.readouterr().out

    first = said("evaluate", folder, "--episodes", "3")
    assert re.match(r"return -[\d,.]+ ± [\d,.]+ over 3 episodes", first)
    assert said("evaluate", folder, "--episodes", "3") == first
    assert said("evaluate", folder, "--episodes", "3", "--seed", "99") != first

    film, strip = str(tmp_path / "a.mp4"), str(tmp_path / "s.png")
    out = said("record", folder, "--seconds", "1", "--out", film, "--strip", strip)
    assert film in out
    assert strip in out
    assert imageio_ffmpeg.count_frames_and_secs(film)[0] == 20
    assert Path(strip).stat().st_size > 0

    gif = tmp_path / "p.gif"
    said("record", folder, "--seconds", "0.5", "--out", str(gif))
    assert gif.read_bytes().startswith(b"GIF8")
    with pytest.raises(SystemExit) as caught:
        main(["record", folder, "--out", str(tmp_path / "p.avi")])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("p.avi must end in .mp4 or .gif.\n")

    shown = said("resume", folder, "--help")
    assert "--total-vec-steps" in shown
    assert "--num-envs" not in shown  # it may not change
    assert "total_vec_steps" in said("resume", "--help")


def test_a_film_is_named_after_its_checkpoint(
    finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    monkeypatch.chdir(folder.parent)
    run = Path(folder.name)
    newest = max(checkpoint.steps(run).values())
    assert api._film_of(run, "best") == run / "videos" / "best.mp4"
    assert api._film_of(newest, "best") == run / "videos" / f"{newest.name}.mp4"
    (tmp_path / "good").symlink_to(newest.resolve())
    there = api._film_of(tmp_path / "good", "best")
    assert there == folder.resolve() / "videos" / f"{newest.name}.mp4"


def test_resume_refuses_what_the_checkpoint_cannot_bear(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = (folder / "recipe.json").read_text()
    with pytest.raises(UserError, match=r"num_envs cannot change .* made with 8"):
        resume(folder, num_envs=9)
    other = replace(folders.read_recipe(folder), agent=recipes.get("sac/pendulum").agent)
    with pytest.raises(UserError, match=r"agent cannot change .* made with FastTD3Config\)"):
        api.resume_as(folder, other)
    changed = replace(folders.read_recipe(folder), env=TensorConfig(task="cartpole"))
    with pytest.raises(UserError, match=r"env\.task cannot change"):
        api.resume_as(folder, changed)
    with pytest.raises(UserError, match="is finished after 60 vec steps"):
        resume(folder)
    with pytest.raises(UserError, match="no field 'speed'"):
        resume(folder, speed=3)
    assert (folder / "recipe.json").read_text() == before


def policy_of(folder: Path) -> dict[str, torch.Tensor]:
    weights = checkpoint.load(folder, with_replay=False).state["agent"]["policy"]
    assert isinstance(weights, dict)
    return weights


def here(*args: str) -> int:
    """The command in this process: what it does when it is not stopped needs none of its own."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_killed_and_resumed_ends_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["train", "fast_td3/pendulum", *SMALL, "--no-video", "--total-vec-steps", "80"]
    assert here(*args, "--folder", "whole") == 0

    def waits_for_its_end(*parts: Any) -> Any:
        for count, transition in enumerate(rollout(*parts)):
            if count == 60:
                threading.Event().wait()
            yield transition

    with monkeypatch.context() as patch:
        patch.setattr(synchronous, "rollout", waits_for_its_end)
        cut = start(tmp_path, *args, "--folder", "cut")
    cut.until((tmp_path / "cut" / "checkpoints" / "last.json").exists)
    cut.signal(signal.SIGKILL)
    assert cut.wait().code == -signal.SIGKILL
    assert checkpoint.load(tmp_path / "cut").step <= 60
    assert here("resume", "cut", "--no-video") == 0

    expected, got = policy_of(tmp_path / "whole"), policy_of(tmp_path / "cut")
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    lines = [
        (tmp_path / name / "metrics.jsonl").read_text().count("\n") for name in ("whole", "cut")
    ]
    assert lines[0] == lines[1] == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_says_how_to_go_on(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = ["--total-vec-steps", "1000000", "--checkpoint.every-vec-steps", "0", "--folder", "run"]
    args = ["train", "fast_td3/pendulum", *SMALL, "--evaluation.every-vec-steps", "0", *long]
    child = start(tmp_path, *args)
    child.until((tmp_path / "run" / "metrics.jsonl").exists)
    child.signal(number, group=False)
    outcome = child.wait()
    outcome.assert_clean(130)
    assert "interrupted and saved" in outcome.out
    assert "resume run" in outcome.out
    reached = checkpoint.load(tmp_path / "run").step
    assert reached > 0

    more = str(reached + 10)
    assert here("resume", "run", "--total-vec-steps", more, "--no-video") == 0
    assert checkpoint.load(tmp_path / "run").step == reached + 10


def test_a_run_without_a_checkpoint_starts_over_only_when_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folders.write_recipe(folder, small_recipe())
    (folder / "metrics.jsonl").write_text('{"vec_steps": 3}\n')
    with pytest.raises(UserError, match="stopped before its first checkpoint; add --restart"):
        resume(folder)
    result = resume(folder, restart=True)
    assert result.finished
    assert '"vec_steps": 3,' not in (folder / "metrics.jsonl").read_text()


def test_python_trains_resumes_and_loads(tmp_path: Path) -> None:
    first = train(small_recipe(), tmp_path / "run")
    assert first.finished
    assert first.counters.vec_steps == 20
    again = resume(tmp_path / "run", total_vec_steps=30)
    assert again.counters.vec_steps == 30
    assert folders.read_recipe(tmp_path / "run").total_vec_steps == 30
    policy, spec = load_policy(tmp_path / "run", which="last")
    obs = torch.zeros(5, *spec.obs_shape)
    expected = again.policy(Obs(obs, obs))
    assert torch.equal(policy(Obs(obs, obs)), expected)
    assert expected.shape == (5, 1)
    assert api.evaluate_run(tmp_path / "run", episodes=3).returns.shape == (3,)


def test_load_policy_takes_the_best_or_where_there_is_none_the_last(tmp_path: Path) -> None:
    train(small_recipe(), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "best.json").unlink()
    policy, spec = load_policy(tmp_path / "run")
    obs = torch.ones(2, *spec.obs_shape)
    assert torch.equal(
        policy(Obs(obs, obs)), load_policy(tmp_path / "run", "last").policy(Obs(obs, obs))
    )


def test_a_second_process_stays_out(tmp_path: Path) -> None:
    folders.write_recipe(tmp_path, small_recipe())
    with (
        folders.folder_lock(tmp_path),
        pytest.raises(UserError, match="another process is training"),
    ):
        resume(tmp_path, restart=True)
    assert not folders.has_checkpoint(tmp_path)


def test_a_recipe_that_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pendulum"):
        train(replace(small_recipe(), env=TensorConfig(task="pendulun")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_runs_in_one_second_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20300101-000000")
    first = folders.new_folder(small_recipe(), None)
    first.mkdir(parents=True)
    assert first == Path("runs/fast_td3-pendulum-seed0-20300101-000000")
    assert folders.new_folder(small_recipe(), None).name == f"{first.name}-2"


def test_commands_that_read_a_policy_take_the_best_of_several_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        train(replace(small_recipe(), seed=seed), tmp_path / f"seed-{seed}")
        pointer = tmp_path / f"seed-{seed}" / "checkpoints" / "best.json"
        pointer.write_text(json.dumps(json.loads(pointer.read_text()) | {"score": float(seed)}))
    assert finish_seeds(tmp_path, True, []) == 0
    out = capsys.readouterr().out
    assert f"compare {tmp_path}\n" in out
    assert f"evaluate {tmp_path / 'seed-1'}\n" in out
    assert here("evaluate", str(tmp_path), "--episodes", "1") == 0
    out, err = capsys.readouterr()
    assert f"best checkpoint of {tmp_path / 'seed-1'})" in out
    assert err == (
        f"fleetfoot: {tmp_path} holds several seeds; this is seed-1, which has the best evaluation of them.\n"
    )
    assert one_seed(tmp_path / "seed-0") == tmp_path / "seed-0"


def test_python_is_told_what_a_recipe_and_a_checkpoint_are(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"a recipe is needed, not 'fast_td3/pendulum'; recipes\.get"
    ):
        train("fast_td3/pendulum", tmp_path / "run")  # type: ignore[arg-type]
    folder = train(small_recipe(), tmp_path / "run").folder
    with pytest.raises(UserError, match="which must be 'best' or 'last', not 'newest'"):
        load_policy(folder, which="newest")  # type: ignore[arg-type]


def test_where_nothing_can_be_drawn_training_still_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fleetfoot.cli.train import finish

    result = train(small_recipe(), tmp_path / "run")
    for error, said in (
        (UserError("cannot draw here"), "cannot draw here"),
        (ZeroDivisionError("no\n  light"), "ZeroDivisionError: no light"),
        (ImportError(), "ImportError"),
        (KeyboardInterrupt(), "interrupted"),
    ):

        def blind(*args: object, error: BaseException = error) -> Path:
            raise error

        monkeypatch.setattr(api, "record_run", blind)
        assert finish(result, True, ["my_robot"]) == 0
        out, err = capsys.readouterr()
        assert err == f"fleetfoot: no video: {said}\n"
        assert "--import my_robot" in out
        assert out.startswith("filming the best policy (Ctrl-C skips it) ...\n")
        assert ("record" in out) == isinstance(error, KeyboardInterrupt)
        assert os.path.join("run", "checkpoints") in out
