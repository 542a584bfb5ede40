"""The command as users meet it: names, mistakes, exit codes."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fleetfoot import recipes
from fleetfoot.cli.main import COMMANDS, Output, as_printed, main, take_imports
from fleetfoot.cli.run_folder import command_line
from fleetfoot.errors import Notice, UserError
from fleetfoot.run import folder as folders
from fleetfoot.run.stored import write_stored
from support.command import call, refusal

TINY = "fast_td3/pendulum"


pytestmark = pytest.mark.usefixtures("elsewhere")


def test_without_arguments_there_is_a_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys)
    assert code == 0
    assert out.count("\n") < 30
    assert all(name in out for name in COMMANDS)


def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys; from fleetfoot.cli.main import main\n"
        "for args in (['--help'], ['list', '--help'], ['evaluate', '--help'], ['doctor', '--help']):\n"
        "    try: main(args)\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "print('torch' in sys.modules, 'mujoco' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["trian"], "Did you mean train"),  # codespell:ignore trian
        (["train", "sac"], "There are sac/pendulum"),
        (["train", "ppo"], "There are ppo/pendulum, "),
        (["train", TINY, "--agent", "FastSAC"], "did you mean FastSACConfig?"),
        (["train", TINY, "--env", "Pendulum-v1"], "--env GymConfig --env.id Pendulum-v1; "),
        (["train", TINY, "--learning-rate", "3"], "Did you mean --agent.policy-optim.lr or "),
        (
            ["train", "--seed", "3", TINY],
            f"unexpected argument '{TINY}': names come before options",
        ),
        (
            ["train", TINY, "--threads", "1", "--num-envs", f"{10**15}"],  # on no machine
            "1,000,000,000,000,000 environments do not fit",
        ),
        (["compare", "runs", "--at", "1e30"], "--at: '1e30' is not a whole number (see "),
        (["watch", ".", "--port", "0x"], "--port: '0x' is not a whole number (see "),
        (["train", "fast_td3/pendulm"], "fast_td3/pendulum"),
        (["train", TINY, "--num-env", "3"], "--num-envs"),
        (["train", TINY, "--agent.gama", "3"], "there is no option --agent.gama"),
        (["train", TINY, "--num-envs", "abc"], "'abc' is not a whole number"),
        (["train", TINY, "--num-envs", "0"], "num_envs must be at least 1"),
        (
            ["train", TINY, "--threads", "1", "--batch-size", "99999999999"],
            "a batch of 99,999,999,999 rows needs",
        ),
        (["train", TINY, "--batch-size", "99999999999", "--dry-run"], "lower --batch-size"),
        (["train", TINY, "--threads", "100000"], "threads must be at most 1,024, not 100,000"),
        (["train", TINY, "--device", "tpu9"], "device 'tpu9' is not known"),
        (["train", TINY, "--agent.policy-net.hidden"], "hidden needs at least one value"),
        (["train", TINY, "--evaluation.every-vec-steps", "-5"], "must be at least 0, not -5"),
        (
            ["train", TINY, "--replay.capacity", "9", "--replay.capacity-gib=1"],
            "--replay.capacity and --replay.capacity-gib set the same thing",
        ),
        (["train", TINY, "--env.task", "pendulun"], "pendulum"),
        (["train", "fast_td3/halfcheetah", "--env.task", "Walker3d-v5"], "Walker2d-v5"),
        (["train", TINY, "--env", "Gym"], "it can be AtariConfig, "),
        (["train", TINY, "--precision", "fp8"], "'fp8'"),
        (["train", "nowhere:recipe"], "there is no Python module 'nowhere'"),
        (["list", "--import", "nowhere"], "there is no Python module 'nowhere'"),
        (["list", "--import"], "--import needs the name"),
        (["list", "robots"], "robots"),
        (["list", "--jsn"], "there is no option --jsn. Did you mean --json"),
        (["list", "--foo=3", "recipes"], "there is no option --foo."),
        (["evaluate"], "which run? fleetfoot evaluate RUN"),
        (["evaluate", "--episodes", "2", "run"], "which run? It comes before the options: "),
        (["record", "runs/none"], "there is no run folder runs/none"),
        (["bench", "envs"], "Did you mean env"),
    ],
)
def test_a_mistake_gets_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert says in refusal(capsys, *args)
    assert not Path("runs").exists() or not any(Path("runs").iterdir())


def test_what_is_in_the_way_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/recipe.json").write_text("{}")
    assert "give its folder, run." in refusal(capsys, "resume", "run/recipe.json")
    Path("runs").mkdir()
    Path("run").rename("runs/mine")
    assert "runs/min. Did you mean runs/mine?" in refusal(capsys, "resume", "runs/min")
    assert "runs/zzz. The newest one is runs/mine." in refusal(capsys, "resume", "runs/zzz")
    os.symlink("nowhere", "dead")
    said = refusal(capsys, "train", TINY, "--folder", "dead")
    assert "cannot write dead: it is a link to something that does not exist; remove it" in said


def test_a_command_to_copy_finds_the_modules_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my modules/mine").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["my modules", "of something else"]))
    said = command_line("evaluate", Path("runs/a"), imports=["mine.robot"])
    assert said.startswith("PYTHONPATH='my modules' ")
    assert said.endswith("evaluate runs/a --import mine.robot")
    said = command_line("evaluate", Path("runs/a"), imports=["installed"])
    assert not said.startswith("PYTHONPATH")


def test_a_list_in_a_pipe_has_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", "recipes")
    assert code == 0
    assert sum(line.strip().startswith("flash_sac/t1 ") for line in out.splitlines()) == 1
    assert len([line for line in out.splitlines() if line.strip()]) <= len(recipes.names()) + 20


def test_memory_that_runs_out_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(args: list[str]) -> int:
        raise RuntimeError(args[0])

    monkeypatch.setattr("fleetfoot.cli.main.dispatch", fails)
    cpu = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes."
    said = refusal(capsys, cpu)
    assert "memory has run out (2,048.0 MiB more were asked for) (test_main.py:" in said
    assert "--batch-size" not in said  # the command has no such option
    with pytest.raises(RuntimeError, match="another"):
        main(["another"])

    def on_a_gpu(args: list[str]) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0")

    monkeypatch.setattr("fleetfoot.cli.main.dispatch", on_a_gpu)
    said = refusal(capsys, "train")
    assert "memory has run out (20.00 GiB more were asked for) (test_main.py:" in said
    assert "use a smaller --batch-size" in said


def test_a_recipe_for_a_gpu_says_that_it_is_slow_without_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise UserError("enough")

    monkeypatch.setattr("fleetfoot.api.train", stopped)
    code, _, err = call(capsys, "train", "flash_sac/t1", "--device", "cpu")
    assert (code, err.splitlines()[1]) == (2, "fleetfoot: enough")
    assert err.startswith("fleetfoot: flash_sac/t1 is made for a GPU and slow on CPU cores")
    assert refusal(capsys, "train", TINY) == "fleetfoot: enough\n"


def test_a_notice_is_one_line_and_other_warnings_are_as_ever() -> None:
    place = ("learner.py", 7)
    assert as_printed("it runs eagerly.", Notice, *place) == "fleetfoot: it runs eagerly.\n"
    assert as_printed("old", DeprecationWarning, *place).startswith("learner.py:7: Deprecation")


def test_a_folder_that_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    for command in ("evaluate", "record", "resume"):
        assert "is not a run folder" in refusal(capsys, command, "empty")
    write_stored(Path("empty/recipe.json"), "recipe", {"part": "NoSuchPart"})
    assert "--import MODULE" in refusal(capsys, "evaluate", "empty")
    # A field that another version had: the line names the file, since no flag was wrong.
    write_stored(Path("empty/recipe.json"), "recipe", {"part": "AsSampledConfig", "old": 1})
    line = refusal(capsys, "resume", "empty")
    assert "empty/recipe.json: AsSampledConfig has no field 'old'" in line
    Path("empty/recipe.json").write_text('{"part": "Rec')
    assert "cannot be read as JSON" in refusal(capsys, "resume", "empty")


def test_train_help_shows_the_recipe_that_was_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "train", TINY, "--help")
    assert code == 0
    recipe = recipes.get(TINY)
    text = " ".join(out.split())
    assert f"Environments stepped together (N). (default: {recipe.num_envs})" in text
    assert "--env.task STR" in text
    assert "(default: pendulum)" in text
    assert "--replay." in text
    assert "--agent." in text


def test_list_names_recipes_and_environments(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list")
    assert code == 0
    for name in (*recipes.names(), "HalfCheetah-v5", "pendulum"):
        assert name in out
    _, out, _ = call(capsys, "list", "recipes")
    assert recipes.DEFAULT in out
    assert "MuJoCoConfig" not in out
    _, out, _ = call(capsys, "list", "environments")
    assert recipes.DEFAULT not in out


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert [row["name"] for row in listed["recipes"]] == recipes.names()
    first = next(row for row in listed["recipes"] if row["name"] == TINY)
    assert first["description"] == recipes.describe(TINY)
    assert first["environment"]["part"] == "TensorConfig"
    assert first["environment"]["task"] == "pendulum"
    options = {row["part"]: row["option"] for row in listed["environments"]}
    assert options["GymConfig"] == "--env.id"
    _, out, _ = call(capsys, "list", "recipes", "--json")
    assert json.loads(out) == listed["recipes"]
    for _ in range(2):  # listing them may import packages that register more
        _, out, _ = call(capsys, "list", "--json", "environments")
        assert json.loads(out) == listed["environments"]


def test_doctor_examines_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "doctor")
    assert code == 0  # what training needs is here, or this test would not run
    for word in ("python", "torch", "mujoco", "gymnasium", "rendering", "usable cores"):
        assert word in out


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetfoot import extras
    from fleetfoot.cli import doctor

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        assert doctor.compiler()[0].missing == "apt-get install g++"
    monkeypatch.setattr(extras, "installed", lambda one: None)
    needed = {finding.what: finding for finding in doctor.package()}
    assert needed["mujoco"].missing.startswith("pip install 'mujoco>=")
    assert needed["mujoco"].needed
    found = {finding.what: finding.missing for finding in doctor.optional()}
    assert set(found) == {f"[{name}]" for name in extras.names()}
    assert found["[atari]"].startswith("pip install 'ale-py>=")
    assert all(line.startswith("pip install ") for line in found.values())


@pytest.mark.parametrize("broken", [False, True], ids=["missing", "broken"])
def test_doctor_works_without_torch(broken: bool) -> None:
    """As where torch has no build for this Python, or cannot find one of its libraries."""
    error = "ImportError('libcudnn.so.9: no such file')" if broken else "ModuleNotFoundError(name)"
    script = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == 'torch': raise {error}\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from fleetfoot import extras\n"
        "there = extras.installed\n"
        f"extras.installed = lambda one: None if one.name == 'torch' and not {broken} else there(one)\n"
        "from fleetfoot.cli.main import main; main(['doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert not done.stderr
    fix = "--force-reinstall torch" if broken else "torch: pip install 'torch>="
    assert fix in done.stdout
    assert ("libcudnn" in done.stdout) == broken
    assert "mujoco" in done.stdout


def test_output_outlives_its_stream() -> None:
    """As where a program closes what it gave, and Python then ends the object, which flushes it."""
    stream = io.StringIO()
    output = Output(stream)
    output.write("a")
    stream.close()
    output.flush()
    output.close()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_replaces_what_an_encoding_lacks(encoding: str) -> None:
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding=encoding))
    output.write("1 ┤▁█\n")
    output.flush()
    assert raw.getvalue() == b"1 ???\n"


def test_the_command_works_with_closed_streams() -> None:
    script = (
        "import sys; from fleetfoot.cli.main import main\n"
        "sys.stdout = sys.stderr = None\n"
        "main(['--version'])"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_imports_are_taken_from_anywhere() -> None:
    assert take_imports(["a", "--import", "m", "b", "--import=n"]) == (["m", "n"], ["a", "b"])


def test_own_module_brings_a_recipe_and_parts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "own_robot_module.py").write_text(
        "from dataclasses import replace\n"
        "from fleetfoot import recipes\n"
        f"mine = replace(recipes.get({TINY!r}), name='mine', num_envs=7)\n"
        "def made():\n    return replace(mine, num_envs=9)\n"
        "number = 3\n"
    )
    for attribute, value in (("mine", 7), ("made", 9)):
        _, out, _ = call(capsys, "train", f"own_robot_module:{attribute}", "--help")
        assert f"(default: {value})" in out
    assert "its recipes: mine" in refusal(capsys, "train", "own_robot_module:yours")
    assert "not a Recipe" in refusal(capsys, "train", "own_robot_module:number")


def test_a_folder_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("used").mkdir()
    Path("used/notes.txt").write_text("mine")
    assert "exists and is not empty" in refusal(capsys, "train", TINY, "--folder", "used")
    Path("used/recipe.json").write_text("{}")
    assert "fleetfoot resume used" in refusal(capsys, "train", TINY, "--folder", "used")


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("/sys/x", "cannot write /sys/x"),  # not even for root
        ("notes.txt", "notes.txt is a file"),
        ("notes.txt/run", "Not a directory"),
        ("n" * 300, "File name too long"),
    ],
)
@pytest.mark.parametrize("seeds", [(), ("--seeds", "2")])
def test_a_folder_that_cannot_be_made_gets_one_line(
    capsys: pytest.CaptureFixture[str], folder: str, says: str, seeds: tuple[str, ...]
) -> None:
    Path("notes.txt").write_text("mine")
    name = "fast_sac/pendulum"
    assert says in refusal(capsys, "train", name, "--no-video", *seeds, "--folder", folder)
    assert Path("notes.txt").read_text() == "mine"


def test_a_full_disk_gets_one_line_and_leaves_no_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    said = refusal(capsys, "train", TINY, "--no-video", "--folder", "run")
    assert said == "fleetfoot: cannot write run/recipe.json: No space left on device.\n"
    assert not Path("run").exists()


def test_a_run_that_cannot_be_written_to_is_not_resumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("run").mkdir()
    folders.write_recipe(Path("run"), recipes.get(TINY))

    def no_locks(descriptor: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folders, "lock_descriptor", no_locks)
    assert "cannot write run: No locks available" in refusal(capsys, "resume", "run", "--restart")


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_goes_to_json_and_back(name: str, tmp_path: Path) -> None:
    recipe = recipes.get(name)
    folders.write_recipe(tmp_path, recipe)
    assert folders.read_recipe(tmp_path) == recipe
    assert json.loads((tmp_path / "recipe.json").read_text())["name"] == recipe.name
