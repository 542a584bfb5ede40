"""A report: the runs of several groups on one page that needs nothing else.

All text from run folders passes through Jinja's autoescape into HTML, or through `script_json` into the data of the
page's script. The page's policy (CSP) allows no script but its own and no request.

More than 300 lines: all that goes onto the page is put together here.
"""

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import importlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fleetfoot.checkpoint.version import library
from fleetfoot.compare import Ask, Comparison, compare
from fleetfoot.compare.comparison import AXES, TaskScale
from fleetfoot.compare.groups import groups_of
from fleetfoot.errors import UserError, nearest
from fleetfoot.extras import install_line
from fleetfoot.report import charts
from fleetfoot.report.facts import Facts, Film, read_facts
from fleetfoot.report.tables import (
    Result,
    about,
    differences,
    number,
    origin,
    results,
    run_rows,
    smoothness,
)

MOST_FILMS = 96 << 20  # bytes of all films on a page
MOST_RUNS = 400  # more do not fit on one page that anybody reads
COLOURS = 10

FilmSource = Callable[[int, Film], str]  # the number of a run and its film -> what `src` says


@dataclass(frozen=True)
class Wish:
    """What a report shall show: the options of `fleetfoot report`."""

    title: str = "Training report"
    ask: Ask = field(default_factory=Ask)
    films: int = 1  # of each group


@dataclass(frozen=True)
class Page:
    """The content of a page: what Jinja fills in, and the numbers that the script draws."""

    view: dict[str, Any]
    data: dict[str, Any]


def embedded(_: int, film: Film) -> str:
    """The film itself, inside the page."""
    return f"data:{film.type};base64,{base64.b64encode(film.read()).decode()}"


def build(
    folders: Sequence[Path],
    wish: Wish,
    film_source: FilmSource = embedded,
    *,
    lenient: bool = False,
) -> Page:
    """`lenient`: a run that cannot be read is left out, with a note, instead of an error."""
    if len(folders) > MOST_RUNS:
        raise UserError(
            f"{len(folders):,} runs do not fit on one page; give at most {MOST_RUNS} (a pattern in quotes chooses)."
        )
    unreadable: list[str] = []
    runs = dict(enumerate(_read_all(folders, unreadable if lenient else None)))
    labels = groups_of([facts.run for facts in runs.values()], wish.ask.by)
    names = list(dict.fromkeys(labels))
    groups = {place: names.index(label) for place, label in enumerate(labels)}
    if wish.ask.baseline and wish.ask.baseline not in names and not lenient:
        known = f"{nearest(wish.ask.baseline, names)} The groups are {', '.join(names)}."
        raise UserError(f"there is no group {wish.ask.baseline!r}.{known}")
    notes = unreadable + [note for facts in runs.values() for note in facts.notes]
    figures: list[dict[str, Any]] = []
    tasks = []
    for task in dict.fromkeys(facts.run.task for facts in runs.values()):
        members = {place: facts for place, facts in runs.items() if facts.run.task == task}
        tasks.append(_task(task, members, groups, _within(wish.ask, members, labels), figures))
    overall = _overall(runs, groups, wish.ask, notes) if len(tasks) > 1 else None
    figures += _diagnostics(runs, groups)
    split = charts.time_split(runs, groups, len(names))
    films = _films(runs, groups, wish.films, film_source, notes)
    view = {
        "title": wish.title,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": library(),
        "about": about(list(runs.values()), len(names), len(tasks)),
        "groups": [
            {"name": name, "runs": [place for place in groups if groups[place] == number]}
            for number, name in enumerate(names)
        ],
        "labels": {
            place: {"seed": facts.run.seed, "folder": str(facts.run.folder)}
            for place, facts in runs.items()
        },
        "tasks": tasks,
        "overall": overall,
        "diagnostics": [one for one in figures if one["kind"] == "diagnostic"],
        "split": split,
        "split_parts": list(dict.fromkeys(part for row in split for part in row)),
        "smoothness": smoothness(runs, groups, len(names)),
        "films": films,
        "differences": differences(runs, groups, len(names)),
        "recipes": [
            json.dumps(next(f.run.recipe for p, f in runs.items() if groups[p] == number), indent=2)
            for number in range(len(names))
        ],
        "runs": run_rows(runs, groups),
        "origin": origin(runs),
        "notes": list(dict.fromkeys(notes)),
    }
    data = {
        "groups": names,
        "runs": [
            f"{names[groups[p]]}, seed {facts.run.seed}" + _apart(p, runs, groups)
            for p, facts in runs.items()
        ],
        "figures": figures,
        "metrics": charts.choices(runs, groups),
    }
    return Page(view, data)


def _read_all(folders: Sequence[Path], unreadable: list[str] | None) -> Iterator[Facts]:
    for folder in folders:
        try:
            yield read_facts(folder)
        except UserError as error:
            if unreadable is None:
                raise
            unreadable.append(f"left out: {error}")


def _apart(place: int, runs: Mapping[int, Facts], groups: Mapping[int, int]) -> str:
    """What tells a run from another of its group with the same seed: the task, or the folder."""
    run = runs[place].run
    same = [f.run for p, f in runs.items() if groups[p] == groups[place] and f.run.seed == run.seed]
    if len(same) == 1:
        return ""
    unique = len({other.task for other in same}) == len(same)
    return f" ({run.task if unique else run.folder.name})"


def _within(ask: Ask, members: Mapping[int, Facts], labels: Sequence[str]) -> Ask:
    """What is asked of one task, where groups may have other names than on the whole page: there a recipe of a family
    is called after the family, if it is the only one."""
    own = groups_of([facts.run for facts in members.values()], ask.by)
    named = [
        here for here, place in zip(own, members, strict=True) if labels[place] == ask.baseline
    ]
    return replace(ask, baseline=next(iter(named), ""))


def _places(
    made: Comparison, runs: Mapping[int, Facts], groups: Mapping[int, int]
) -> dict[str, int]:
    """The number on the page of each group of a comparison: its runs tell which it is."""
    place_of = {str(facts.run.folder): place for place, facts in runs.items()}
    first = {group.name: next(iter(next(iter(group.scores.values())))) for group in made.groups}
    return {name: groups[place_of[folder]] for name, folder in first.items()}


def _task(
    task: str,
    members: Mapping[int, Facts],
    groups: Mapping[int, int],
    ask: Ask,
    figures: list[dict[str, Any]],
) -> dict[str, Any]:
    """The section of one task: curves over steps and minutes, and a table."""
    made, scale, notes = _compared([facts.run for facts in members.values()], task, ask)
    places = {} if made is None else _places(made, members, groups)
    ids = []
    for axis in AXES:
        lines = [
            charts.group_line(group, places[group.name], axis)
            for group in (() if made is None else made.groups)
        ]
        figure = {
            "id": f"figure-{len(figures)}",
            "kind": "curve",
            "x_title": charts.X_TITLES[axis],
            "y_title": _y_title(scale),
            "label": f"{_y_title(scale)} on {task} over {charts.X_TITLES[axis]}",
            "means": [line for line in lines if line is not None],
            "lines": charts.run_lines(members, scale, axis, groups),
        }
        if figure["lines"]:
            ids.append({"id": figure["id"], "label": figure["label"]})
            figures.append(figure)
    return {
        "name": task,
        "figures": ids,
        "rows": [] if made is None else results(made, places, members),
        "notes": notes,
        "what": _y_title(scale),
        "at": "" if scale is None else number(scale.at_env_steps),
        "baseline": made.baseline if made is not None else "",
        "range": None if scale is None else scale.range,
    }


def _compared(
    runs: Sequence[Any], task: str, ask: Ask
) -> tuple[Comparison | None, TaskScale | None, list[str]]:
    """The comparison on one task. Where there is none, the curves of the runs remain, and a note says why."""
    try:
        made = compare(runs, ask)
    except UserError as error:
        return None, None, [str(error)]
    return made, made.tasks[task], made.notes


def _overall(
    runs: Mapping[int, Facts], groups: Mapping[int, int], ask: Ask, notes: list[str]
) -> list[Result] | None:
    try:
        made = compare([facts.run for facts in runs.values()], ask)
    except UserError as error:
        notes.append(f"no table over all tasks: {error}")
        return None
    notes += made.notes
    return results(made, _places(made, runs, groups), runs)


def _y_title(scale: TaskScale | None) -> str:
    if scale is None or (scale.metric == "return" and scale.range is None):
        return "return"
    return "success rate" if scale.metric == "success" else "score"


def _diagnostics(runs: Mapping[int, Facts], groups: Mapping[int, int]) -> list[dict[str, Any]]:
    names = sorted({n for f in runs.values() for n in f.metrics if n.startswith("diagnose/")})
    found = []
    for place, name in enumerate(names):
        lines = charts.metric_lines(runs, name, groups)
        figure: dict[str, Any] = {
            "id": f"diagnostic-{place}",
            "kind": "diagnostic",
            "label": name[9:],
        }
        figure |= {"x_title": "environment steps", "y_title": "", "lines": lines}
        found.append(figure | {"means": charts.means(lines)})
    return found


def _films(
    runs: Mapping[int, Facts],
    groups: Mapping[int, int],
    most: int,
    source: FilmSource,
    notes: list[str],
) -> list[dict[str, Any]]:
    """The newest film of the best runs of each group."""
    found: list[dict[str, Any]] = []
    room = MOST_FILMS
    for group in sorted(set(groups.values())):
        own = [p for p in runs if groups[p] == group and runs[p].films]
        own.sort(key=lambda p: max(runs[p].run.returns, default=float("-inf")), reverse=True)
        for place in own[:most]:
            film = runs[place].films[0]
            try:
                address = source(place, film)
            except UserError as error:
                notes.append(f"a film is left out: {error}")
                continue
            room -= len(address)
            if room < 0:
                notes.append(
                    f"{film.path} is left out: the films have more than {MOST_FILMS >> 20} MiB."
                )
                continue
            found.append(
                {
                    "group": group,
                    "run": place,
                    "type": film.type,
                    "src": address,
                    "name": film.path.name,
                }
            )
    return found


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element, whatever strings it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: no U+2028
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _template(name: str) -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["n"] = number
    return environment.from_string(_asset(name))


@functools.cache
def _asset(name: str) -> str:
    return (files("fleetfoot.report") / name).read_text(encoding="utf-8")


def plotly_source() -> str:
    """Plotly's script, as its Python package brings it; UserError where it is not installed."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError as error:
        raise UserError(f"reports need plotly: {install_line('report')}") from error
    return str(offline.get_plotlyjs())


@functools.cache
def _packed_plotly() -> str:
    """Compressed: 2 MB of text instead of 4.8. Every browser since 2023 unpacks it."""
    return base64.b64encode(gzip.compress(plotly_source().encode(), 9, mtime=0)).decode()


def main_html(page: Page) -> str:
    """The content alone, for a page that is there already."""
    return str(_template("main.html").render(page.view, colours=COLOURS))


def page_html(page: Page, *, live: bool = False) -> str:
    """The whole page. `live`: the page asks its server for Plotly, films and newer content."""
    if not live:
        plotly_source()  # the line that names the extra, before anything else
    return str(
        _template("page.html").render(
            page.view,
            main=main_html(page),
            data=script_json(page.data),
            css=_asset("page.css"),
            js=_asset("page.js"),
            plotly="" if live else _packed_plotly(),
            live=live,
            nonce=secrets.token_urlsafe(16),
        )
    )
