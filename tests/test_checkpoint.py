from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fleetfoot.checkpoint import Checkpoint, CheckpointConfig, load, pack, read, unpack
from fleetfoot.checkpoint import write as writing
from fleetfoot.checkpoint.read import seal
from fleetfoot.checkpoint.tree import DTYPES
from fleetfoot.checkpoint.version import VERSION
from fleetfoot.config import from_json, to_json
from fleetfoot.errors import UserError

RECIPE = {"part": "Recipe", "seed": 1, "gamma": 0.99}


def same(a: Any, b: Any) -> bool:
    """Equal in structure, types, order of keys and every bit of every tensor."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        raw = [t.detach().resolve_conj().reshape(-1).contiguous().view(torch.uint8) for t in (a, b)]
        return torch.equal(raw[0], raw[1])
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        keys = [(type(k), k) for k in a] == [(type(k), k) for k in b]
        return keys and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a, math.copysign(1, a)) == (
            b,
            math.copysign(1, b),
        )
    return bool(a == b)


def through_disk(tree: Any, folder: Path) -> Any:
    """What comes back after a real file and real JSON text."""
    tensors, structure = pack(tree)
    path = folder / "x.safetensors"
    path.unlink(missing_ok=True)
    writing.write_tensors(path, tensors)
    return unpack(load_file(path), json.loads(json.dumps(structure, allow_nan=False)))


def bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of any dtype, NaN patterns included."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.randint(2 if dtype is torch.bool else 256, (size,), generator=generator)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


tensors = st.builds(
    bits,
    st.sampled_from([*DTYPES, torch.complex64, torch.complex128]),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 99),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(-3, 3), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=200)
@given(trees)
def test_any_state_comes_back_the_same(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert same(through_disk(tree, folder), tree)


def test_an_optimizer_goes_on_after_the_round_trip(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1), betas=(0.5, 0.9))
    (weight**2).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    state = optimizer.state_dict()
    back = through_disk(state, tmp_path)
    assert same(back, state)
    assert list(back["state"]) == [0]  # an int, not "0"
    assert back["param_groups"][0]["betas"] == (0.5, 0.9)
    torch.optim.AdamW([weight]).load_state_dict(back)


def test_a_generator_goes_on_after_the_round_trip(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    back = through_disk({"rng": generator.get_state()}, tmp_path)
    other = torch.Generator()
    other.set_state(back["rng"])
    assert torch.equal(torch.rand(9, generator=other), torch.rand(9, generator=generator))


def test_shared_and_strided_memory(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tree = {
        "whole": base,
        "again": base.view(3, 4),
        "row": base[1],
        "column": base[:, 1],
        "turned": base.T,
        "parameter": torch.nn.Parameter(base),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "expanded": torch.ones(1).expand(3),
    }
    named, _ = pack(tree)
    # Nothing is copied, and the same view under three names is stored once.
    assert named["whole"].data_ptr() == base.data_ptr()
    assert set(named) == {"whole", "row", "column", "turned", "conjugate", "expanded"}
    back = through_disk(tree, tmp_path)
    tree["parameter"] = base
    assert same(back, tree)
    assert back["whole"] is back["again"]
    back["whole"].zero_()
    assert back["row"].sum() == 22  # only what was one tensor is one tensor


def test_paths_that_meet_keep_their_own_tensors(tmp_path: Path) -> None:
    one, two, three = torch.tensor(1), torch.tensor(2), torch.tensor(3)
    tree = {"a": {"b": one}, "a/b": two, "__metadata__": three, 0: one + 3, "0": two + 3, "": -one}
    assert same(through_disk(tree, tmp_path), tree)
    assert same(through_disk(one, tmp_path), one)


def test_an_ordered_dict_comes_back_as_a_dict(tmp_path: Path) -> None:
    assert same(through_disk(OrderedDict(b=1, a=2), tmp_path), {"b": 1, "a": 2})


class Pair(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"agent": {"noise": [1, np.ones(2)]}}, "agent/noise/1 is a ndarray"),
        ({"a": np.float64(1.0)}, "a is a float64"),
        ({"a": Pair(1)}, "a is a Pair"),
        ({"a": {1, 2}}, "a is a set"),
        ({"a": b"raw"}, "a is a bytes"),
        ({"a": {None: 1}}, "a has the key None"),
        ({"a": {True: 1}}, "a has the key True"),
        ({"a": torch.eye(2).to_sparse()}, "a is a Tensor of torch.float32"),
        ({"a": torch.ones(2, device="meta")}, "a is a Tensor of torch.float32"),
        ({"a": 1 << 5000}, "a is a int"),
        ({"a": "\ud800"}, "a is a str"),
        (object(), "the root is a object"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_place(tree: Any, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        pack(tree)


def test_a_cycle_is_refused() -> None:
    tree: dict[str, Any] = {}
    tree["me"] = tree
    with pytest.raises(TypeError, match=r"me/me/me/me/\.\.\. is nested deeper"):
        pack(tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"tensor": "absent"},
        {"tensor": 3},
        {"complex": "plain"},
        {"float": "1e9"},
        {"tuple": 1},
        {"dict": [["a"]]},
        {"dict": [[[], 1]]},
        {"dict": {"a": 1}},
        {"__reduce__": ["os.system", "true"]},
        {},
    ],
)
def test_a_wild_tree_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match="the t"):
        unpack({"plain": torch.ones(3)}, tree)
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="deeper"):
        unpack({}, deep)


def state_of(step: int, size: int = 64) -> dict[str, Any]:
    """A state that shows by itself whether all its pieces are from one moment."""
    return {
        "agent": {"weight": torch.full((size,), float(step)), "lr": 1.0 / (step + 1)},
        "counters": (step, step * 2),
        "replay": {"obs": torch.full((size, 4), step, dtype=torch.int32), "head": step},
    }


def save(checkpoint: Checkpoint, step: int, score: float | None = None) -> Path:
    if score is not None:
        checkpoint.save_best(state_of(step), recipe_json=RECIPE, step=step, score=score)
    return checkpoint.save(state_of(step), recipe_json=RECIPE, step=step)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_last_and_best_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint = Checkpoint(folder)
    save(checkpoint, 100, score=1.0)
    save(checkpoint, 200, score=5.0)
    path = save(checkpoint, 400)
    assert names(folder) == {"000000400", "best-000000200", "last.json", "best.json"}
    for start in (tmp_path, folder, path):
        last = load(start)
        assert same(last.state, state_of(400))
        assert (last.step, last.score, last.recipe_json) == (400, None, RECIPE)
        assert last.folder == path
    best = load(tmp_path, which="best")
    assert (best.step, best.score) == (200, 5.0)
    assert "replay" not in best.state
    assert not (folder / "best-000000200" / "replay.safetensors").exists()
    # The score to beat survives the process, also where a run goes on from before it.
    assert last.to_resume()["best_return"] == 5.0


@pytest.mark.parametrize(
    ("name", "left"),
    [("000000002", {"000000002", "000000001"}), ("best-000000002", {"000000002", "000000001"}),
     ("000000001", {"000000001"})],
)  # fmt: skip
def test_going_back_forgets_what_is_newer_at_once(
    name: str, left: set[str], tmp_path: Path
) -> None:
    checkpoint = CheckpointConfig(keep=3).build(tmp_path)
    for step, score in ((1, None), (2, 1.0), (3, None)):
        save(checkpoint, step, score)
    state = load(tmp_path / name).to_resume()
    CheckpointConfig(keep=3).build(tmp_path, back_to=state["resumed_from"])
    assert load(tmp_path).folder.name == name
    assert names(tmp_path) == left | {"best-000000002", "last.json", "best.json"}


def test_a_copy_that_was_put_back_is_gone_on_from(tmp_path: Path) -> None:
    """No pointer names it."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(save(Checkpoint(folder), 1), tmp_path / "000000001")
    save(Checkpoint(folder), 2)
    shutil.copytree(tmp_path / "000000001", folder / "000000001")
    state = load(folder / "000000001").to_resume()
    Checkpoint(folder, back_to=state["resumed_from"])
    assert load(folder).step == 1
    assert names(folder) == {"000000001", "last.json"}


def test_links_to_and_inside_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    save(Checkpoint(folder), 1, score=3.0)
    (tmp_path / "good").symlink_to(save(Checkpoint(folder), 2))
    going_on = load(tmp_path / "good").to_resume()  # as that checkpoint of that run
    assert (going_on["resumed_from"], going_on["best_return"]) == ("000000002", 3.0)
    (folder / "newest").symlink_to(folder / "000000002")
    assert load(folder / "newest").to_resume()["resumed_from"] == "000000002"
    shutil.move(folder / "000000002", tmp_path / "elsewhere")
    (folder / "000000002").symlink_to(tmp_path / "elsewhere")
    going_on = load(folder / "000000002").to_resume()
    assert (going_on["resumed_from"], going_on["best_return"]) == ("000000002", 3.0)


def test_a_copy_under_another_name_is_read_but_not_gone_on_from(tmp_path: Path) -> None:
    shutil.copytree(save(Checkpoint(tmp_path), 1), tmp_path / "mine")
    assert load(tmp_path / "mine").step == 1
    with pytest.raises(UserError, match="mine to 000000001"):
        load(tmp_path / "mine").to_resume()


def test_the_best_lives_without_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    newest = save(Checkpoint(folder), 100, score=1.0)
    for file in newest.iterdir():
        file.write_bytes(b"")
    assert load(tmp_path, which="best").step == 100


def test_keep_and_a_step_saved_twice(tmp_path: Path) -> None:
    checkpoint = CheckpointConfig(keep=2).build(tmp_path)
    for step in (1, 2, 2):
        save(checkpoint, step)
    assert names(tmp_path) == {"000000002", "000000002-2", "last.json"}
    assert load(tmp_path).folder.name == "000000002-2"
    save(checkpoint, 3)
    assert names(tmp_path) == {"000000003", "000000002-2", "last.json"}


def test_replay_can_be_left_out(tmp_path: Path) -> None:
    path = save(CheckpointConfig(replay=False).build(tmp_path / "lean"), 1)
    assert names(path) == {"state.json", "state.safetensors"}
    assert "replay" not in load(path).state
    path = save(Checkpoint(tmp_path / "full"), 1)
    assert "replay" in load(path).state
    (path / "replay.safetensors").write_bytes(b"broken, but not read")
    assert "replay" not in load(path, with_replay=False).state


def test_readable_without_fleetfoot(tmp_path: Path) -> None:
    path = save(Checkpoint(tmp_path), 7)
    assert torch.equal(
        load_file(path / "state.safetensors")["agent/weight"], torch.full((64,), 7.0)
    )
    assert json.loads((path / "state.json").read_text())["recipe"] == RECIPE


def test_strangers_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "my-copy").mkdir()
    (tmp_path / ".tmp-000000001").mkdir()
    (tmp_path / ".tmp-last.json").touch()
    Checkpoint(tmp_path)
    assert names(tmp_path) == {"my-copy"}
    save(Checkpoint(tmp_path), 1)
    assert "my-copy" in names(tmp_path)


def test_an_unreadable_pointer_deletes_nothing(tmp_path: Path) -> None:
    save(Checkpoint(tmp_path), 1, score=1.0)
    (tmp_path / "best.json").write_text("{")
    (tmp_path / "last.json").write_text("{")
    Checkpoint(tmp_path)
    assert {"000000001", "best-000000001"} <= names(tmp_path)


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from test_checkpoint import RECIPE, load, same, save, state_of, Checkpoint, UserError

folder, mode = Path(sys.argv[2]), sys.argv[3]
dice = random.Random(5)

def whole():
    last = load(folder)
    assert same(last.state, state_of(last.step)), last.step
    best = load(folder, which="best")
    lean = state_of(best.step); del lean["replay"]
    assert same(best.state, lean) and best.score == best.step, best
    return last.step

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

save(Checkpoint(folder), 1, score=1.0)
before = whole()
if mode == "random":
    def work():
        checkpoint, step = Checkpoint(folder), before
        while True:
            os.write(begins, b".")
            step += 1
            save(checkpoint, step, score=float(step))
    for _ in range(20):
        begun, begins = os.pipe()
        pid = child(work)
        for _ in range(dice.randint(1, 3)):  # saves that have begun
            os.read(begun, 1)
        time.sleep(dice.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(begun), os.close(begins)
        after = whole()
        assert after >= before
        before = after
    print(before)
else:  # die just before each operation on the file system, in turn
    moments = 0
    while True:
        def work():
            left = [moments]
            def hook(event, args):
                if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir",
                             "shutil.rmtree", "os.scandir", "os.listdir"):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
            checkpoint = Checkpoint(folder)
            sys.addaudithook(hook)
            save(checkpoint, before + 1, score=before + 1.0)
        _, status = os.waitpid(child(work), 0)
        after = whole()
        assert after in (before, before + 1), (before, after)
        if os.WIFEXITED(status):
            assert after == before + 1
            before = after
            break
        before, moments = after, moments + 1
    print(moments)
step = before + 2  # the best of the step before may be saved already
save(Checkpoint(folder), step, score=float(step))
left = sorted(p.name for p in folder.iterdir())
assert left == [f"{step:09d}", f"best-{step:09d}", "best.json", "last.json"], left
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("mode", "least"), [("random", 10), ("every", 20)])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, mode: str, least: int
) -> None:
    tests = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, tests, str(tmp_path / "checkpoints"), mode],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    # How far the saves got, or at how many different moments one save was killed.
    assert int(done.stdout) >= least


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "replay.safetensors"])
def test_every_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    file = save(Checkpoint(tmp_path), 1) / name
    good = file.read_bytes()
    dice = random.Random(name)
    places = [0, len(good) - 1, *(dice.randrange(len(good)) for _ in range(150))]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << dice.randrange(8)
        file.write_bytes(bad)
        with pytest.raises(UserError, match=name):
            load(tmp_path)
    file.write_bytes(good)
    assert load(tmp_path).step == 1


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "replay.safetensors"])
def test_a_truncated_or_missing_file_is_named(tmp_path: Path, name: str) -> None:
    file = save(Checkpoint(tmp_path), 1) / name
    good = file.read_bytes()
    for size in (0, 1, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:size])
        with pytest.raises(UserError, match=name) as error:
            load(tmp_path)
        assert "no other checkpoint there is intact" in one_line(error)
    file.unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        load(tmp_path / "000000001" if name != "state.json" else tmp_path)


def test_a_corrupt_last_names_the_whole_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, keep=2)
    save(checkpoint, 1, score=1.0)
    save(checkpoint, 2)
    (save(checkpoint, 3) / "state.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=f"use {tmp_path / '000000002'} instead") as error:
        load(tmp_path)
    assert "000000003" in one_line(error)
    (tmp_path / "000000002" / "replay.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"use .*best-000000001 instead"):
        load(tmp_path)


def test_foreign_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        load(tmp_path)
    with pytest.raises(UserError, match="holds no checkpoint"):
        load(tmp_path / "absent")
    (tmp_path / "state.json").write_text('{"epoch": 3}')
    with pytest.raises(UserError, match="was not written by fleetfoot"):
        load(tmp_path)
    (tmp_path / "state.json").write_bytes(seal({"format": "other", "version": 1}))
    with pytest.raises(UserError, match="does not describe a fleetfoot checkpoint"):
        load(tmp_path)


def test_a_run_without_evaluation_has_no_best(tmp_path: Path) -> None:
    save(Checkpoint(tmp_path / "checkpoints"), 1)
    with pytest.raises(UserError, match=r"has no best checkpoint; use .*000000001 instead"):
        load(tmp_path, which="best")


def forge(folder: Path, **changes: Any) -> None:
    """Rewrite state.json with a right digest, as somebody with bad intentions would."""
    body = json.loads((folder / "state.json").read_bytes())
    del body["digest"]
    (folder / "state.json").write_bytes(seal({**body, **changes}))


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = save(Checkpoint(tmp_path), 1)
    forge(path, version=VERSION + 1)
    with pytest.raises(UserError, match=rf"has format {VERSION + 1}.*a newer version"):
        load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"trees": {"state": {"dict": [["a", {"tensor": "absent"}]]}, "replay": None}},
        {"trees": {"state": {"dict": [["a", {"exec": "true"}]]}, "replay": None}},
        {"trees": {"state": {"dict": 5}, "replay": None}},
        {"trees": {"state": [1], "replay": None}},
        {"trees": {"state": {"dict": []}, "../replay": None}},
        {"trees": 3},
        {"files": {"state.safetensors": {"bytes": 1, "blake2b": "x"}, "replay.safetensors": 0}},
        {"files": {"state.safetensors": [], "replay.safetensors": []}},
        {"files": {"../../etc/passwd": {"bytes": 1, "blake2b": "x"}}},
        {"step": "1"},
        {"score": "high"},
    ],
)
def test_hostile_descriptions_are_refused(tmp_path: Path, changes: Any) -> None:
    path = save(Checkpoint(tmp_path), 1)
    forge(path, **changes)
    with pytest.raises(UserError) as error:
        load(path)
    assert str(path) in one_line(error)


def test_hostile_json_is_refused(tmp_path: Path) -> None:
    path = save(Checkpoint(tmp_path), 1)
    body = json.loads((path / "state.json").read_bytes())
    shape = seal({**body, "recipe": "HERE"})
    for wild in (b"[" * 200_000 + b"]" * 200_000, b"9" * 10_000, b"\xff\xff", b"NaN,"):
        _, _, rest = shape.partition(b"\n")
        rest = rest.replace(b'"HERE"', wild)
        (path / "state.json").write_bytes(read._seal_line(rest) + b"\n" + rest)
        with pytest.raises(UserError, match="cannot be read") as error:
            load(path)
        one_line(error)


def test_hostile_safetensors_are_refused(tmp_path: Path) -> None:
    path = save(Checkpoint(tmp_path), 1)
    file = path / "state.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 8]}})
    for wild in (b"", b"\xff" * 64, len(header).to_bytes(8, "little") + header.encode() + b"0" * 8):
        file.write_bytes(wild)
        digest = hashlib.blake2b(wild, digest_size=32).hexdigest()
        files = json.loads((path / "state.json").read_bytes())["files"]
        forge(path, files={**files, file.name: {"bytes": len(wild), "blake2b": digest}})
        with pytest.raises(UserError, match=r"state\.safetensors cannot be read") as error:
            load(path)
        one_line(error)


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc", "..", ".", "", "000000001/../..", "000000001\n", 5, None]
)
def test_a_pointer_cannot_leave_its_folder(tmp_path: Path, name: Any) -> None:
    save(Checkpoint(tmp_path), 1)
    outside = Checkpoint(tmp_path / "etc")
    save(outside, 2)
    pointer = {"folder": name, "older": [], "step": 1, "score": None}
    (tmp_path / "last.json").write_text(json.dumps(pointer))
    with pytest.raises(UserError, match=r"last\.json is corrupt; use .*000000001 instead") as error:
        load(tmp_path)
    one_line(error)


def test_the_training_may_move_on_while_we_read(tmp_path: Path, monkeypatch: Any) -> None:
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 1)
    find = read._find
    moved: list[Any] = []

    def find_then_save(path: Path, which: Any) -> Path:
        found = find(path, which)
        if not moved:
            moved.append(save(checkpoint, 2))
        return found

    monkeypatch.setattr(read, "_find", find_then_save)
    assert load(tmp_path).step == 2


def test_too_little_space_is_seen_before_writing(tmp_path: Path, monkeypatch: Any) -> None:
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr(writing, "write_tensors", lambda *_: pytest.fail("wrote all the same"))
    with pytest.raises(UserError, match=r"needs 1,0\d\d,\d{3} bytes and 1,000 are free") as error:
        save(checkpoint, 2)
    assert str(tmp_path) in one_line(error)
    assert names(tmp_path) == {"000000001", "last.json"}


def test_a_disk_that_fills_up_while_writing(tmp_path: Path, monkeypatch: Any) -> None:
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 1)
    sync = writing._sync_file
    left = [0]  # files that still fit

    def full(file: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(writing, "_sync_file", full)
    for fits in range(3):  # it ends in each of the three files of a checkpoint
        left[0] = fits
        with pytest.raises(UserError, match="the disk is full: a checkpoint in") as error:
            save(checkpoint, 2)
        assert "earlier checkpoint is kept" in one_line(error)
        assert names(tmp_path) == {"000000001", "last.json"}
    left[0] = 3  # only the pointer does not fit
    with pytest.raises(UserError, match="No space left on device; the earlier checkpoint is kept"):
        save(checkpoint, 2)
    assert load(tmp_path).step == 1
    left[0] = 99
    save(checkpoint, 2)
    assert names(tmp_path) == {"000000002", "last.json"}


def test_where_only_the_replay_does_not_fit_nothing_that_was_learned_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=writing.SLACK + 50_000))
    state: dict[str, Any] = {"agent": torch.arange(9), "replay": {"rows": torch.zeros(100_000)}}
    for step in (2, 3):
        with pytest.raises(UserError, match="learned is saved without the replay") as error:
            checkpoint.save(state, recipe_json=RECIPE, step=step)
        one_line(error)
    found = load(tmp_path)
    assert (found.step, "replay" in found.state) == (3, False)
    assert torch.equal(found.state["agent"], state["agent"])
    # The newest one that has its replay stays, until there is room.
    assert names(tmp_path) == {"000000001", "000000002", "000000003", "last.json"}
    assert "replay" in load(tmp_path / "000000001").state
    with pytest.raises(UserError, match="the disk is full"):
        checkpoint.save(state | {"world": 2}, recipe_json=RECIPE, step=4)
    monkeypatch.undo()
    checkpoint.save(state, recipe_json=RECIPE, step=4)
    assert names(tmp_path) == {"000000004", "last.json"}
    assert "replay" in load(tmp_path).state


def test_a_full_disk_at_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(UserError, match="0 are free; make room"):
        save(Checkpoint(tmp_path), 1)


def test_a_real_limit_on_the_size_of_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="the disk is full"):
            checkpoint.save(state_of(2, size=50_000), recipe_json=RECIPE, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert names(tmp_path) == {"000000001", "last.json"}
    assert same(load(tmp_path).state, state_of(1))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot save a checkpoint in") as error:
        save(Checkpoint(tmp_path / "file" / "checkpoints"), 1)
    one_line(error)


def test_an_unsavable_state_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(TypeError, match="agent is a set"):
        checkpoint.save({"agent": {1}}, recipe_json=RECIPE, step=1)
    assert names(tmp_path) == set()


def test_tensors_are_streamed_in_chunks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(writing, "CHUNK", 1000)
    big = torch.arange(10_001)
    assert same(
        through_disk({"big": big, "odd": big[1::3]}, tmp_path), {"big": big, "odd": big[1::3]}
    )


def test_config() -> None:
    config = CheckpointConfig(every_vec_steps=10)
    assert [step for step in range(31) if config.due(step)] == [0, 10, 20, 30]
    assert not CheckpointConfig(every_vec_steps=0).due(10)
    assert from_json(to_json(config)) == config
    with pytest.raises(UserError, match="keep must be at least 1, not 0"):
        CheckpointConfig(keep=0)
    with pytest.raises(UserError, match="every_vec_steps must be at least 0"):
        CheckpointConfig(every_vec_steps=-1)
