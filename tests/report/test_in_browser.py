"""The page as a browser sees it: no complaint, no request, and it answers to clicks.

The first test is in the suite; the others run with `pytest -m slow tests/report`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import compare, report
from fleetfoot.compare import Ask, Bootstrap
from fleetfoot.report.serve import serve
from support.browser import Browser, chromium
from support.extras import needs
from support.report_runs import add_film, full_run, hostile_run, two_groups, write_lines

needs("rliable", "plotly")

WISH = report.Wish("Report", Ask(bootstrap=Bootstrap(reps=100)))
VISIBLE = "[...document.getElementById('figure-0').data].filter(one => one.visible === true).length"
# Every text on the page against the first opaque background behind it, as WCAG 2.2 counts; figures' texts too.
LOW_CONTRAST = r"""() => {
const parse = c => (c.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => { const f = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
const bad = []; let seen = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, owner = node.parentElement;
  const unseen = ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(owner.tagName) || !owner.getClientRects().length;
  if (unseen || !node.data.trim()) continue;
  const style = getComputedStyle(owner);
  const ink = parse(owner instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [light(ink), light(behind(owner))].sort((x, y) => y - x);
  seen += 1;
  if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([node.data.trim().slice(0, 40), owner.tagName, (a + 0.05) / (b + 0.05)]);
}
return [seen, bad]; }"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def write_page(folder: Path, *runs: Path) -> Path:
    page = report.build(compare.find([str(run) for run in runs]), WISH)
    path = folder / "page.html"
    path.write_text(report.page_html(page))
    return path


RANGE = "document.getElementById('figure-0').layout.xaxis.range"


def zoom(browser: Browser) -> list[float]:
    """Drag a rectangle in the first figure. The new range of its horizontal axis."""
    mouse, layer = browser.page.mouse, browser.page.locator("#figure-0 .nsewdrag").first
    layer.scroll_into_view_if_needed()
    box, whole = layer.bounding_box(), browser.run(RANGE)
    mouse.move(box["x"] + 60, box["y"] + 60)
    mouse.down()
    mouse.move(box["x"] + 260, box["y"] + 200, steps=8)
    mouse.up()
    browser.wait(f"{RANGE}[0] > {whole[0]} + 1")
    zoomed: list[float] = browser.run(RANGE)
    return zoomed


def click(browser: Browser, chip: str) -> None:
    browser.page.locator(f".chip{chip}").first.click()


def test_it_draws_hides_and_runs_no_strangers_script(tmp_path: Path, browser: Browser) -> None:
    hostile_run(tmp_path / "x")
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs"), tmp_path / "x"))
    assert browser.run("document.querySelectorAll('#figure-0 .scatterlayer path').length") > 0
    before = browser.run(VISIBLE)
    click(browser, "[data-run]")
    assert browser.run(VISIBLE) == before - 1  # its line; the band is that of all runs
    click(browser, "[data-group]")
    assert browser.run(VISIBLE) == before - 5  # three lines, the mean and the band
    browser.run("document.querySelectorAll('.chip').forEach(chip => chip.click())")
    assert browser.run("window.hacked ?? null") is None
    assert browser.complaints == []
    assert browser.requests == []


@pytest.mark.slow
def test_it_zooms_shows_values_and_plays_the_film(tmp_path: Path, browser: Browser) -> None:
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs")))
    browser.page.locator("#figure-0").scroll_into_view_if_needed()
    # The last point of the last group, wherever it is: its mean is drawn on top.
    point = (
        browser.page.locator("#figure-0 .trace").last.locator(".points path").last.bounding_box()
    )
    browser.page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    label = browser.wait("document.querySelector('#figure-0 .hovertext')?.textContent")
    assert "fast_td3/pendulum" in label
    zoomed = zoom(browser)
    click(browser, "[data-run]")  # hiding keeps the zoom
    assert browser.run(RANGE) == pytest.approx(zoomed)
    browser.run("() => { document.querySelector('video').play() }")
    browser.wait("document.querySelector('video').currentTime > 0")
    browser.page.locator("#metric").select_option("eval/action_jerk")
    axis = "document.getElementById('explorer').layout.yaxis.title.text"
    assert browser.run(axis) == "eval/action_jerk"
    assert browser.complaints == []
    assert browser.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_text_can_be_read_and_nothing_runs_over(
    tmp_path: Path, scheme: Any, width: int, browser: Browser
) -> None:
    browser.page.set_viewport_size({"width": width, "height": 900})
    browser.page.emulate_media(color_scheme=scheme)
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs")))
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    background = "getComputedStyle(document.body).backgroundColor"
    seen, bad = browser.run(LOW_CONTRAST)
    assert seen > 150
    assert bad == []
    before = browser.run(background)
    assert (before == "rgb(255, 255, 255)") == (scheme == "light")
    assert browser.run("document.documentElement.scrollWidth - innerWidth") <= 0
    browser.page.locator("#theme").click()
    assert browser.run(background) != before
    assert browser.run(LOW_CONTRAST)[1] == []
    assert browser.complaints == []


@pytest.mark.slow
def test_on_paper_it_is_light_and_figures_fit(tmp_path: Path, browser: Browser) -> None:
    browser.page.set_viewport_size({"width": 1280, "height": 900})
    browser.page.emulate_media(color_scheme="dark")
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs")))
    wide = "[...document.querySelectorAll('.figure svg.main-svg')].map(one => one.clientWidth)"
    assert max(browser.run(wide)) > 700
    browser.run("() => { dispatchEvent(new Event('beforeprint')) }")
    assert max(browser.run(wide)[:6]) <= 345  # two beside each other on A4
    browser.run("() => { dispatchEvent(new Event('afterprint')) }")
    assert max(browser.run(wide)) > 700
    assert browser.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    browser.page.emulate_media(media="print", color_scheme="dark")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.page.emulate_media(media="screen", color_scheme="light")
    assert browser.complaints == []


@pytest.mark.slow
def test_the_dashboard_follows_a_run(tmp_path: Path, browser: Browser) -> None:
    folder = full_run(tmp_path, "a/x", 0, total=1000)
    full_run(tmp_path, "a/x", 1, total=1000)
    add_film(folder)
    with serve(tmp_path, 0, WISH) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            browser.open(server.address)
            points = "document.getElementById('figure-0').data[0].x.length"
            assert browser.run(points) == 12
            click(browser, "[data-run='1']")
            zoomed = zoom(browser)
            video = "document.querySelector('video')"
            browser.run(f"() => {{ window.film = {video}; film.play() }}")
            browser.wait(f"{video}.currentTime > 0")
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
            more = lines[-1] | {"vec_steps": 130, "env_steps": 520, "eval/return": 7.0}
            write_lines(folder, [*lines, more])
            browser.wait(f"{points} === 13")
            assert browser.run(RANGE) == pytest.approx(zoomed)
            assert browser.run(f"{video} === film && !film.paused")
            hidden = "[...document.querySelectorAll('.chip[aria-pressed=false]')].map(c => c.textContent)"
            assert browser.run(hidden) == ["seed 1"]
            full_run(tmp_path, "_first/x", 0)  # from now on the numbers of the others are larger
            browser.wait("document.querySelectorAll('.chip.group').length === 2")
            assert browser.run(hidden) == ["seed 1"]
            assert browser.run("document.contains(film) && !film.paused")
            assert browser.complaints == []
            assert [a for a in browser.requests if not a.startswith(server.address)] == []
        finally:
            browser.page.goto("about:blank")
            server.shutdown()
            thread.join()
