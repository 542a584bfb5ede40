"""The server in front of viser, as a browser and as somebody else's page see it."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("websockets")

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fleetfoot.play.extra import start_viser, stop_viser, viser_module
from fleetfoot.play.page import Page
from support.extras import needs
from support.tabs import wait_until

needs("viser")


class Heard:
    """Collects what browsers say."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.page = Page(
            "127.0.0.1",
            0,
            1,
            config={"kind": "robot"},
            state=lambda: {"heard": len(self.said)},
            hear=self.said.append,
            picture=lambda: b"a picture",
        )


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.page.close()


def get(page: Page, path: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{page.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_page_is_visers_with_our_script(heard: Heard) -> None:
    status, html = get(heard.page, "/")
    assert status == 200
    assert html.count(b"/fleetfoot/play.js") == 1
    assert len(html) > 100_000
    for path in ("/fleetfoot/play.js", "/fleetfoot/play.css"):
        assert get(heard.page, path)[0] == 200
    for path in ("/fleetfoot/../page.py", "/etc/passwd", "/fleetfoot/page.py"):
        assert get(heard.page, path)[0] == 404


def test_other_sites_and_names_are_turned_away(heard: Heard) -> None:
    port = heard.page.port
    assert get(heard.page, "/", Host=f"evil.example:{port}")[0] == 403
    assert get(heard.page, "/", Host=f"localhost:{port}")[0] == 200
    for origin in ("http://evil.example", f"http://localhost:{port + 1}", "null"):
        with pytest.raises(InvalidStatus):
            connect(f"ws://127.0.0.1:{port}/input", additional_headers={"Origin": origin})
    own = {"Origin": f"http://127.0.0.1:{port}"}
    with connect(f"ws://127.0.0.1:{port}/input", additional_headers=own) as socket:
        assert "config" in json.loads(socket.recv())


def test_visers_own_port_takes_the_page_and_no_browser() -> None:
    server = start_viser("a test")
    page = Page("127.0.0.1", 0, server.get_port(), config={}, state=dict, hear=lambda said: None)
    try:
        protocol: Any = [f"viser-v{viser_module().__version__}"]
        inner = f"ws://127.0.0.1:{server.get_port()}"
        for origin in ("http://evil.example", inner.replace("ws", "http")):
            with pytest.raises(InvalidStatus):
                connect(inner, subprotocols=protocol, additional_headers={"Origin": origin})
        own = {"Origin": f"http://127.0.0.1:{page.port}"}
        outer = f"ws://127.0.0.1:{page.port}"
        with connect(outer, subprotocols=protocol, additional_headers=own, max_size=None) as socket:
            assert len(socket.recv()) > 0
    finally:
        page.close()
        stop_viser(server)


def test_input_is_heard_and_nonsense_is_not(heard: Heard) -> None:
    with connect(f"ws://127.0.0.1:{heard.page.port}/input") as socket:
        for message in ("{", "[1]", "3", "x" * 2_000, b"bytes"):
            socket.send(message)
        for message in (f'{{"steer": [{"9" * 400}, 0, 0]}}', '{"steer": [1, 0, 0]}'):
            socket.send(message)
        wait_until(lambda: len(heard.said) > 1)
        assert heard.said == [{"steer": [math.inf, 0, 0]}, {"steer": [1, 0, 0]}]
        found = [socket.recv() for _ in range(6)]
    assert b"a picture" in found
    assert any("state" in json.loads(one) for one in found if isinstance(one, str))


def test_one_that_leaves_does_not_disturb_the_other(heard: Heard) -> None:
    url = f"ws://127.0.0.1:{heard.page.port}/input"
    with connect(url) as stays:
        gone = connect(url)
        gone.send('{"steer": [1, 0, 0]}')
        wait_until(lambda: heard.said)
        gone.socket.close()  # without a goodbye, and with the stick in its hand
        wait_until(lambda: {"steer": [0.0, 0.0, 0.0]} in heard.said)
        stays.send('{"press": "pause"}')
        wait_until(lambda: {"press": "pause"} in heard.said)


def test_one_that_leaves_with_empty_hands_takes_nothing_from_the_other(heard: Heard) -> None:
    url = f"ws://127.0.0.1:{heard.page.port}/input"
    with connect(url) as stays:
        with connect(url) as leaves:
            for message in ('{"steer": [1, 0, 0]}', '{"steer": [0, 0, 0]}'):
                leaves.send(message)
            for down in ("true", "false"):
                leaves.send(f'{{"key": "ArrowUp", "down": {down}}}')
            leaves.send('{"key": "ArrowDown", "down": true}')
            wait_until(lambda: len(heard.said) == 5)
            stays.send('{"steer": [0, 1, 0]}')
            wait_until(lambda: len(heard.said) == 6)
        wait_until(lambda: len(heard.said) > 6)
        stays.send('{"press": "pause"}')
        wait_until(lambda: {"press": "pause"} in heard.said)
    assert heard.said[6:8] == [{"key": "ArrowDown", "down": False}, {"press": "pause"}]
