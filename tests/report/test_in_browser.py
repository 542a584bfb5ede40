"""The page as a browser sees it: no complaint, no request, and it answers to clicks.

The first test is in the suite; the others run with `pytest -m slow tests/report`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetfoot import compare, report
from fleetfoot.compare import Ask, Bootstrap
from fleetfoot.report.serve import serve
from support.browser import Browser, chromium
from support.report_runs import full_run, hostile_run, two_groups, write_lines

pytest.importorskip("rliable")
pytest.importorskip("plotly")

WISH = report.Wish("Report", Ask(bootstrap=Bootstrap(reps=100)))
VISIBLE = """
return [...document.getElementById('figure-0').data].filter(trace => trace.visible === true).length"""
# Every text on the page against the first opaque background behind it, as WCAG 2.2 counts; figures' texts too.
LOW_CONTRAST = r"""
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
return [seen, bad];"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def write_page(folder: Path, *runs: Path) -> Path:
    page = report.build(compare.find([str(run) for run in runs]), WISH)
    path = folder / "page.html"
    path.write_text(report.page_html(page))
    return path


def test_it_draws_hides_and_runs_no_strangers_script(tmp_path: Path, browser: Browser) -> None:
    hostile_run(tmp_path / "x")
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs"), tmp_path / "x"))
    assert browser.run("return document.querySelectorAll('#figure-0 .scatterlayer path').length")
    before = browser.run(VISIBLE)
    browser.run("document.querySelector('.chip[data-run]').click()")
    assert browser.run(VISIBLE) == before - 1  # its line; the band is that of all runs
    browser.run("document.querySelector('.chip[data-group]').click()")
    assert browser.run(VISIBLE) == before - 5  # three lines, the mean and the band
    browser.run("document.querySelectorAll('.chip').forEach(chip => chip.click())")
    assert browser.run("return window.hacked ?? null") is None
    assert browser.complaints() == []
    assert browser.requests() == []


@pytest.mark.slow
def test_it_zooms_shows_values_and_plays_the_film(tmp_path: Path, browser: Browser) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs")))
    layer = browser.driver.find_element(By.CSS_SELECTOR, "#figure-0 .nsewdrag")
    browser.run("document.getElementById('figure-0').scrollIntoView({block: 'center'})")
    whole = browser.run("return document.getElementById('figure-0').layout.xaxis.range")
    ActionChains(browser.driver).move_to_element(layer).perform()
    curve = "document.getElementById('figure-0')"
    browser.run(
        f"Plotly.Fx.hover({curve}, [{{curveNumber: {curve}.data.length - 1, pointNumber: 4}}])"
    )
    label = browser.wait("return document.querySelector('#figure-0 .hovertext')?.textContent")
    assert "fast_td3/pendulum" in label
    drag = ActionChains(browser.driver).move_to_element_with_offset(layer, -100, -60)
    drag.click_and_hold().move_by_offset(150, 100).release().perform()
    zoomed = browser.wait(
        f"const r = {curve}.layout.xaxis.range; return r[0] > {whole[0] + 1} ? r : null"
    )
    browser.run("document.querySelector('.chip[data-run]').click()")  # hiding keeps the zoom
    assert browser.run(f"return {curve}.layout.xaxis.range") == pytest.approx(zoomed)
    browser.run("const v = document.querySelector('video'); v.muted = true; v.play()")
    browser.wait("return document.querySelector('video').currentTime > 0")
    browser.run(
        "const s = document.getElementById('metric'); s.value = 'eval/action_jerk';"
        "s.dispatchEvent(new Event('change'))"
    )
    axis = "return document.getElementById('explorer').layout.yaxis.title.text"
    assert browser.run(axis) == "eval/action_jerk"
    assert browser.complaints() == []
    assert browser.requests() == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_text_can_be_read_and_nothing_runs_over(
    tmp_path: Path, scheme: str, width: int, browser: Browser
) -> None:
    browser.driver.set_window_size(width, 900)
    browser.media(prefers_color_scheme=scheme)
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs")))
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    seen, bad = browser.run(LOW_CONTRAST)
    assert seen > 150
    assert bad == []
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    browser.run("document.getElementById('theme').click()")
    other = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert other != background
    assert browser.run(LOW_CONTRAST)[1] == []
    browser.driver.set_window_size(1280, 900)
    browser.media()
    assert browser.complaints() == []


@pytest.mark.slow
def test_on_paper_it_is_light_and_figures_fit(tmp_path: Path, browser: Browser) -> None:
    browser.media(prefers_color_scheme="dark")
    browser.open(write_page(tmp_path, two_groups(tmp_path / "runs")))
    # What the page does before it is printed, looked at in the size of the paper.
    browser.run("dispatchEvent(new Event('beforeprint'))")
    widths = browser.run(
        "return [...document.querySelectorAll('.figure')].map(one => one.querySelector('svg').clientWidth)"
    )
    assert max(widths[:2]) <= 345
    printed = browser.pdf(tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run("return getComputedStyle(document.body).backgroundColor") in (
        "rgb(255, 255, 255)",
    )
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.media()
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_dashboard_follows_a_run(tmp_path: Path, browser: Browser) -> None:
    folder = full_run(tmp_path, "a/x", 0, total=1000)
    full_run(tmp_path, "a/x", 1, total=1000)
    with serve(tmp_path, 0, WISH) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            browser.open(server.address)
            points = "document.getElementById('figure-0').data[0].x.length"
            assert browser.run(f"return {points}") == 12
            browser.run("document.querySelector('.chip[data-run=\"1\"]').click()")
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
            more = lines[-1] | {"vec_steps": 130, "env_steps": 520, "eval/return": 7.0}
            write_lines(folder, [*lines, more])
            browser.wait(f"return {points} === 13")
            hidden = "return document.querySelector('.chip[data-run=\"1\"]').ariaPressed"
            assert browser.run(hidden) == "false"
            assert browser.complaints() == []
            assert browser.requests(allowed=server.address) == []
        finally:
            browser.driver.get("about:blank")
            server.shutdown()
            thread.join()
