"""Every result file has a page, with its command, its numbers and what it was made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import result_page

RESULTS = sorted((Path(__file__).parents[1] / "benchmarks/results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_becomes_a_page(path: Path) -> None:
    page = result_page.page(path)
    assert page.startswith(f"# {path.stem}\n")
    assert "## Result\n" in page
    assert "## Made with\n" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 8


def test_the_command_repeats_the_arguments() -> None:
    arguments = {"sizes": ["g1", "isaac"], "check": True, "cpu": False, "out": None, "num_envs": 4}
    command = result_page.command_of("learner", arguments)
    assert command == "fleetfoot bench learner --sizes g1 isaac --check --no-cpu --num-envs 4"


def test_tables_hold_what_is_nested_and_round_what_is_long() -> None:
    value = {
        "a": 1.23456,
        "rows": [{"name": "x", "b": 12345.6, "inner": {"c": True}}],
        "recipe": {"d": 1},
    }
    text = "\n".join(result_page.tables(value, "Result", 2))
    assert "| a | 1.235 |" in text
    assert "| x | 12,346 |" in text
    assert "#### x: inner" in text
    assert "| c | yes |" in text
    assert "recipe" not in text
