"""The lines of source that the pages of the algorithms show are lines of the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shown_lines_are_in_the_source(page: Path) -> None:
    files = (ROOT / "src" / "fleetfoot").rglob("*.py")
    known = {line.strip() for file in files for line in file.read_text().splitlines()}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    shown = {line.strip() for block in blocks for line in block.splitlines()} - {"", "..."}
    assert shown <= known, sorted(shown - known)


def test_there_is_something_to_compare() -> None:
    assert sum("```python" in page.read_text() for page in PAGES) >= 4
