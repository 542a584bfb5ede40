"""What a run folder says about how it was made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from fleetfoot import api, train
from fleetfoot.errors import Notice, UserError
from fleetfoot.run import provenance
from fleetfoot.run.provenance import NAME, commit, read_provenance, recorded
from support.runs import SpoiledConfig
from support.trust_recipes import tiny


def test_each_start_and_end_of_a_run_is_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/somebody/bin/fleetfoot", "train", "x y"])
    train(tiny(), tmp_path / "run")
    (first,) = read_provenance(tmp_path / "run")
    assert first["command"] == "fleetfoot train 'x y'"
    assert first["start"] <= first["end"]
    assert torch.__version__.startswith(first["versions"]["torch"])
    assert first["hardware"]["usable_cores"] >= 1
    assert str(Path.home()) not in (tmp_path / "run" / NAME).read_text()
    api.resume(tmp_path / "run", total_vec_steps=24)
    assert read_provenance(tmp_path / "run")[0] == first
    assert len(read_provenance(tmp_path / "run")) == 2


def test_each_of_several_seeds_has_it(tmp_path: Path) -> None:
    api.train_seeds(tiny(), 2, tmp_path / "seeds")
    for seed in (0, 1):
        assert "end" in read_provenance(tmp_path / "seeds" / f"seed-{seed}")[0]


def test_one_that_was_killed_has_no_end(tmp_path: Path) -> None:
    with recorded(tmp_path):
        assert "end" not in read_provenance(tmp_path)[0]
    with pytest.raises(KeyboardInterrupt), recorded(tmp_path):
        raise KeyboardInterrupt
    assert ["end" in entry for entry in read_provenance(tmp_path)] == [True, True]


def test_a_run_that_fails_at_its_start_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("run", "mine"):
        with pytest.raises(UserError):
            train(tiny(env=SpoiledConfig(at=1)), tmp_path / name)
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"entries": 3}', '{"entries": [1, null]}', ""])
def test_a_damaged_file_is_begun_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_provenance(tmp_path) == []
    with recorded(tmp_path):
        pass
    assert len(read_provenance(tmp_path)) == 1


def test_the_file_stays_small(tmp_path: Path) -> None:
    entries = [{"start": str(k)} for k in range(500)]
    (tmp_path / NAME).write_text(json.dumps({"entries": entries}))
    with recorded(tmp_path):
        pass
    assert len(read_provenance(tmp_path)) == provenance.MOST_ENTRIES


def test_what_was_learned_counts_if_the_end_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise UserError("the disk is full")

    with pytest.warns(Notice, match="the disk is full"), recorded(tmp_path):
        monkeypatch.setattr(provenance, "write_text", full)


def test_the_commit_is_that_of_the_source(tmp_path: Path) -> None:
    assert commit(tmp_path) is None  # nobody's repository, or one that does not hold this folder
