"""What the tools cannot check."""

from __future__ import annotations

import ast
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
