"""`fleetfoot push` and `pull`, against a local imitation of Hugging Face. The real one was never reached."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import api, hub
from support.command import call, refusal
from support.extras import needs
from support.fake_hub import TOKEN, FakeHub, fake_hub
from support.runs import tensors
from support.trust_recipes import tiny

needs("huggingface_hub")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "run"
    api.train(tiny(), folder)
    api.record_run(folder, seconds=0.2)
    return folder


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with fake_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        yield running
        assert running.unknown == []


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return tensors(api.load_policy(folder).policy.network.state_dict())


def test_a_policy_that_was_pushed_comes_back(
    trained: Path, server: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "push", str(trained), "lab/walker", "--message", "first")
    assert (code, err) == (0, "")
    assert f"{server.address}/lab/walker" in out
    assert server.private == {"lab/walker": True}
    assert server.messages == ["first"]
    stored = server.repos["lab/walker"]
    assert {"README.md", "recipe.json", "spec.json", "metrics.jsonl"} <= set(stored)
    assert not [name for name in stored if "replay" in name or "last" in name]
    assert b"fleetfoot pull lab/walker" in stored["README.md"]
    code, out, err = call(capsys, "pull", "lab/walker")
    assert (code, err) == (0, "")
    assert "evaluate runs/walker" in out
    before, after = weights(trained), weights(Path("runs/walker"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["walker"]
    assert api.evaluate_run("runs/walker", episodes=1).returns.isfinite().all()


def test_a_second_push_replaces_the_first(trained: Path, tmp_path: Path, server: FakeHub) -> None:
    other = tmp_path / "other"
    api.train(replace(tiny(seed=3), total_vec_steps=30), other)
    hub.push(other, "lab/walker", public=True)
    assert server.private == {"lab/walker": False}
    hub.push(trained, "lab/walker")
    ours = [str(path) for path in hub.to_push(trained)]
    assert sorted(server.repos["lab/walker"]) == sorted([*ours, "README.md"])


def test_only_the_files_of_a_run_are_taken(trained: Path, server: FakeHub) -> None:
    hub.push(trained, "lab/walker")
    known = set(server.repos["lab/walker"]) - {"README.md"}
    for name in (
        "../evil.txt",
        "evil.py",
        ".lock",
        "checkpoints/../../evil.json",
        "checkpoints/best-000000001/evil.pkl",
        "videos/evil.html",
        "videos/../evil.mp4",
    ):
        server.repos["lab/walker"][name] = b"evil"
    hub.pull("lab/walker", Path("mine"))
    found = {str(p.relative_to("mine")) for p in Path("mine").rglob("*") if p.is_file()}
    assert found == known
    assert not list(Path().rglob("*evil*"))


def test_a_damaged_policy_leaves_nothing(
    trained: Path, server: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.push(trained, "lab/walker")
    name = next(n for n in server.repos["lab/walker"] if n.endswith("state.safetensors"))
    data = bytearray(server.repos["lab/walker"][name])
    data[len(data) // 2] ^= 1
    server.repos["lab/walker"][name] = bytes(data)
    said = refusal(capsys, "pull", "lab/walker")
    assert "lab/walker" in said
    assert ".partial" not in said
    assert list(Path("runs").iterdir()) == []


def test_too_much_is_refused_before_it_is_downloaded(
    trained: Path, server: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.push(trained, "lab/walker")
    server.sizes["metrics.jsonl"] = 1 << 40
    assert "more than a run may have" in refusal(capsys, "pull", "lab/walker")
    server.sizes["metrics.jsonl"] = -1
    assert "does not say how large" in refusal(capsys, "pull", "lab/walker")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["push"], "which run? fleetfoot push RUN"),
        (["push", "nowhere", "lab/x"], "there is no run folder nowhere"),
        (["push", "RUN"], "to which repository?"),
        (["push", "RUN", "walker"], "write USER/NAME"),
        (["push", "RUN", "../x/y"], "write USER/NAME"),
        (["push", "empty", "lab/x"], "is not a run folder"),
        (["pull"], "from which repository?"),
        (["pull", "http://x/y"], "write USER/NAME"),
        (["pull", "lab/nothing"], "there is no such repository or revision"),
        (["pull", "lab/other"], "has no fleetfoot run"),
        (["pull", "lab/other", "--folder", "full"], "exists and is not empty"),
        (["pull", "lab/other", "--revision", "none"], "there is no such repository or revision"),
    ],
)
def test_mistakes_get_one_line(
    args: list[str],
    says: str,
    trained: Path,
    server: FakeHub,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/file").write_text("")
    server.repos["lab/other"], server.private["lab/other"] = {"model.bin": b""}, False
    words = [str(trained) if word == "RUN" else word for word in args]
    assert says in refusal(capsys, *words)


def test_without_a_token_a_server_or_the_library(
    trained: Path,
    server: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "you are not logged in" in refusal(capsys, "push", str(trained), "lab/x")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert "Hugging Face, lab/x: " in refusal(capsys, "pull", "lab/x")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "push and pull need huggingface_hub: pip install " in refusal(capsys, "pull", "lab/x")


def test_a_run_without_an_evaluation_has_nothing_to_push(
    tmp_path: Path, server: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    api.train(tiny(), folder)
    pointer = folder / "checkpoints" / "best.json"
    best = folder / "checkpoints" / json.loads(pointer.read_text().splitlines()[-1])["folder"]
    best.rename(tmp_path / "elsewhere")
    assert best.name in refusal(capsys, "push", str(folder), "lab/x")
    pointer.unlink()
    assert "has no best checkpoint to push" in refusal(capsys, "push", str(folder), "lab/x")


def test_the_card_is_valid_yaml_and_tells_the_return(trained: Path, server: FakeHub) -> None:
    from huggingface_hub import ModelCard

    hub.push(trained, "lab/walker")
    card: Any = ModelCard(server.repos["lab/walker"]["README.md"].decode())
    score = json.loads((trained / "checkpoints" / "best.json").read_text())["score"]
    told = card.data.to_dict()
    metrics = told["model-index"][0]["results"][0]["metrics"]
    assert metrics[0]["value"] == pytest.approx(score)
    assert told["library_name"] == "fleetfoot"
