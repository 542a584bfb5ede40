"""What the tools cannot check."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_no_test_module_imports_another(path: Path) -> None:
    """What tests share is in `support`."""
    tree = ast.parse(path.read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [
        n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names
    ]
    modules = [name for name in imported if name and name.split(".")[-1].startswith("test_")]
    assert modules == []


def test_a_long_file_says_why() -> None:
    """In its first comment, where the file has more than 300 lines."""
    texts = {path: path.read_text() for path in (TESTS.parent / "src").rglob("*.py")}
    long = [path for path, text in texts.items() if text.count("\n") > 300]
    first = {path: ast.get_docstring(ast.parse(texts[path])) or "" for path in long}
    assert [str(path) for path in long if "300 lines" not in first[path]] == []


# Modules whose package has another name, and modules that no package of ours can bring.
PACKAGES = {
    "PIL": "pillow",
    "imageio_ffmpeg": "imageio",
    "mujoco_playground": "playground",
    "ml_collections": "playground",
    "warp": "warp-lang",
    "yaml": "pyyaml",
    "triton": "torch",
}
ELSEWHERE = {"benchmarks", "isaaclab", "isaaclab_tasks"}
LATE = {
    "src/fleetfoot/envs/playground/step.py"
}  # themselves imported only where the extra is there


def named(lines: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0].lower() for line in lines}


def foreign(nodes: Iterable[ast.AST]) -> set[str]:
    """The packages that statements import from outside of the library and of Python."""
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules.add(node.module)
    known = {*sys.stdlib_module_names, "fleetfoot", *ELSEWHERE}
    names = {module.split(".")[0] for module in modules} - known
    return {PACKAGES.get(name, name.replace("_", "-")).lower() for name in names}


def test_what_the_library_imports_is_named_in_pyproject_and_extras_are_imported_late() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    base = named(project["dependencies"])
    extras = named(line for lines in project["optional-dependencies"].values() for line in lines)
    for path in sorted((TESTS.parent / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        assert not foreign(ast.walk(tree)) - base - extras, path
        if str(path.relative_to(TESTS.parent)) not in LATE:
            assert not foreign(tree.body) - base, f"{path} imports an extra's package at its top"
