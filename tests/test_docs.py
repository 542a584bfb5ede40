"""The pages: links lead somewhere, anchors are headings, and files that are named exist."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from benchmarks import figures

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), ROOT / "benchmarks/README.md", *(ROOT / "docs").rglob("*.md")],
    key=str,
)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s+(\S+)", re.M)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
NAMED = re.compile(
    r"(?<![\w./-])((?:src|tests|benchmarks|docs|examples|\.ci|\.github)/[\w./*+-]*\w)"
)
# What a page names by the end of its path, as in `agents/dqn.py`.
SHORT = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
FILES = {
    path.as_posix()
    for folder in ("src", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
}
# x and my_agent stand for something yet to be written; the rest are files of other projects.
ELSEWHERE = re.compile(
    r"(.*/)?(x|test_x)\.(py|md)|bro_torch\.py|my_agent\.py|setup\.py|utils\.py|humanoid_bench/dmc_.*"
)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and GitLab make of a page's headings."""
    counts: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = counts.get(name, 0)
        counts[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def broken_links(page: Path) -> Iterator[str]:
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        target = match[1] or match[2]
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue  # another site: not looked at, tests need no network
        path, _, anchor = target.partition("#")
        place = (page.parent / unquote(path)).resolve() if path else page
        if not place.exists():
            yield f"{target}: there is no such file"
        elif anchor and place.suffix == ".md" and unquote(anchor) not in anchors(place):
            yield f"{target}: there is no such heading"


def missing_files(page: Path) -> set[str]:
    text = page.read_text()
    whole = {name for name in NAMED.findall(text) if not any(ROOT.glob(name))}
    short = {
        name for name in SHORT.findall(text) if not any(file.endswith(f"/{name}") for file in FILES)
    }
    return {name for name in whole | short if not ELSEWHERE.fullmatch(name)}


def test_there_are_pages() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "CONTRIBUTING.md", "architecture.md"}
    assert len(PAGES) > 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],  # the history names what is gone
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_files_that_are_named_exist(page: Path) -> None:
    assert not missing_files(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_are_those_of_the_results(page: Path) -> None:
    """`python -m benchmarks.figures` writes them."""
    text = page.read_text()
    assert figures.refreshed(text) == text


def test_there_are_figures() -> None:
    texts = [page.read_text() for page in PAGES]
    assert sum(len(figures.FIGURE.findall(text)) for text in texts) > 200
    assert sum(len(figures.TABLE.findall(text)) for text in texts) >= 10


def test_a_figure_takes_the_value_and_keeps_the_digits() -> None:
    result = {"rows": [{"a": "x", "b": 2.25}, {"a": "y", "b": 1234.5}], "odd / name": 3}
    assert figures.evaluate("rows[a=y].b", result) == 1234.5
    assert figures.evaluate("rows[-1].b / rows[0].b * 2", result) == pytest.approx(
        1097.333, abs=1e-3
    )
    assert figures.evaluate("'odd / name'", result) == 3
    assert figures.shaped("9.99 ms", 2.254) == "2.25 ms"
    assert figures.shaped("10,000", 123_456) == "120,000"
    assert figures.shaped("7 min 1 s", 119.7) == "2 min 0 s"
    with pytest.raises(KeyError, match=r"rows\[a=z\].b' leads nowhere"):
        figures.evaluate("rows[a=z].b", result)


def test_install_lines_need_no_index() -> None:
    """The package is on none, so a line that names `fleetfoot[extra]` would not work as written."""
    pages = [
        page for page in PAGES if page.name != "RELEASING.md"
    ]  # it tells of the day when there is one
    files = [*pages, *(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    wrong = re.compile(r"pip install (-\S+ (\S+\.txt )?)*'?fleetfoot(\[|==|'|$)", re.M)
    assert [str(path) for path in files if wrong.search(path.read_text())] == []


def test_extras_that_messages_name_are_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"install_line\([\"'](\w+)[\"']\)", text))
    named |= set(re.findall(r"extras\.load\(\s*[\w\"'.]+,\s*\"(\w+)\"", text))
    assert len(named) > 8
    assert named <= set(project["optional-dependencies"])


def test_the_architecture_page_names_every_room() -> None:
    """Its layout has one entry for each module and folder of the package, and no other."""
    page = (ROOT / "docs/architecture.md").read_text()
    layout = page.partition("    src/fleetfoot/\n")[2].partition("    tests/")[0]
    named = re.findall(r"(?:^ {6}|(?<=\.py) )([a-z_]+(?:\.py|/))", layout, re.M)
    package = ROOT / "src/fleetfoot"
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert sorted(named) == sorted(folders | {path.name for path in package.glob("[a-z]*.py")})


def test_the_architecture_page_has_the_import_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    page = (ROOT / "docs/architecture.md").read_text()
    assert "".join(f"    {layer}\n" for layer in contracts["contracts"][0]["layers"]) in page


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    """The test tested."""
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing: `x`, *now*\n\n## Twice\n\n## Twice\n\n"
        "[a](#one-thing-x-now) [b](#twice-1) [c](other.md) [d](page.md#nowhere) ![e](no.png)\n"
        '[f](page.md "title") [g](https://example.org/x.md#y) [h](<page.md#twice>)\n\n'
        "```\n# no heading\n[i](nothing.md)\n```\n\n[ref]: gone.md\n"
        "See `src/fleetfoot/no_such_file.py`, `src/fleetfoot/data.py`, tests/oracles/*.py, `agents/old.py`.\n"
    )
    assert anchors(page) == {"one-thing-x-now", "twice", "twice-1"}
    assert [line.partition(":")[0] for line in broken_links(page)] == [
        "other.md",
        "page.md#nowhere",
        "no.png",
        "gone.md",
    ]
    assert missing_files(page) == {"src/fleetfoot/no_such_file.py", "agents/old.py"}
