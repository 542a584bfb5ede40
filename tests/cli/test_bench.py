"""Benchmarks of the learner and the loop through the command: at sizes that take no time, the figures must be sane."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.test_main import call, refusal
from fleetfoot.bench import learner as bench_learner
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.run import build as run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def measured(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """What `fleetfoot bench ARGS` writes."""
    code, out, err = call(capsys, "bench", *args, "--out", "found/x.json")
    assert code == 0, err
    assert "written to found/x.json" in out.replace("\n", "")
    body: dict[str, Any] = json.loads(Path("found/x.json").read_text())
    assert body["benchmark"] == args[0]
    assert body["provenance"]["versions"]["torch"] == torch.__version__
    return body


def positive(row: dict[str, Any], *names: str) -> bool:
    return all(math.isfinite(row[name]) and row[name] > 0 for name in names)


def test_the_learner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler takes half a minute.
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: lambda *args: function(*args))
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
    flat = replace(size.agent, policy_net=MLPConfig(hidden=()), critic_net=MLPConfig(hidden=()))
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
