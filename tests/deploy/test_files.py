"""Exported folders from a stranger: whatever is wrong with one is refused with one line, before it is run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetfoot import UserError, deploy
from fleetfoot.deploy import __main__ as command
from fleetfoot.deploy import about, onnx_file
from fleetfoot.export.run import Package
from support.exported import leg_package, write


@pytest.fixture(scope="module")
def made() -> Package:
    return leg_package()


@pytest.fixture
def folder(made: Package, tmp_path: Path) -> Path:
    return write(tmp_path / "leg", made.files)


def refused(path: Path, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        deploy.load(path)
    assert "\n" not in str(caught.value)


def test_the_folder_and_the_model_alone_say_the_same(folder: Path, made: Package) -> None:
    whole, alone = deploy.load(folder), deploy.load(folder / "policy.onnx")
    assert whole.about.raw == alone.about.raw == json.loads(json.dumps(made.about))
    assert [joint.name for joint in whole.about.joints] == ["hip", "knee"]
    obs = np.linspace(-1, 1, 14)
    assert np.array_equal(whole(obs).action, alone(obs).action)
    assert whole(obs[None]).action.shape == (1, 2)


def test_targets_are_physical(folder: Path) -> None:
    """target = offset + scale * action, and observations are taken as they are measured."""
    answer = deploy.load(folder)(np.linspace(-1, 1, 14))
    assert answer.target is not None
    assert np.allclose(answer.target, [0.1, -1.0] + 0.5 * answer.action, atol=1e-6)


def test_any_changed_byte_is_noticed(made: Package, tmp_path: Path) -> None:
    """In each file, at many places: refused, or (white space of the JSON, a digit beyond float32) without effect."""
    for name in ("policy.onnx", "policy.json"):
        content = made.files[name]
        harmless = 0
        for k, place in enumerate(np.linspace(0, len(content) - 1, 60).astype(int)):
            changed = bytearray(content)
            changed[place] ^= 1 << (k % 7)
            path = write(tmp_path / f"{name}-{k}", made.files | {name: bytes(changed)})
            policy = None
            with contextlib.suppress(UserError):
                policy = deploy.load(path)
            if policy is not None:
                harmless += 1
                assert policy.about.raw == json.loads(json.dumps(made.about))
        assert harmless <= (0 if name == "policy.onnx" else 3), name


def test_the_model_alone_notices_it_too(made: Package, tmp_path: Path) -> None:
    content = made.files["policy.onnx"]
    for k, place in enumerate(np.linspace(0, len(content) // 4, 20).astype(int)):
        changed = bytearray(content)
        changed[place] ^= 4
        path = tmp_path / f"{k}.onnx"
        path.write_bytes(bytes(changed))
        with pytest.raises(UserError):
            deploy.load(path)


FIELDS = (
    *("version", "name", "obs", "action", "joints", "control_hz", "commands", "tasks", "recorded"),
    *("graph_sha256", "weights_sha256", "training", "check", "made_by", "missing", "files"),
    *("obs.shape", "obs.dtype", "obs.terms", "obs.history", "action.kind", "action.size"),
    *("joints.0.name", "joints.1.low", "joints.0.standing", "obs.terms.0.size", "recorded.action"),
)


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field(field: str, folder: Path) -> None:
    path = folder / "policy.json"
    tree = json.loads(path.read_text())
    *way, last = field.split(".")
    inner: Any = tree
    for key in way:
        inner = inner[int(key) if isinstance(inner, list) else key]
    del inner[last]
    path.write_text(json.dumps(tree))
    refused(folder, last)


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Package], None]:
    def edited(folder: Path, made: Package) -> None:
        path = folder / "policy.json"
        tree = json.loads(path.read_text())
        change(tree)
        path.write_text(json.dumps(tree))

    return edited


def model(change: Callable[[Any], object]) -> Callable[[Path, Package], None]:
    """A stranger's model, with hashes that fit it: only what is inside can give it away."""

    def changed(folder: Path, made: Package) -> None:
        import onnx

        proto = onnx.load_from_string(made.files["policy.onnx"])
        change(proto)
        del proto.metadata_props[:]
        raw = proto.SerializeToString()
        said = made.about | {"graph_sha256": onnx_file.digest(raw)}
        raw = onnx_file.with_metadata(raw, {about.KEY: json.dumps(said)})
        (folder / "policy.onnx").write_bytes(raw)
        (folder / "policy.json").unlink()

    return changed


def custom(proto: Any) -> None:
    proto.graph.node[0].domain = "evil"
    proto.opset_import.add(domain="evil", version=1)


def loop(proto: Any) -> None:
    node = proto.graph.node.add(op_type="Loop")
    node.attribute.add(name="body", type=5).g.name = "for ever"


def outside(proto: Any) -> None:
    tensor = proto.graph.initializer[0]
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="/etc/passwd")


def weights(proto: Any) -> None:
    tensor = max(proto.graph.initializer, key=lambda one: len(one.raw_data))
    tensor.raw_data = np.zeros(len(tensor.raw_data) // 4, np.float32).tobytes()


WRONG: dict[str, tuple[str, Callable[[Path, Package], object]]] = {
    "no folder": ("No such file", lambda folder, made: (folder / "policy.onnx").unlink()),
    "no json": ("No such file", lambda folder, made: (folder / "policy.json").unlink()),
    "empty": ("not an ONNX file", lambda folder, made: (folder / "policy.onnx").write_bytes(b"")),
    "text": ("not an ONNX file", lambda folder, made: (folder / "policy.onnx").write_text("hello")),
    "cut": (
        "not an ONNX file|corrupt",
        lambda folder, made: (folder / "policy.onnx").write_bytes(made.files["policy.onnx"][:-9]),
    ),
    "deep json": (
        "cannot be read as JSON",
        lambda folder, made: (folder / "policy.json").write_text("[" * 10**5),
    ),
    "nan": (
        "NaN is no number",
        lambda folder, made: (folder / "policy.json").write_text('{"x": NaN}'),
    ),
    "another format": ("does not describe a policy", edit(lambda t: t.update(format="other"))),
    "newer": ("written by a newer version", edit(lambda t: t.update(version=99))),
    "joint order": ("another order of joints", edit(lambda t: t["joints"].reverse())),
    "a gain": ("other joints", edit(lambda t: t["joints"][0].update(kp=300.0))),
    "control rate": ("its field 'control_hz'", edit(lambda t: t.update(control_hz=500.0))),
    "huge": ("impossible sizes", edit(lambda t: t["obs"].update(shape=[2**40]))),
    "kind": ("of the wrong kind", edit(lambda t: t["action"].update(size="2"))),
    "another file": (
        "is not the file that",
        edit(lambda t: t["files"]["policy.onnx"].update(sha256="0")),
    ),
    "custom operator": ("custom operator.*'evil'", model(custom)),
    "loop": ("an operator 'Loop', which is refused", model(loop)),
    "external data": ("keeps weights in another file", model(outside)),
    "functions": ("defines its own functions", model(lambda p: p.functions.add(name="f"))),
    "sparse": ("sparse tensors", model(lambda p: p.graph.sparse_initializer.add())),
    "random": (
        "'RandomNormal', which is refused",
        model(lambda p: p.graph.node.add(op_type="RandomNormal")),
    ),
    "other weights": ("does not give the recorded actions", model(weights)),
    "other input": (
        "ONNX Runtime .* cannot load|other inputs",
        model(lambda p: p.graph.input.add(name="more")),
    ),
    "no such operator": (
        "ONNX Runtime .* cannot load",
        model(lambda p: p.graph.node.add(op_type="Nonsense", output=["x"])),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_gets_one_line(
    what: str, folder: Path, made: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    says, spoil = WRONG[what]
    spoil(folder, made)
    path = (
        folder if (folder / "policy.json").exists() or what == "no json" else folder / "policy.onnx"
    )
    refused(path, says)
    assert command.main([str(path)]) == 2
    line = capsys.readouterr().err
    assert line.startswith("fleetfoot: ")
    assert line.count("\n") == 1


def test_sizes_are_looked_at_before_memory_is_taken(folder: Path) -> None:
    """Sparse files: they claim sizes that nobody could read."""
    for name, limit in (("policy.json", about.JSON_BYTES), ("policy.onnx", about.MODEL_BYTES)):
        with (folder / name).open("r+b") as file:
            file.truncate(limit + 1)
        refused(folder, f"{name} has .* bytes, which is more than such a file may have")


def test_links_and_pipes_are_not_opened(folder: Path, tmp_path: Path) -> None:
    """A pipe would wait for ever."""
    for name in ("policy.json", "policy.onnx"):
        aside = (folder / name).rename(tmp_path / name)
        os.mkfifo(folder / name)
        refused(folder, f"cannot read .*{name}")
        (folder / name).unlink()
        (folder / name).symlink_to(aside)
        refused(folder, f"cannot read .*{name}")
        (folder / name).unlink()
        aside.rename(folder / name)
    deploy.load(folder)


def test_the_command_prints_what_the_policy_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(folder)]) == 0
    told = capsys.readouterr().out
    for part in ("hip, knee", "50 Hz", "14, history 2", "16 recorded observations"):
        assert part in told


WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise AssertionError(f"{{name}} is imported")

sys.meta_path.insert(0, Refuse())
from fleetfoot import deploy
import numpy as np

policy = deploy.load({folder!r})
controller = deploy.Controller(policy)
order = controller.step({{"joint_pos": [0, 0], "joint_vel": [0, 0]}}, [0.5])
assert order.mode == "policy", order
ours = sorted(name for name in sys.modules if name.startswith("fleetfoot"))
print(*ours)
"""


def test_the_runner_imports_no_torch_and_no_simulator(folder: Path) -> None:
    names = ("torch", "mujoco", "gymnasium", "onnx", "jax", "safetensors", "tyro", "rich")
    code = WITHOUT_TORCH.format(refused=names, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    allowed = ("fleetfoot.deploy", "fleetfoot.config", "fleetfoot.errors", "fleetfoot.files")
    loaded = done.stdout.split()
    assert "fleetfoot.deploy" in loaded
    assert [name for name in loaded if name != "fleetfoot" and not name.startswith(allowed)] == []
