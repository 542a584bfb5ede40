"""The benchmarks through the command: at sizes that take no time, the figures must be sane."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fleetfoot
from benchmarks import command, curves
from benchmarks.speed import learner as bench_learner
from benchmarks.speed.apex import bench_apex
from benchmarks.studies import pql, split_learners
from fleetfoot import recipes
from fleetfoot.cli import bench as cli_bench
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.run import build as run
from support.command import call, refusal

pytestmark = pytest.mark.usefixtures("elsewhere")


def measured(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """What `fleetfoot bench ARGS` writes."""
    code, out, err = call(capsys, "bench", *args, "--out", "results/x.json")
    assert code == 0, err
    assert "written to results/x.json" in out.replace("\n", "")
    body: dict[str, Any] = json.loads(Path("results/x.json").read_text())
    assert body["benchmark"] == args[0]
    assert torch.__version__.startswith(body["provenance"]["versions"]["torch"])
    return body


def positive(row: dict[str, Any], *names: str) -> bool:
    return all(math.isfinite(row[name]) and row[name] > 0 for name in names)


def fake(*, steps: int = 3, tasks: tuple[str, ...] = ("a",)) -> Iterator[dict[str, object]]:
    """Count."""
    yield {"rows": []}
    yield {"rows": [{"name": name, "speed": steps * 1000.0} for name in tasks]}
    if steps > 100:
        raise UserError("too many")


@pytest.fixture
def _a_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.BENCHMARKS, "fake", ("command:fake", "a fake"))
    monkeypatch.setattr(command, "fake", fake, raising=False)


@pytest.mark.usefixtures("_a_fake")
def test_figures_are_written_with_their_provenance(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "bench", "fake", "--steps", "12", "--out", "x/fake.json")
    assert code == 0
    assert "12,000" in out
    written = json.loads(Path("x/fake.json").read_text())
    assert written["arguments"] == {"steps": 12, "tasks": ["a"]}
    assert written["result"]["rows"] == [{"name": "a", "speed": 12000.0}]
    assert written["provenance"]["versions"]["torch"]
    assert written["provenance"]["hardware"]["usable_cores"] >= 1
    assert "--stepz" in refusal(capsys, "bench", "fake", "--stepz", "3")


@pytest.mark.usefixtures("_a_fake")
def test_what_was_measured_before_a_failure_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert "too many" in refusal(capsys, "bench", "fake", "--steps", "200", "--out", "x.json")
    assert json.loads(Path("x.json").read_text())["result"]["rows"][0]["speed"] == 200_000


def test_every_benchmark_can_be_asked_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    """So its module imports, and its parameters can stand on a command line."""
    code, out, _ = call(capsys, "bench")
    assert code == 0
    for name in command.BENCHMARKS:
        assert f"\n  {name} " in out
        code, help_text, _ = call(capsys, "bench", name, "--help")
        assert code == 0
        assert "--out" in help_text


def test_without_the_source_one_line_says_where_the_benchmarks_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "lib" / "python" / "site-packages" / "fleetfoot" / "__init__.py"
    monkeypatch.setattr(fleetfoot, "__file__", str(installed))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not Path(p, "benchmarks").is_dir()])
    assert "come with the source" in refusal(capsys, "bench", "learner")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "command.py").touch()
    assert cli_bench.checkout() == tmp_path, "the current folder is a checkout now"


@pytest.mark.parametrize("path", sorted(command.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_says_what_it_was_made_with(path: Path) -> None:
    body = json.loads(path.read_text())
    assert body.keys() == {"benchmark", "arguments", "provenance", "result"}
    assert body["provenance"]["hardware"]
    assert body["provenance"]["versions"]["torch"]


def test_the_learner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler takes half a minute.
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *args: function(*args))
    options = "--sizes tiny --modes eager --precision float32 --updates 4"
    body = measured(capsys, "learner", *options.split(), "--check", "--device", "cpu")
    assert body["arguments"]["updates"] == 4
    checks = body["result"]["same_weights"]
    assert [check["precision"] for check in checks] == ["float32", "tf32", "bf16"]
    for check in checks:
        assert check["compared"] == "compiled with eager"
        assert check["ratio"] <= check["allowed"] < 1
        assert positive(check, "mean_way", "updates")
    (row,) = body["result"]["updates"]
    assert row["mode"] == "eager"
    assert positive(row, "ms_per_update", "TFLOP_per_update", "seconds_until_ready")
    rate = row["TFLOP_per_update"] / (row["ms_per_update"] / 1e3)
    assert row["TFLOP/s"] == pytest.approx(rate)


def test_the_check_refuses_weights_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    true_build = bench_learner.build

    def build(size: Any, mode: Any, precision: Any, device: Any) -> Any:
        agent, replay, learn = true_build(size, "eager", precision, device)
        monkeypatch.setattr(type(learn), "mode", mode)
        if mode != "eager":
            agent.critic_noise.generator.manual_seed(99)
            replay.sampler.generator.manual_seed(99)  # type: ignore[attr-defined]
        return agent, replay, learn

    monkeypatch.setattr(bench_learner, "build", build)
    with pytest.raises(UserError, match="compiled updates differ from eager ones at tiny"):
        bench_learner.compare("tiny", "float32", torch.device("cpu"))


def test_floating_point_operations_by_hand() -> None:
    """One linear layer each: obs 5 (7 for the critic), 2 actions, 11 atoms, 2 heads, 64 rows."""
    size = bench_learner.SIZES["tiny"]
    agent_config: Any = size.agent
    flat = replace(agent_config, policy_net=MLPConfig(hidden=()), critic_net=MLPConfig(hidden=()))
    agent, *_ = bench_learner.build(
        replace(size, agent=flat), "eager", "float32", torch.device("cpu")
    )
    critic, policy = 2 * (7 + 2) * 11, 5 * 2
    # Forward: the policy once and both critics; backward: the critic's weights.
    critic_update = policy + 2 * critic + critic
    # Forward through both; backward: what enters the critic, and the policy's weights.
    policy_update = 2 * critic + 2 * policy
    wanted = 2 * 64 * (critic_update + policy_update / 2)
    assert bench_learner.flops_of_update(agent, 64) == wanted


def test_the_loop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "usable_cores", lambda: 1)  # as all tests
    options = "--recipe fast_td3/pendulum --num-envs 4 --updates 1 --vec-steps 4 --device cpu"
    body = measured(capsys, "loop", *options.split())
    rows = body["result"]["loop"]
    assert [row["overlap"] for row in rows] == [False, True]
    for row in rows:
        assert (row["num_envs"], row["updates_per_vec_step"]) == (4, 1.0)
        assert positive(row, "vec_steps_per_second", "simulate_ms", "act_ms", "append_ms")
        assert positive(row, "sample_ms", "update_ms", "seconds_until_ready")
        assert row["env_steps_per_second"] == pytest.approx(4 * row["vec_steps_per_second"])
        assert row["iteration_ms"] == pytest.approx(1e3 / row["vec_steps_per_second"])
        assert "peak_GiB" not in row


def test_the_loop_knows_recipes_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fast_td3/pendulum" in refusal(capsys, "bench", "loop", "--recipe", "fast_td3/pendulm")


def test_an_actor_is_measured_beside_the_bare_environment() -> None:
    result = bench_apex(num_envs=2, seconds=0.3, lines=4, rounds=1)
    speeds = result["frames_per_second_per_core"]
    assert set(speeds) == {"bare", "actor_float32", "actor_bf16"}
    for name, ratio in result["ratio_to_bare"].items():
        assert ratio == speeds[name] / speeds["bare"]
    # One new frame per row, and the first stacks of a block.
    frame = 84 * 84
    assert result["bytes_sent_per_row"]["float32"] >= frame * (4 + 4) / 4
    assert result["bytes_sent_per_row"]["float32"] < frame * 8
    assert result["passed"] == (max(result["ratio_to_bare"].values()) >= result["bar"])


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="bench apex needs"):
        bench_apex(num_envs=0)


def test_curves_of_a_recipe_are_trained_once_and_read_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(recipes.get("fast_td3/pendulum"), total_vec_steps=60, num_envs=4, threads=1)
    monkeypatch.setattr(recipes, "get", lambda name: tiny)
    options = ["fast_td3/pendulum", "--seeds", "0", "1"]
    first = measured(capsys, "curves", *options)["result"]
    assert [seed["seed"] for seed in first["seeds"]] == [0, 1]
    assert first["seeds"][0]["vec_steps"][-1] == 60
    assert first["seeds"][0]["env_steps"][-1] == 240
    assert first["seeds"][0]["return"] != first["seeds"][1]["return"]
    mean = sum(seed["return"][-1] for seed in first["seeds"]) / 2
    assert first["final_return_mean"] == pytest.approx(mean)
    monkeypatch.setattr(curves, "train", None)
    again = measured(capsys, "curves", *options, "--picture", "curve.png")["result"]
    assert again == first
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    refused = refusal(capsys, "bench", "curves", "x", "--published", "12")
    assert "needs points such as" in refused


def test_a_study_refuses_a_run_that_was_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(recipes.get("pql/pendulum"), num_envs=4, batch_size=8, threads=1)
    monkeypatch.setattr(recipes, "get", lambda name: tiny)
    monkeypatch.setitem(pql.STUDIES, "batch", lambda base: {"as it is": base})
    options = ["batch", "--seeds", "0", "--vec-steps", "40", "--evaluations", "2"]
    result = measured(capsys, "pql", *options, "--picture", "pql.png")["result"]
    (row,) = result["rows"]
    assert row["by_seed"]["0"]["vec_steps"] == [20, 40]
    assert row["final_return_mean"] == row["by_seed"]["0"]["return"][-1]
    assert Path("pql.png").exists()
    (folder,) = Path("runs/pql_studies").iterdir()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-2]))
    assert "was stopped" in refusal(capsys, "bench", "pql", *options)


def test_seconds_to_a_return(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every topology stops at the first evaluation that reaches the target, here any."""
    base = recipes.get("fast_td3/pendulum")
    briefly = replace(base.evaluation, episodes=2, max_vec_steps=20)
    task = split_learners.Task(replace(base, evaluation=briefly), target=0.0, every=25, steps=20)
    monkeypatch.setitem(split_learners.TASKS, "pendulum", lambda: task)
    options = "--tasks pendulum --seeds 0 --target -3000 --num-envs 4 --batch-size 8 --updates 1"
    body = measured(capsys, "split-learners", *options.split(), "--device", "cpu")
    rows = body["result"]["runs"]
    assert [row["topology"] for row in rows] == ["synchronous", "overlap", "split_learners"]
    for row in rows:
        assert "error" not in row
        assert row["seconds_to_target"] == row["curve"][-1]["seconds"] == 0
        assert row["env_steps"] == 4 * row["curve"][-1]["vec_steps"]
