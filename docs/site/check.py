"""Check a built site: `python docs/site/check.py build/site [--browser]`.

Every link and every anchor leads somewhere, and nothing is loaded from elsewhere: the site works without a network.
With --browser a headless Chromium opens every written page, light and dark, and reports errors of the console, requests
that leave the disk, missing alternative texts and text with too little contrast (WCAG AA: 4.5 to 1, large text 3 to 1).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "video": "src",
    "source": "src",
    "iframe": "src",
    "link": "href",
}
CHROMIUM = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --allow-file-access-from-files "
    "--remote-debugging-port=0 --window-size=1300,900"
)


class Page(HTMLParser):
    """The links, the anchors and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif (
            tag in LOADS
            and given.get(LOADS[tag])
            and given.get("rel") not in ("canonical", "prev", "next")
        ):
            self.loads.append(given[LOADS[tag]])


def check_files(site: Path) -> list[str]:
    pages = {
        path: Page(path.read_text())
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }
    problems = []
    for path, page in pages.items():
        here = path.relative_to(site)
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    problems.append(f"{here}: loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                problems.append(f"{here}: {link} leads nowhere")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                problems.append(f"{here}: {link} has no such anchor")
    return problems


# Runs in the page: [text, colour, background, contrast] of what is hard to read, and pictures without a text.
INSPECT = """(() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const f = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const background = (e) => { const layers = []; for (let n = e; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor); if (c[3] > 0) layers.push(c); if (c[3] === 1) break; }
    let c = [255, 255, 255, 1]; while (layers.length) c = over(layers.pop(), c); return c; };
  const out = [], seen = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !e.offsetParent || e.closest('[hidden],.md-skip,.headerlink,.md-clipboard,.md-top')) continue;
    const s = getComputedStyle(e); if (s.visibility === 'hidden') continue;
    let opacity = 1; for (let n = e; n; n = n.parentElement) opacity *= Number(getComputedStyle(n).opacity);
    if (opacity < 0.05) continue;
    const bg = background(e), fg = parse(s.color); fg[3] *= opacity;
    const a = light(over(fg, bg)), b = light(bg), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(s.fontSize), large = size >= 24 || (size >= 18.66 && Number(s.fontWeight) >= 700);
    const key = [s.color, bg.map(Math.round), large].join(); if (ratio >= (large ? 3 : 4.5) || seen.has(key)) continue;
    seen.add(key); out.push(`contrast ${ratio.toFixed(2)}: ${text.slice(0, 30)} (${e.tagName}.${e.className})`); }
  for (const image of document.images) { if (!image.alt) out.push('no alternative text: ' + image.src);
    if (image.complete && !image.naturalWidth) out.push('not shown: ' + image.src); }
  if (document.documentElement.scrollWidth > innerWidth + 1) out.push('wider than the window');
  return out; })()"""


class Browser:
    """A headless Chromium, spoken to by the DevTools protocol."""

    def __init__(self) -> None:
        from websockets.sync.client import connect

        program = (
            shutil.which("chromium")
            or shutil.which("chromium-browser")
            or shutil.which("google-chrome")
        )
        if program is None:
            sys.exit("check: there is no Chromium here: apt-get install chromium")
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [program, *CHROMIUM.split(), f"--user-data-dir={self.folder.name}", "about:blank"],
            stderr=subprocess.DEVNULL,
        )
        port_file = Path(self.folder.name) / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not port_file.exists() or "\n" not in port_file.read_text():
            if time.monotonic() > deadline:
                sys.exit("check: Chromium does not start")
            time.sleep(0.1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            target = next(t for t in json.load(answer) if t["type"] == "page")
        self.stack = contextlib.ExitStack()
        self.socket = self.stack.enter_context(
            connect(target["webSocketDebuggerUrl"], max_size=None)
        )
        self.count = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        # Every page is seen as by a new reader: the theme remembers light or dark.
        self.ask("Page.addScriptToEvaluateOnNewDocument", source="localStorage.clear()")

    def ask(self, method: str, **params: Any) -> Any:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == self.count:
                return message.get("result", {})
            self.events.append(message)

    def wait_for(self, event: str) -> None:
        while not any(message.get("method") == event for message in self.events):
            self.events.append(json.loads(self.socket.recv(timeout=60)))

    def evaluate(self, expression: str) -> Any:
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return answer["result"].get("value")

    def open(self, url: str, scheme: str) -> None:
        self.events.clear()
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)
        self.ask("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def complaints(self) -> list[str]:
        out = []
        for message in self.events:
            method, params = message.get("method"), message.get("params", {})
            if method == "Runtime.exceptionThrown":
                out.append(f"exception: {params['exceptionDetails'].get('text')}")
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                out.append(f"console: {params['entry']['text']} {params['entry'].get('url', '')}")
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                out.append(f"console: {params['args'][0].get('value')}")
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    out.append(f"asks for {url}")
        return out

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self.stack.close()
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def check_in_browser(site: Path, every: bool) -> list[str]:
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")  # a server's
    if not every:
        few = {
            "reference/agents/fast_td3.html",
            "reference/index.html",
            "results/learner-h200.html",
        }
        made = ("reference/", "results/", "source/")
        names = {path: path.relative_to(site).as_posix() for path in pages}
        pages = [path for path, name in names.items() if name in few or not name.startswith(made)]
    browser = Browser()
    problems = []
    try:
        for path in pages:
            for scheme in ("light", "dark"):
                browser.open(path.as_uri(), scheme)
                seen = [*browser.evaluate(INSPECT), *browser.complaints()]
                problems += [f"{path.relative_to(site)} ({scheme}): {line}" for line in seen]
        browser.open((site / "index.html").as_uri(), "light")
        problems += search(browser, "replay")
    finally:
        browser.close()
    print(f"check: {len(pages)} pages in Chromium, light and dark, {len(problems)} problems")
    return problems


def search(browser: Browser, word: str) -> list[str]:
    """The search finds a word, from disk and without a server."""
    browser.evaluate(
        "(() => { document.querySelector('[data-md-toggle=search]').click();"
        "const field = document.querySelector('.md-search__input'); field.focus();"
        f"field.value = '{word}'; field.dispatchEvent(new Event('keyup', {{bubbles: true}})); }})()"
    )
    for _ in range(60):
        count = browser.evaluate("document.querySelectorAll('.md-search-result__item').length")
        if count:
            print(f"check: the search finds {count} pages for {word!r}")
            return []
        time.sleep(0.25)
    return [f"index.html: the search finds nothing for {word!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--browser", action="store_true", help="open the pages in Chromium")
    parser.add_argument(
        "--every", action="store_true", help="also the generated pages (with --browser)"
    )
    given = parser.parse_args()
    site = given.site.resolve()
    problems = check_files(site)
    print(f"check: {len(list(site.rglob('*.html')))} files, {len(problems)} problems")
    if given.browser:
        problems += check_in_browser(site, given.every)
    print("\n".join(problems[:200]), file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
