"""Help for commands whose options depend on the run they are given."""

from __future__ import annotations


def show_usage(line: str, text: str) -> int:
    print(f"usage: fleetfoot {line}\n\n{text}")
    return 0
