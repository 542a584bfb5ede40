"""One result file as a page of the site: what was measured, with what, and every number in tables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from benchmarks.command import BENCHMARKS

MOST_ROWS = 60
HIDDEN = ("recipe", "curve", "log", "curves", "task_curves")  # long; they are in the file


def page(path: Path) -> str:
    body = json.loads(path.read_text())
    name = str(body["benchmark"])
    about = BENCHMARKS[name][1] if name in BENCHMARKS else f"written by `fleetfoot {name}`"
    command = f"    {command_of(name, body['arguments'])}\n" if name in BENCHMARKS else ""
    sections = [
        f"# {path.stem}\n\n`benchmarks/results/{path.name}`: {about}.\n\n{command}",
        "\n".join(tables(body["result"], "Result", 2)),
    ]
    if body["arguments"]:
        sections.append("## Arguments\n\n" + pairs(body["arguments"]))
    sections.append("## Made with\n\n" + pairs(flat(body["provenance"])))
    return "\n\n".join(sections) + "\n"


def command_of(name: str, arguments: dict[str, Any]) -> str:
    """The command that makes such a file; the oldest ones do not say with which options."""
    words = ["fleetfoot", "bench", name]
    for key, value in arguments.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None and value != []:
            given = value if isinstance(value, list) else [value]
            words += [f"--{flag}", *(shlex.quote(str(word)) for word in given)]
    return " ".join(words)


def tables(value: Any, title: str, level: int) -> list[str]:
    """Headings and tables of a result, from the outside in."""
    heading = f"\n{'#' * min(level, 4)} {title.replace('_', ' ')}\n"
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return [
            heading,
            rows(value),
            *(
                part
                for i, row in enumerate(value)
                for part in nested(row, f"{title} {i + 1}", level + 1)
            ),
        ]
    if isinstance(value, dict):
        plain = {key: entry for key, entry in value.items() if is_plain(entry)}
        out = [heading] + ([pairs(plain)] if plain else [])
        return [*out, *nested(value, "", level + 1)]
    return [heading, text(value)]


def nested(value: dict[str, Any], title: str, level: int) -> list[str]:
    """Of a dictionary, what does not fit into a cell. `title`: of the row that it belongs to."""
    out: list[str] = []
    for key, entry in value.items():
        if is_plain(entry) or key in HIDDEN:
            continue
        label = label_of(value)
        out += tables(entry, " ".join(filter(None, [label or title, key])), level)
    return out


def label_of(row: dict[str, Any]) -> str:
    if "seed" in row:
        return f"seed {row['seed']}:"
    return next((f"{row[key]}:" for key in ("name", "agent", "size", "sizes") if key in row), "")


def is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 12 and all(not isinstance(item, (dict, list)) for item in value)
    return not isinstance(value, dict)


def rows(value: list[dict[str, Any]]) -> str:
    columns = list(
        dict.fromkeys(key for row in value for key, entry in row.items() if is_plain(entry))
    )
    lines = [columns, ["---"] * len(columns)]
    lines += [[text(row.get(column, "")) for column in columns] for row in value[:MOST_ROWS]]
    table = "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in named(lines))
    left = len(value) - MOST_ROWS
    return table + (f"\n\nand {left} more in the file." if left > 0 else "")


def named(lines: list[list[str]]) -> list[list[str]]:
    return [[column.replace("_", " ") for column in lines[0]], *lines[1:]]


def pairs(value: dict[str, Any]) -> str:
    body = "\n".join(f"| {key.replace('_', ' ')} | {text(entry)} |" for key, entry in value.items())
    return f"| | |\n| --- | --- |\n{body}"


def flat(value: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            out |= {f"{key}: {name}": inner for name, inner in flat(entry).items()}
        else:
            out[key] = entry
    return out


def text(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, list):
        return ", ".join(map(text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str("" if value is None else value).replace("|", "\\|")
