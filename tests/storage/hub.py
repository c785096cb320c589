"""A Hugging Face hub in small: the documented endpoints over a folder of repositories.

`FOLDER/org/name/REVISION/…` are the files of data sets, `FOLDER/models/…` those of models.
Branches are folders (`/` in a branch is written `%2F`).
A commit is the hash of its branch's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    cards: dict[str, Any]
    token = ""
    log: list[str]

    def log_message(self, *args: object) -> None:
        pass

    def _revision(self, repo: str, revision: str) -> Path | None:
        for branch in (self.folder / repo).glob("*"):
            if revision in (unquote(branch.name), commit_of(repo, unquote(branch.name))):
                return branch
        return None

    def _any(self) -> None:
        parts = urlsplit(self.path)
        self.log.append(f"{self.command} {unquote(parts.path)}")
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self._json(401, {"error": "Invalid username or password."}, {"X-Error-Code": "RepoNotFound"})
        path = parts.path
        found = re.match(r"^/api/datasets/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?$", path)
        if found:
            repo, what, revision, rest = found.groups()
            return self._api(repo, what or "revision", unquote(revision or "main"), unquote(rest or ""), parse_qs(parts.query))
        found = re.match(r"^/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.*)$", path)
        if found:
            return self._resolve(found[1], unquote(found[2]), unquote(found[3]))
        found = re.match(r"^/([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.*)$", path)
        if found:  # of a model; those are in FOLDER/models
            return self._resolve(f"models/{found[1]}", unquote(found[2]), unquote(found[3]))
        return self._json(404, {"error": "no such endpoint"})

    do_GET = do_HEAD = do_POST = _any  # noqa: N815 - http.server's names

    def _api(self, repo: str, what: str, revision: str, rest: str, query: dict[str, list[str]]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not (self.folder / repo).is_dir():
            return self._json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        root = self._revision(repo, revision)
        if root is None:
            return self._json(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if what == "revision":
            sha = commit_of(repo, unquote(root.name))
            return self._json(200, {"id": repo, "sha": sha, "cardData": self.cards.get(repo, {}), "tags": [], "siblings": []})
        if what == "paths-info":
            paths = json.loads(body)["paths"]
            return self._json(200, [describe(root, root / p) for p in paths if (root / p).exists()])
        start = root / rest
        if not start.is_dir():
            return self._json(404, {"error": "no such entry"}, {"X-Error-Code": "EntryNotFound"})
        found = start.rglob("*") if query.get("recursive", [""])[0].lower() == "true" else start.glob("*")
        every = [describe(root, p) for p in sorted(found)]
        at = int(query.get("cursor", ["0"])[0])
        more = {}
        if len(every) > at + 3:  # pages are short here, so that there are several
            host = self.headers["Host"]
            flag = query.get("recursive", ["false"])[0]
            address = f"http://{host}{urlsplit(self.path).path}?recursive={flag}&cursor={at + 3}"
            more = {"Link": f'<{address}>; rel="next"'}
        return self._json(200, every[at : at + 3], more)

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        root = self._revision(repo, revision)
        commit = {"X-Repo-Commit": commit_of(repo, revision)}
        if root is None or not (root / name).is_file():
            return self._json(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", **commit})
        data = (root / name).read_bytes()
        status, headers = 200, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Accept-Ranges": "bytes", **commit}
        asked = self.headers.get("Range", "")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            status, data = 206, data[start:stop]
        return self._send(status, headers, data)

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def commit_of(repo: str, branch: str) -> str:
    return hashlib.sha1(f"{repo}@{branch}".encode()).hexdigest()


def describe(root: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0}
    data = path.read_bytes()
    made: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if len(data) > 1000:
        made["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return made


def put(folder: Path, repo: str, files: dict[str, bytes], branch: str = "main") -> None:
    for name, data in files.items():
        path = folder / repo / quote(branch, safe="") / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(data)
