"""Two processes as one run: they learn what one process learns from the whole batch, and resume and end together."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import checkpoint
from fleetfoot.api import evaluate_run, resume, train
from fleetfoot.cli.main import main
from fleetfoot.errors import UserError
from fleetfoot.explore import EpsilonLadderConfig
from fleetfoot.log import curve
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.run import ranks as ranks_module
from fleetfoot.run.ranks import ALONE, Ranks
from fleetfoot.run.sharded import adapt_state, rank_recipe
from support import ranks_worker
from support.forked import Child, preload
from support.ranks_worker import TOTAL
from support.runs import assert_same, small, tensors

TESTS = Path(__file__).parent.parent
SMALL = ["--device", "cpu", "--threads", "1", "--num-envs", "8", "--batch-size", "16"]
SMALL += ["--agent.num-atoms", "11", "--log.no-tensorboard", "--log.every-vec-steps", "10"]
SMALL += ["--evaluation.episodes", "2", "--evaluation.every-vec-steps", "0"]
SMALL += ["--checkpoint.every-vec-steps", "50"]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


class AtEnd:
    """What a program would do at its end, which a child of this process does not reach."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []

    def register(self, act: Callable[[], object]) -> None:
        self.acts.append(act)

    def unregister(self, act: Callable[[], object]) -> None:
        self.acts.remove(act)


def launch(act: Callable[[], object], place: Path) -> list[Child]:
    """Two processes that `act` as if torchrun had started them, without its messages and its supervision."""
    preload()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}

    def rank_acts(rank: int) -> None:
        number = str(rank)
        os.environ |= group | {"RANK": number, "LOCAL_RANK": number, "MASTER_PORT": str(port)}
        os.chdir(place)
        end: Any = AtEnd()
        vars(ranks_module)["atexit"] = end
        try:
            act()
        finally:
            for last in end.acts:
                last()

    return [Child(place, partial(rank_acts, rank)) for rank in range(2)]


def ends(children: list[Child], seconds: float = 120) -> list[tuple[int, str, str]]:
    outcomes = [child.wait(seconds) for child in children]
    assert not any(outcome.hung for outcome in outcomes), outcomes
    return [(outcome.code, outcome.out, outcome.err) for outcome in outcomes]


def fleetfoot(*args: str, cwd: Path) -> list[tuple[int, str, str]]:
    return ends(launch(lambda: main(list(args)), cwd))


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes ran `ranks_worker`."""
    folder = tmp_path_factory.mktemp("ranks")
    for code, _, err in ends(launch(lambda: ranks_worker.main(folder), folder), 300):
        assert code == 0, err
    return folder


@pytest.mark.parametrize("name", list(ranks_worker.CONFIGS))
def test_two_ranks_learn_what_one_process_learns_from_the_joint_batch(
    name: str, worked: Path
) -> None:
    first, second = (torch.load(worked / f"agents-{rank}.pt")[name] for rank in range(2))
    alone = ranks_worker.trained(name, ALONE)
    one, two, expected = (without_noise(state) for state in (first, second, alone))
    assert_same(one, two)
    started = ranks_worker.CONFIGS[name].build(
        ranks_worker.spec_of(name, 8),
        gamma=0.9,
        total_updates=50,
        seed=0,
        device=torch.device("cpu"),
    )
    begun = without_noise(started.state_dict())
    for key, value in expected.items():
        torch.testing.assert_close(one[key], value, rtol=1e-4, atol=2e-6)
        assert "net" not in key or "norm" in key or not torch.equal(begun[key], value), key


@pytest.mark.parametrize("name", list(ranks_worker.CONFIGS))
def test_statistics_are_those_of_one_process_that_saw_all_rows(name: str, worked: Path) -> None:
    one = tensors(torch.load(worked / "agents-0.pt")[name])
    expected = tensors(ranks_worker.trained(name, ALONE))
    names = [k for k in one if "norm" in k or "reward_scale" in k]
    assert any(k.endswith("count") for k in names)
    for key in names:
        torch.testing.assert_close(one[key], expected[key], rtol=1e-12, atol=1e-12)
        if key.endswith("norm.count"):
            assert one[key] == ranks_worker.ENVS * ranks_worker.STEPS


def without_noise(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {k: v for k, v in tensors(state).items() if "generator" not in k and "_noise" not in k}


@pytest.mark.parametrize("tag", ["fast_td3", "fast_sac"])
def test_a_run_of_two_ranks_goes_on_exactly(tag: str, worked: Path) -> None:
    """Rank 1 alone was asked to stop after step 61; both stopped after the same step, and resumed."""
    policies = [torch.load(worked / f"{tag}-policy-{rank}.pt") for rank in range(2)]
    assert all(torch.equal(policies[0][k], policies[1][k]) for k in policies[0])
    for rank in range(2):
        whole, parts = (
            checkpoint.load(worked / f"{tag}-{kind}", rank=rank).state
            for kind in ("whole", "parts")
        )
        assert whole["replay"] is not None
        assert whole["world"] == 2
        assert_same(tensors(whole), tensors(parts))
    first, second = (checkpoint.load(worked / f"{tag}-whole", rank=r).state for r in range(2))
    ring_0, ring_1 = (state["replay"]["ring"]["tensors"] for state in (first, second))
    assert not torch.equal(ring_0["reward"], ring_1["reward"]), "each rank has its own episodes"
    noise = [k for k in second["generators"] if k in first["agent"]]
    assert noise
    for key in noise:
        assert not torch.equal(first["agent"][key]["state"], second["generators"][key]["state"])


def test_the_log_counts_the_environments_of_all_ranks(worked: Path) -> None:
    lines = (worked / "fast_td3-whole" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["env_steps"] == TOTAL * 8
    assert [json.loads(line)["vec_steps"] for line in lines] == sorted(
        {*range(10, TOTAL + 1, 10), 35, 70, 105}
    )
    assert sum("eval/return" in json.loads(line) for line in lines) == 3


def test_a_run_of_two_ranks_goes_on_in_one_process(
    worked: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What does not depend on the number of processes continues; no update before the replay is warm again."""
    folder = worked / "fast_td3-parts"
    before = checkpoint.load(folder).state
    warmup = ranks_worker.recipe().pace.warmup_vec_steps
    result = resume(folder, total_vec_steps=TOTAL + warmup)
    assert capfd.readouterr().err.count("made with 2 processes and is resumed with 1") == 1
    after = checkpoint.load(folder).state
    assert result.counters.updates == before["updates"]
    assert "world" not in after
    for part in ("policy/net", "critic/net", "step_critic"):
        old, new = (
            {k: v for k, v in tensors(s["agent"]).items() if k.startswith(f"/{part}")}
            for s in (before, after)
        )
        assert old
        assert all(torch.equal(old[k], new[k]) for k in old)
    count = next(k for k in tensors(before) if k.endswith("norm.count"))
    assert tensors(after)[count] == tensors(before)[count] + warmup * 8
    more = resume(folder, total_vec_steps=TOTAL + 2 * warmup)
    assert more.counters.updates > result.counters.updates
    assert evaluate_run(folder, episodes=2).returns.shape == (2,)


def test_a_run_of_one_process_goes_on_in_two(tmp_path: Path) -> None:
    train(small(total_vec_steps=60), tmp_path / "run")
    (code, out, err), (other, *_) = fleetfoot(
        "resume", "run", "--total-vec-steps", "100", "--no-video", cwd=tmp_path
    )
    assert (code, other) == (0, 0), err
    assert err.count("made with 1 process and is resumed with 2") == 1
    assert out.count("finished; what to run next") == 1
    loaded = checkpoint.load(tmp_path / "run", rank=1)
    assert loaded.step == 100
    assert loaded.state["world"] == 2
    pace = small().pace
    held = pace.updates_after(60) + pace.updates_per_vec_step * (40 - pace.warmup_vec_steps)
    assert loaded.state["updates"] == held


def pendulum(folder: str, steps: int) -> list[str]:
    own = ["--folder", folder, "--total-vec-steps", str(steps), "--no-video"]
    return ["fast_td3/pendulum", *SMALL, *own]


def test_a_user_error_is_printed_once(tmp_path: Path) -> None:
    (code, _, err), (other, silent, nothing) = fleetfoot(
        "train", *pendulum("run", 50), "--no-such-option", cwd=tmp_path
    )
    assert (code, other) == (2, 0)
    assert err.startswith("fleetfoot: there is no option --no-such-option")
    assert err.count("\n") == 1
    assert (silent, nothing) == ("", "")
    assert not (tmp_path / "run").exists()


def test_an_error_of_all_ranks_leaves_nothing_behind(worked: Path) -> None:
    """The worker compared their messages."""
    assert not (worked / "odd").exists()
    assert not (worked / "spoiled" / "checkpoints").exists()


def test_an_error_of_one_rank_is_one_line(worked: Path) -> None:
    """The other one waits for it, loses contact, and is silent."""
    said = [(worked / f"said-{rank}.txt").read_text() for rank in range(2)]
    assert said[0] == ""
    assert said[1].startswith("rank 1: environment 0 of ")
    assert said[1].endswith("reward that is NaN or infinite; the last checkpoint is kept.")


def test_when_a_rank_dies_the_others_end_with_one_line(tmp_path: Path) -> None:
    first, second = launch(lambda: main(["train", *pendulum("run", 10**6)]), tmp_path)
    first.until((tmp_path / "run" / "checkpoints" / "last.json").exists)
    second.signal(signal.SIGKILL)
    (code, _, err), _ = ends([first, second])  # far sooner than torch's own limit of half an hour
    assert code == 2
    assert [line for line in err.splitlines() if line.startswith("fleetfoot: another process")]
    assert "Traceback" not in err
    assert checkpoint.load(tmp_path / "run").step > 0


@pytest.mark.slow
def test_ctrl_c_under_torchrun_saves_once(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "fleetfoot", "train", *pendulum("run", 10**6)]
    launcher = subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path / "run" / "checkpoints" / "last.json", launcher)
    saved = checkpoint.load(tmp_path / "run", with_replay=False).step
    launcher.send_signal(signal.SIGINT)
    try:
        out, err = launcher.communicate(timeout=180)
    finally:
        launcher.kill()
    assert out.count("interrupted and saved; to continue") == 1, err
    zero, one = (checkpoint.load(tmp_path / "run", rank=rank) for rank in range(2))
    assert zero.step == one.step >= saved
    assert zero.step % 8 == 0
    assert "replay" in zero.state
    assert "replay" in one.state


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_rank_gets_its_share() -> None:
    whole = small(explorer=EpsilonLadderConfig(), replay=ReplayConfig(capacity=801, n_step=3))
    shares = [rank_recipe(whole, Ranks(rank, 2, rank, 2)) for rank in range(2)]
    for rank, share in enumerate(shares):
        assert (share.num_envs, share.batch_size) == (4, 8)
        rows = share.off_policy_replay().capacity // share.num_envs
        assert rows == whole.off_policy_replay().capacity // whole.num_envs
        assert share.explorer == EpsilonLadderConfig(first=4 * rank, total=8)
        assert whole.seeds(rank) != whole.seeds(1 - rank)
    assert rank_recipe(whole, Ranks()) is whole
    in_gib = dataclasses.replace(whole, replay=ReplayConfig(capacity_gib=3.0))
    assert rank_recipe(in_gib, Ranks(0, 2, 0, 2)).off_policy_replay().capacity_gib == 1.5
    with pytest.raises(UserError, match="batch_size is 15, which 2 processes"):
        rank_recipe(dataclasses.replace(whole, batch_size=15), Ranks(0, 2, 0, 2))


def test_the_state_of_an_explorer_adapts_to_another_number_of_environments() -> None:
    initial = {
        "steps": 0,
        "std": torch.zeros(4),
        "random": {"device": "cpu", "state": torch.zeros(9)},
    }
    saved = {"steps": 7, "std": torch.ones(8), "random": {"device": "cpu", "state": torch.ones(9)}}
    adapted = adapt_state(saved, initial)
    assert adapted["steps"] == 7
    assert adapted["std"] is initial["std"]
    assert adapted["random"] is initial["random"]


@pytest.mark.learning
@pytest.mark.slow
def test_two_ranks_solve_the_pendulum(tmp_path: Path) -> None:
    own = ["--device", "cpu", "--threads", "1", "--total-vec-steps", "600", "--log.no-tensorboard"]
    results = fleetfoot(
        "train", "fast_td3/pendulum", *own, "--folder", "run", "--no-video", cwd=tmp_path
    )
    assert [code for code, *_ in results] == [0, 0]
    assert curve(tmp_path / "run")[-1].value >= -200
