"""The report of a folder of runs, live, for one person on this machine.

It listens on 127.0.0.1 alone, reads and never writes, and answers four addresses: the page, Plotly's script, newer
content, and films by a digest. No address names a path, so none can lead out of the folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fleetfoot.errors import UserError
from fleetfoot.report.facts import FILM_TYPES, Film
from fleetfoot.report.page import MOST_RUNS, Page, Wish, build
from fleetfoot.report.render import main_html, page_html, plotly_source

HOST = "127.0.0.1"
SHOWN = ("recipe.json", "metrics.jsonl", "provenance.json")  # what a change of is seen
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Edition:
    """The page as it was at one version of the folder."""

    version: str
    page: Page
    films: dict[str, Film]  # by the end of their address


class Source:
    """A folder of runs. The newest edition is kept until a file changes."""

    def __init__(self, root: Path, wish: Wish):
        self.root, self.wish = root, wish
        self.lock = threading.Lock()
        self.newest: Edition | None = None

    def folders(self) -> list[Path]:
        """The newest runs, in the order of their names. A folder that leads elsewhere through a link is none."""
        inside = self.root.resolve()
        found = [
            path.parent
            for path in self.root.rglob("recipe.json")
            if path.is_file() and path.parent.resolve().is_relative_to(inside)
        ]
        found.sort(key=_changed, reverse=True)
        return sorted(found[:MOST_RUNS])

    def version(self, folders: list[Path]) -> str:
        files = [path for folder in folders for path in _files(folder)]
        facts = [(str(path), *_size_and_time(path)) for path in files]
        return _digest(facts)

    def edition(self) -> Edition:
        try:
            return self._edition()
        except OSError as error:  # a run that was moved or deleted while it was read
            raise UserError(
                f"{self.root} changed while it was read: {error.strerror or error}."
            ) from error

    def _edition(self) -> Edition:
        with self.lock:
            folders = self.folders()
            version = self.version(folders)
            if self.newest is None or self.newest.version != version:
                films: dict[str, Film] = {}

                def address(_: int, film: Film) -> str:
                    """The same for as long as the film is the same: the page then leaves it playing."""
                    fact = str(film.path), *_size_and_time(film.path)
                    name = _digest(fact) + film.path.suffix.lower()
                    films[name] = film
                    return f"film/{name}"

                page = build(folders, self.wish, address, lenient=True)
                self.newest = Edition(version, page, films)
            return self.newest


def _files(folder: Path) -> Iterator[Path]:
    for name in SHOWN:
        yield folder / name
    videos = folder / "videos"
    if videos.is_dir() and not videos.is_symlink():
        yield from sorted(path for path in videos.iterdir() if path.suffix.lower() in FILM_TYPES)


def _digest(facts: object) -> str:
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        stat = path.lstat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _changed(folder: Path) -> int:
    return max(_size_and_time(folder / name)[1] for name in SHOWN)


class Server(ThreadingHTTPServer):
    """UserError where the port cannot be had."""

    daemon_threads = True

    def __init__(self, source: Source, port: int):
        self.source = source
        plotly_source()  # before a browser asks
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "is taken" if taken else f"cannot be used ({error.strerror or error})"
            raise UserError(f"port {port} {why}; choose another with --port.") from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; every other method is refused by the base class."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        # A page elsewhere can point a name of its own at 127.0.0.1, and read what the browser of its visitor is given.
        if self.headers.get("Host") not in self._names():
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 alone")
            return
        try:
            self._answer()
        except UserError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except OSError:
            self.close_connection = True  # the reader has gone, or takes nothing any more

    do_HEAD = do_GET  # noqa: N815

    def _names(self) -> tuple[str, str]:
        return f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"

    def _answer(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/":
            page = page_html(self.server.source.edition().page, live=True)
            self._send(page.encode(), "text/html; charset=utf-8")
        elif url.path == "/plotly.js":
            self._send(plotly_source().encode(), "text/javascript; charset=utf-8")
        elif url.path == "/content":
            self._content(parse_qs(url.query).get("after", [""])[0])
        elif url.path.startswith("/film/"):
            film = self.server.source.edition().films.get(url.path.removeprefix("/film/"))
            if film is None:
                self._refuse(HTTPStatus.NOT_FOUND, "there is no such film")
            else:
                self._send(film.read(), film.type)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _content(self, after: str) -> None:
        edition = self.server.source.edition()
        if edition.version == after:
            self._send(b"", "", HTTPStatus.NO_CONTENT)
            return
        body = {"version": edition.version, "html": main_html(edition.page)}
        self._send(json.dumps(body | {"data": edition.page.data}).encode(), "application/json")

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if kind:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", status)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal stays with its one line."""


def serve(root: Path, port: int, wish: Wish) -> Server:
    """A server that is bound, and answers once `serve_forever` is called."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}.")
    return Server(Source(root, replace(wish, ask=replace(wish.ask, unfinished=True))), port)
