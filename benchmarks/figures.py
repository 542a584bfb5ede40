"""Figures of the pages that come from `results/` are written by this program, not by hand.

A figure in a page is a link to its file, whose title says where in the file it is:

    [2.16](../benchmarks/results/learner-h200.json "updates[size=g1,mode=captured].ms_per_update")

A table is made of the rows of one or more files, from a comment that stays in the page:

    <!-- table learner-h200.json: updates
    size = size
    ms = ms_per_update .2f
    -->
    ...
    <!-- /table -->

`python -m benchmarks.figures` writes the figures of all pages anew; a test and the site check that they are right.
An expression is a path below the file's `result`, with `[3]`, `[-1]` or `[key=value,...]` (the first such row), a
number, or several joined by ` * `, ` / `, ` - `, from left to right. `FILE.json:path` is a path in another file.
A table over `each: a, b` instead of rows has one row for each name, which `$` stands for;
over `.` it has one for each file.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

FIGURE = re.compile(
    r"\[(?P<text>[^\[\]]+)\]\((?P<link>[^)\s]*?results/(?P<file>[\w.+-]+\.json))"
    r' "(?P<where>[^"]+)"\)'
)
TABLE = re.compile(
    r"^<!-- table (?P<files>[^:\n]+): (?P<rows>[^\n]*)\n(?P<columns>.*?)\n?-->\n.*?^<!-- /table -->$",
    re.M | re.S,
)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
MINUTES = re.compile(r"(\d+) min(?: (\d+) s)?")
STEP = re.compile(r"'([^']+)'|([^.\[\]']+)|\[([^\]]*)\]")


@functools.cache
def load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def find(value: Any, path: str) -> Any:
    """What a path leads to. KeyError, with the path, where it leads nowhere."""
    for quoted, name, index in STEP.findall(path):
        try:
            if not index:
                value = value[quoted or name]
            elif "=" in index:
                wanted = dict(pair.split("=", 1) for pair in index.split(","))
                value = next(row for row in value if matches(row, wanted))
            else:
                value = value[int(index)]
        except (KeyError, IndexError, TypeError, StopIteration):
            raise KeyError(f"{path!r} leads nowhere, at {quoted or name or index!r}") from None
    return value


def matches(row: Any, wanted: dict[str, str]) -> bool:
    return all(str(find(row, key)) == text for key, text in wanted.items())


OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "-": lambda a, b: a - b,
}


def evaluate(expression: str, result: Any) -> Any:
    first, *rest = re.split(
        r" ([*/-]) (?=(?:[^']*'[^']*')*[^']*$)", expression.strip()
    )  # not within quotes
    value = term(first, result)
    for sign, text in zip(rest[::2], rest[1::2], strict=True):
        value = OPERATIONS[sign](value, term(text, result))
    return value


def term(text: str, result: Any) -> Any:
    if re.fullmatch(r"\d+(\.\d+)?(e\d+)?", text):
        return float(text)
    file, colon, path = text.partition(".json:")
    return find(load(f"{file}.json")["result"], path) if colon else find(result, text)


def shaped(text: str, value: float) -> str:
    """`text` with `value` in the place of its number, to as many digits."""
    if minutes := MINUTES.search(text):
        seconds = round(value)
        whole = f"{seconds // 60} min {seconds % 60} s" if minutes[2] else f"{value / 60:.0f} min"
        return text[: minutes.start()] + whole + text[minutes.end() :]
    number = NUMBER.search(text)
    if number is None:
        raise ValueError(f"{text!r} has no number")
    digits = number[0].replace(",", "")
    decimals = len(digits.partition(".")[2])
    zeros = len(digits) - len(digits.rstrip("0")) if not decimals else 0
    rounded = round(value, -zeros) if zeros else value
    comma = "," if "," in number[0] or len(digits) < 4 else ""
    return text[: number.start()] + f"{rounded:{comma}.{decimals}f}" + text[number.end() :]


def as_text(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if form.startswith("s"):  # significant digits
        digits = int(form[1:])
        value = float(f"{value:.{digits - 1}e}")
        return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"
    return f"{value:{form}}" if form else str(value)


def table(files: str, rows: str, columns: str) -> str:
    headers, expressions, forms = [], [], []
    for line in columns.splitlines():
        header, _, definition = line.partition(" = ")
        expression, _, form = definition.strip().rpartition(" ")
        plain = not re.fullmatch(r",?(\.\d+f|\.\d+%|d)|,|s\d", form)
        headers.append(header.strip())
        expressions.append(definition.strip() if plain else expression)
        forms.append("" if plain else form)
    lines = [headers, ["---"] * len(headers)]
    for file in files.replace(",", " ").split():
        result = load(file)["result"]
        for row, name in rows_of(result, rows):
            cells = [
                name
                if expression == "$"
                else as_text(evaluate(expression.replace("$", name), row), form)
                for expression, form in zip(expressions, forms, strict=True)
            ]
            lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def rows_of(result: Any, rows: str) -> Iterator[tuple[Any, str]]:
    if rows.startswith("each"):
        names = rows.removeprefix("each").split(",")
        yield from ((result, name.strip()) for name in names)
    elif rows == ".":
        yield result, ""
    else:
        yield from ((row, "") for row in find(result, rows))


def refreshed(text: str) -> str:
    """A page with its figures and tables as the files have them."""

    def figure(match: re.Match[str]) -> str:
        value = evaluate(match["where"], load(match["file"])["result"])
        return f'[{shaped(match["text"], value)}]({match["link"]} "{match["where"]}")'

    def block(match: re.Match[str]) -> str:
        head = match[0][: match[0].index("-->\n") + 4]
        return f"{head}{table(match['files'], match['rows'], match['columns'])}\n<!-- /table -->"

    return TABLE.sub(block, FIGURE.sub(figure, text))


def pages() -> list[Path]:
    return sorted(
        [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md"]
    )


def main() -> None:
    for path in pages():
        before = path.read_text()
        after = refreshed(before)
        if after != before:
            path.write_text(after)
            print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
