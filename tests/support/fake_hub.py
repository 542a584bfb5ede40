"""A small part of Hugging Face's HTTP interface, in memory: repositories of models, commits and downloads.

It answers what `huggingface_hub` asks for in `fleetfoot push` and `pull`, and notes what it cannot answer. It stores
every file in the commit itself ("regular"); large files, which the real one keeps elsewhere, are not imitated.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from support.serving import answering

TOKEN = "hf_made_up"


class FakeHub(ThreadingHTTPServer):
    """`repos`: name -> path -> content."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.messages: list[str] = []
        self.unknown: list[str] = []
        self.sizes: dict[str, int] = {}  # what it says of a file, where that is not true

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sha(self, repo: str) -> str:
        return hashlib.sha1(repr(sorted(self.repos[repo].items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        repo = next((name for name in self.server.repos if f"/{name}/" in f"{path}/"), None)
        if repo is None:
            self.send(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"/{repo}/resolve/"):
            self.send_file(repo, path.split("/", 5)[5])
        elif path.startswith(f"/api/models/{repo}/tree/"):
            self.send(200, [self.entry(repo, name) for name in self.server.repos[repo]])
        elif path in (f"/api/models/{repo}", *self.revisions(repo)):
            siblings = [self.sibling(repo, name) for name in self.server.repos[repo]]
            about = {"id": repo, "modelId": repo, "sha": self.server.sha(repo)}
            self.send(200, {**about, "private": self.server.private[repo], "siblings": siblings})
        elif path.startswith(f"/api/models/{repo}/revision/"):
            self.send(404, {"error": "no"}, **{"X-Error-Code": "RevisionNotFound"})
        else:
            self.lost()

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send(401, {"error": "Invalid username or password."})
            return
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            told = json.loads(body)
            name = (
                f"{told['organization']}/{told['name']}" if "organization" in told else told["name"]
            )
            private = told.get("visibility") == "private" or bool(told.get("private"))
            self.server.private.setdefault(name, private)
            self.server.repos.setdefault(name, {})
            self.send(200, {"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            self.send(200, {"files": [self.regular(file["path"]) for file in files]})
        elif path.endswith("/commit/main"):
            repo = path.removeprefix("/api/models/").removesuffix("/commit/main")
            self.commit(repo, [json.loads(line) for line in body.splitlines()])
        elif path == "/api/validate-yaml":
            self.send(200, {"errors": [], "warnings": []})
        else:
            self.lost()

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "file":
                assert value["encoding"] == "base64"
                self.server.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.server.repos[repo][value["path"]]
            else:
                self.server.unknown.append(line["key"])
        sha = self.server.sha(repo)
        where = f"{self.server.address}/{repo}/commit/{sha}"
        self.send(200, {"success": True, "commitOid": sha, "commitUrl": where, "hookOutput": ""})

    def revisions(self, repo: str) -> list[str]:
        return [f"/api/models/{repo}/revision/{name}" for name in ("main", self.server.sha(repo))]

    def regular(self, path: str) -> dict[str, Any]:
        return {"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None}

    def size(self, repo: str, name: str) -> int:
        return self.server.sizes.get(name, len(self.server.repos[repo][name]))

    def sibling(self, repo: str, name: str) -> dict[str, Any]:
        return {"rfilename": name, "size": self.size(repo, name), "blobId": self.etag(repo, name)}

    def entry(self, repo: str, name: str) -> dict[str, Any]:
        about = {"oid": self.etag(repo, name), "size": self.size(repo, name)}
        return {"type": "file", "path": name, **about}

    def etag(self, repo: str, name: str) -> str:
        return hashlib.sha1(self.server.repos[repo][name]).hexdigest()

    def send_file(self, repo: str, name: str) -> None:
        if name not in self.server.repos[repo]:
            self.send(404, {"error": "no"}, **{"X-Error-Code": "EntryNotFound"})
            return
        about = {"ETag": f'"{self.etag(repo, name)}"', "X-Repo-Commit": self.server.sha(repo)}
        self.send(200, self.server.repos[repo][name], **about)

    def lost(self) -> None:
        self.server.unknown.append(f"{self.command} {self.path}")
        self.send(404, {"error": "not imitated"})

    def send(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    with FakeHub() as server, answering(server):
        yield server
