"""`fleetfoot dashboard`: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetfoot.compare import Ask, Bootstrap
from fleetfoot.report import Wish
from fleetfoot.report.serve import HOST, Server, serve
from support.command import refusal
from support.extras import needs
from support.fake_runs import make_run
from support.report_runs import add_film, full_run
from support.serving import answering

needs("rliable", "plotly")


@contextmanager
def running(root: Path) -> Iterator[Server]:
    wish = Wish("a folder", Ask(bootstrap=Bootstrap(reps=100)))
    with serve(root, 0, wish) as server, answering(server):
        yield server


def ask(
    server: Server, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_it_serves_the_page_its_script_and_films(tmp_path: Path) -> None:
    film = add_film(full_run(tmp_path, "a/x", 0))
    with running(tmp_path) as server:
        status, page = ask(server, "/")
        assert status == 200
        assert b"data-live" in page
        assert b"data:video" not in page
        assert ask(server, "/plotly.js")[1][:200].count(b"plotly.js") == 1
        address = page.partition(b'<video src="')[2].partition(b'"')[0].decode()
        assert ask(server, f"/{address}") == (200, film.read_bytes())
        assert ask(server, "/", "HEAD") == (200, b"")


def test_it_tells_what_is_new_and_only_then(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a/x", 0, [1.0, 2.0], total=100)
    with running(tmp_path) as server:
        first = json.loads(ask(server, "/content")[1])
        assert ask(server, f"/content?after={first['version']}") == (204, b"")
        line = {"vec_steps": 30, "env_steps": 120, "train_seconds": 3.0, "eval/return": 5.0}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        second = json.loads(ask(server, f"/content?after={first['version']}")[1])
        assert second["version"] != first["version"]
        assert second["data"]["figures"][0]["lines"][0]["y"] == [1.0, 2.0, 5.0]
        make_run(tmp_path, "b/x", 0, [1.0])
        third = json.loads(ask(server, f"/content?after={second['version']}")[1])
        assert third["data"]["groups"] == ["a/x", "b/x"]


def test_a_film_keeps_its_address_while_it_is_the_same(tmp_path: Path) -> None:
    film = add_film(full_run(tmp_path, "b/x", 0))

    def address(server: Server) -> bytes:
        return ask(server, "/")[1].partition(b'<video src="')[2].partition(b'"')[0]

    with running(tmp_path) as server:
        first = address(server)
        full_run(tmp_path, "a/x", 0)  # stands before it
        assert address(server) == first
        film.write_bytes(film.read_bytes() + b"\0")
        assert address(server) != first


def test_it_begins_with_an_empty_folder(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        status, page = ask(server, "/")
        assert status == 200
        assert b"<dd>0</dd>" in page


def test_no_address_leads_out_of_the_folder(tmp_path: Path) -> None:
    root, secret = tmp_path / "runs", tmp_path / "secret.txt"
    secret.write_text("a secret")
    folder = make_run(root, "a/x", 0, [1.0])
    outside = make_run(tmp_path / "other", "secret/x", 0, [1.0])
    os.symlink(outside, root / "link")
    os.symlink(secret, folder / "provenance.json")
    with running(root) as server:
        for path in (
            "/../secret.txt",
            "/film/../../secret.txt",
            "/film/%2e%2e/%2e%2e/secret.txt",
            f"/film/{secret}",
            f"//{secret}",
            f"/{folder.name}/recipe.json",
            "/film/",
        ):
            status, body = ask(server, path)
            assert (status, b"secret.txt" in body, b"a secret" in body) == (404, False, False)
        status, page = ask(server, "/")
        assert status == 200
        assert b"secret/x" not in page
        assert b"a secret" not in page


def test_only_this_machine_by_its_own_name_and_only_reading(tmp_path: Path) -> None:
    make_run(tmp_path, "a/x", 0, [1.0])
    before = sorted(tmp_path.rglob("*"))
    with running(tmp_path) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server, "/", host="evil.example")[0] == 403
        assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200
        for method in ("POST", "PUT", "DELETE"):
            assert ask(server, "/", method)[0] == 501
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_vanishes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "a/x", 0, [1.0])

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    with running(tmp_path) as server:
        with monkeypatch.context() as patch:
            patch.setattr("fleetfoot.report.serve.build", gone)
            assert ask(server, "/content")[0] == 500
        assert ask(server, "/content")[0] == 200


def test_a_damaged_run_is_named_and_the_others_stay(tmp_path: Path) -> None:
    make_run(tmp_path, "a/x", 0, [1.0])
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "recipe.json").write_text("{")
    with running(tmp_path) as server:
        status, page = ask(server, "/")
        assert status == 200
        assert b"torn/recipe.json cannot be read" in page
        assert b"a/x" in page


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run"], "Did you mean runs?"),
        (["file"], "is a file"),
        (["runs", "--port", "70000"], "--port must be from 0 to 65535"),
        (["runs", "--port", "x"], "not a whole number"),
        (["runs", "--host", "0.0.0.0"], "there is no option --host"),
    ],
)
def test_mistakes_get_one_line(
    args: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("file").write_text("")
    assert says in refusal(capsys, "dashboard", *args)


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        said = refusal(capsys, "dashboard", str(tmp_path), "--port", str(port))
        assert f"port {port} is taken; choose another with --port." in said
