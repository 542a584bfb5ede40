"""The content of a page as HTML.

All text from run folders passes through Jinja's autoescape into HTML, or through `script_json` into the data of the
page's script. The page's policy (CSP) allows no script but its own and no request.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import secrets
from importlib.resources import files
from typing import Any

from fleetfoot import extras
from fleetfoot.report.page import Page
from fleetfoot.report.tables import number

COLOURS = 10  # of groups, before they repeat; as many as page.css has


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
    return str(extras.load("plotly.offline", "report", "reports need plotly").get_plotlyjs())


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
