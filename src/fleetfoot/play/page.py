"""The page: viser's, with a stick, keys and gamepads added by a script of ours, all behind one port.

viser draws and has sliders, but cannot carry a script, and so hears neither a held key nor a gamepad. Here is a small
server in front of it: a browser gets viser's own page with two tags more (`assets/play.js`, `assets/play.css`), its
WebSocket is handed on to viser, which listens on this computer only, and a second WebSocket, `/input`, carries what our
script has to say:

    browser -> us   {"steer": [1, 0, 0]}   each in [-1, 1];  {"press": "push"};  {"key": "ArrowUp", "down": true}
    us -> browser   {"config": {...}} once, then {"state": {...}} ten times a second; and JPEG pictures, where the page
                    shows some

A page of another site could open WebSockets to this computer as well, so both ask where they come from, and viser's own
port takes no browser at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from fleetfoot.errors import UserError
from fleetfoot.play.extra import viser_module

ASSETS = Path(__file__).parent / "assets"
FILES = {
    "/fleetfoot/play.js": ("play.js", "text/javascript; charset=utf-8"),
    "/fleetfoot/play.css": ("play.css", "text/css; charset=utf-8"),
}
TAGS = (
    '<link rel="stylesheet" href="/fleetfoot/play.css"><script src="/fleetfoot/play.js"></script>'
)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
DEFAULT_PORT, PORTS = 8080, 20  # where none is given, the first free one of so many
STATE_SECONDS, PICTURE_SECONDS = 0.1, 0.02
VISER_BYTES = 50 << 20  # the largest message that viser takes
Json: TypeAlias = dict[str, Any]
LOGGER = logging.getLogger("fleetfoot.play.page")
# Browsers open connections ahead and close them unused; each would be a traceback.
LOGGER.addFilter(lambda record: "handshake" not in str(record.msg))


class Page:
    """Serves until `close`. `hear` gets what browsers say, in the page's thread."""

    def __init__(
        self,
        host: str,
        port: int | None,
        inner: int,
        *,
        config: Json,
        state: Callable[[], Json],
        hear: Callable[[Json], None],
        picture: Callable[[], bytes] | None = None,
    ) -> None:
        self.host, self.inner = host, inner
        self.config, self.state, self.hear, self.picture = config, state, hear, picture
        self.socket = bind(host, port)
        self.port = int(self.socket.getsockname()[1])
        self.html = page_of_viser()
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._thread.start()
        self._ready.wait(10.0)

    @property
    def url(self) -> str:
        host = "localhost" if self.host in ("", "0.0.0.0", "::", *LOOPBACK) else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        if self._stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5.0)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        from websockets.asyncio.server import serve

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serve(
            self._connected,
            sock=self.socket,
            process_request=self._request,
            select_subprotocol=lambda _, offered: offered[0] if offered else None,
            compression=None,
            max_size=VISER_BYTES,
            close_timeout=1.0,
            logger=LOGGER,
        ):
            self._ready.set()
            await self._stop.wait()

    def _request(self, connection: Any, request: Any) -> Any:
        """Files over HTTP. None: go on with the WebSocket."""
        path = urlsplit(request.path).path
        if not self._welcome(request.headers):
            return connection.respond(http.HTTPStatus.FORBIDDEN, "this page is for this computer\n")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return None
        if path == "/":
            return _answer(self.html, "text/html; charset=utf-8")
        if path in FILES:
            name, kind = FILES[path]
            return _answer((ASSETS / name).read_bytes(), kind)
        return connection.respond(http.HTTPStatus.NOT_FOUND, "not found\n")

    def _welcome(self, headers: Any) -> bool:
        """Not from the page of another site; nor under another name, while only this computer is meant."""
        asked = urlsplit(f"//{headers.get('Host', '')}").hostname or ""
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("Host"):
            return False
        return self.host not in LOOPBACK or asked in LOOPBACK

    async def _connected(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # a browser that went away
            if urlsplit(connection.request.path).path == "/input":
                await self._input(connection)
            else:
                await self._relay(connection)

    async def _input(self, connection: Any) -> None:
        await connection.send(json.dumps({"config": self.config}))
        telling = asyncio.create_task(self._tell(connection))
        # What a browser holds, and what is said for it where it leaves without letting go.
        let_go: dict[str, Json] = {}
        try:
            async for message in connection:
                said = _parsed(message)
                match said:
                    case {"steer": list(wanted)} if any(wanted):
                        let_go["steer"] = {"steer": [0.0] * len(wanted)}
                    case {"steer": _}:
                        let_go.pop("steer", None)
                    case {"key": str(code), "down": True}:
                        let_go[f"key {code}"] = {"key": code, "down": False}
                    case {"key": str(code)}:
                        let_go.pop(f"key {code}", None)
                if said is not None:
                    self.hear(said)
        finally:
            telling.cancel()
            for words in let_go.values():
                self.hear(words)

    async def _tell(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            await self._talk(connection)

    async def _talk(self, connection: Any) -> None:
        told, shown = 0.0, b""
        while True:
            if time.monotonic() - told >= STATE_SECONDS:
                told = time.monotonic()
                await connection.send(json.dumps({"state": self.state()}))
            picture = b"" if self.picture is None else self.picture()
            if picture is not shown:
                shown = picture
                await connection.send(picture)
            await asyncio.sleep(STATE_SECONDS if self.picture is None else PICTURE_SECONDS)

    async def _relay(self, connection: Any) -> None:
        """What the browser and viser say to each other."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed

        async def pump(source: Any, sink: Any) -> None:
            with contextlib.suppress(ConnectionClosed):
                async for message in source:
                    await sink.send(message)
            await sink.close()

        protocol = [connection.subprotocol] if connection.subprotocol else None
        async with connect(
            f"ws://127.0.0.1:{self.inner}",
            subprotocols=protocol,
            compression=None,
            max_size=VISER_BYTES,
            proxy=None,
        ) as viser:
            await asyncio.gather(pump(connection, viser), pump(viser, connection))


def _parsed(message: str | bytes) -> Json | None:
    """What a browser says; None where it is nonsense."""
    if isinstance(message, str) and len(message) < 1_000:
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(message, parse_int=float)  # a huge integer overflows later
            return said if isinstance(said, dict) else None
    return None


def bind(host: str, port: int | None) -> socket.socket:
    """A listening socket. UserError in one line where the port is taken or the address is not ours."""
    tried = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + PORTS)
    for number in tried:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, number), family=family)
        except OSError as error:
            reason = str(error.strerror or error).partition(" (while")[0]  # Python adds a tuple
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise UserError(f"cannot listen on {host}: {reason}.") from None
    if port is not None:
        raise UserError(f"port {port} cannot be used: {reason}. Leave --port out for a free one.")
    raise UserError(f"all ports from {tried[0]} to {tried[-1]} are taken; give another --port.")


def page_of_viser() -> bytes:
    """viser's page, with our script before its own."""
    source = Path(viser_module().__file__).parent / "client/build/index.html"
    try:
        html = source.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"this viser has no page at {source} ({error.strerror}).") from None
    return html.replace("<head>", f"<head>{TAGS}", 1).encode()


def _answer(body: bytes, kind: str) -> Any:
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    headers = Headers(
        {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
    )
    return Response(200, "OK", headers, body)
