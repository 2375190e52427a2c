"""A hub on the loopback device, for the real client of the hub: `HF_ENDPOINT` points at it.

    with LoopbackHub(folder) as hub:
        hub.endpoint                    # http://127.0.0.1:PORT
        hub.fail("PUT /lfs/", "reset")  # the next upload is reset
        hub.requests                    # what was requested, in order

It keeps to the real hub's protocol: repositories, revisions, trees in pages, large files by checksum with
redirects, commits with a parent, ranges. Xet storage is left out (`HF_HUB_DISABLE_XET=1`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from tests.hub.repositories import Commit, Entry, Hub, Refused, Repository

WRITE, READ, OTHER = "hf_write", "hf_read", "hf_other"
"""Tokens: may write to `org` and `user`; may only read; may write to `other`."""
TEST_ENVIRONMENT = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
}
PAGE = 1000


@dataclass
class Fault:
    """Failure of the requests that match, `times` times after the first `skip`.

    Kinds: `503`, `429` (with `Retry-After: 0`), `reset` before anything is done, `lost` (done, but the reply
    is reset), `cut` (a body that ends early), `flip` (a body with a wrong byte); or a function that is called
    before the request is answered.
    """

    pattern: str
    kind: str | Callable[[], None]
    times: int = 1
    skip: int = 0

    def take(self, request: str) -> bool:
        if not re.search(self.pattern, request):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return self.times >= 0


class LoopbackHub:
    """See the module."""

    def __init__(self, folder: Path, *, page: int = PAGE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.hub = Hub(folder, {WRITE: ("org", "user"), OTHER: ("other",)}, (READ,))
        self.page = page
        self.requests: list[str] = []
        self.faults: list[Fault] = []

    def __enter__(self) -> LoopbackHub:
        self.socket = socket.create_server(("127.0.0.1", 0))
        port = self.socket.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self.store = (
            f"http://localhost:{port}"  # another host, as on the real hub: the client leaves out its token
        )
        config = uvicorn.Config(
            self._answer,
            log_level="error",
            lifespan="off",
            ws="none",
            loop="asyncio",
            interface="asgi3",
            http="h11",
            proxy_headers=False,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.socket.close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process uses this hub and may write to it."""
        return {**TEST_ENVIRONMENT, "HF_ENDPOINT": self.endpoint, "HF_TOKEN": WRITE}

    def fail(self, pattern: str, kind: str | Callable[[], None], *, times: int = 1, skip: int = 0) -> None:
        """Let requests whose `METHOD /path` matches a pattern go wrong; see `Fault`."""
        self.faults.append(Fault(pattern, kind, times, skip))

    def count(self, pattern: str) -> int:
        """Number of requests whose `METHOD /path` matches."""
        return sum(re.search(pattern, each) is not None for each in self.requests)

    def repository(self, name: str, kind: str = "datasets") -> Repository:
        return self.hub.repositories[kind, name]

    def files(self, name: str, revision: str = "main", kind: str = "datasets") -> dict[str, bytes]:
        """Contents of a revision, by path."""
        return {
            path: self.hub.read(entry)
            for path, entry in self.repository(name, kind).find(revision).files.items()
        }

    # serving

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        path = scope["raw_path"].decode().split("?")[0]
        line = f"{request.method} {path}"
        self.requests.append(line)
        fault = next((each for each in self.faults if each.take(line)), None)
        kind = fault.kind if fault else ""
        if callable(kind):
            await asyncio.to_thread(kind)
        elif kind == "reset":
            return self._reset(send)
        elif kind in ("429", "503"):
            headers = {"Retry-After": "0"} if kind == "429" else {}
            return await Response("busy", int(kind), headers)(scope, receive, send)
        response = await self._respond(request, [unquote(part) for part in path.strip("/").split("/")])
        if kind == "lost":
            return self._reset(send)
        if kind in ("cut", "flip"):
            return await self._spoil(response, kind, scope, receive, send)
        await response(scope, receive, send)

    def _reset(self, send: Any) -> None:
        """Close the connection as a crash does; uvicorn passes the sender of its own connection."""
        send.__self__.transport.abort()

    async def _spoil(self, response: Response, kind: str, scope: Any, receive: Any, send: Any) -> None:
        body = bytearray(response.body)
        if kind == "flip" and body:
            body[len(body) // 2] ^= 1
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        part = bytes(body[: len(body) // 2] if kind == "cut" else body)
        await send({"type": "http.response.body", "body": part, "more_body": kind == "cut"})
        if kind == "cut":
            await asyncio.sleep(0.05)
            self._reset(send)

    async def _respond(self, request: Request, parts: list[str]) -> Response:
        try:
            return await self._route(request, parts)
        except Refused as refused:
            headers = {
                "X-Error-Message": refused.message,
                **({"X-Error-Code": refused.code} if refused.code else {}),
            }
            return JSONResponse({"error": refused.message}, refused.status, headers)

    async def _route(self, request: Request, parts: list[str]) -> Response:
        method, token = request.method, _token(request)
        if parts[0] == "lfs":
            return await self._object(request, parts[1])
        if parts[:2] == ["api", "validate-yaml"]:
            return JSONResponse({"errors": [], "warnings": []})
        if parts == ["api", "repos", "create"] and method == "POST":
            asked = await request.json()
            name = f"{asked.get('organization') or 'user'}/{asked['name']}"
            kind = f"{asked.get('type') or 'model'}s"
            self.hub.create(
                kind, name, asked.get("visibility") == "private" or bool(asked.get("private")), token
            )
            return JSONResponse({"url": self._url(kind, name), "id": name})
        if parts[0] == "api" and len(parts) >= 4 and parts[1] in ("datasets", "models"):
            repository = self.hub.see(parts[1], f"{parts[2]}/{parts[3]}", token)
            return await self._api(request, repository, parts[4:], token)
        kind, rest = ("datasets", parts[1:]) if parts[0] == "datasets" else ("models", parts)
        if rest[2:] == ["info", "lfs", "objects", "batch"] and rest[1].endswith(".git"):
            name = f"{rest[0]}/{rest[1].removesuffix('.git')}"
            self.hub.see(kind, name, token)
            self.hub.require_writer(name, token)
            return self._batch(await request.json())
        if len(rest) >= 5 and rest[2] == "resolve":
            repository = self.hub.see(kind, f"{rest[0]}/{rest[1]}", token)
            return self._resolve(request, repository.find(rest[3]), "/".join(rest[4:]))
        raise Refused(404, f"no such page: {request.url.path}")

    async def _api(
        self, request: Request, repository: Repository, parts: list[str], token: str | None
    ) -> Response:
        """Requests below `/api/KIND/ORG/NAME`."""
        hub, what, rest = self.hub, parts[0] if parts else "revision", parts[1:]
        revision = rest[0] if rest else "main"
        if request.method == "GET" and what == "revision":
            return JSONResponse(
                self._info(repository, repository.find(revision), "blobs" in request.query_params)
            )
        if request.method == "GET" and what == "tree":
            return self._tree(request, repository.find(revision), "/".join(rest[1:]))
        if request.method == "POST" and what == "paths-info":
            paths = parse_qs((await request.body()).decode()).get("paths", [])
            files = repository.find(revision).files
            return JSONResponse([_listed(path, files[path]) for path in paths if path in files])
        hub.require_writer(repository.name, token)
        if what == "preupload":
            files, found = (await request.json())["files"], repository.find(revision).files
            return JSONResponse(
                {
                    "files": [
                        {
                            "path": each["path"],
                            "uploadMode": hub.upload_mode(each["path"], each["size"]),
                            "shouldIgnore": False,
                            "oid": found[each["path"]].oid if each["path"] in found else None,
                        }
                        for each in files
                    ]
                }
            )
        if what == "commit":
            lines = [json.loads(line) for line in (await request.body()).splitlines() if line.strip()]
            commit = hub.commit(repository, revision, lines)
            url = f"{self._url(repository.kind, repository.name)}/commit/{commit.sha}"
            return JSONResponse({"success": True, "commitOid": commit.sha, "commitUrl": url})
        if what == "branch":
            asked = json.loads(await request.body() or b"{}")
            if revision in repository.branches:
                raise Refused(409, f"Reference already exists: {revision}")
            repository.branches[revision] = repository.find(asked.get("startingPoint", "main")).sha
            return JSONResponse({})
        raise Refused(404, f"no such page: {request.url.path}")

    def _url(self, kind: str, name: str) -> str:
        return f"{self.endpoint}/datasets/{name}" if kind == "datasets" else f"{self.endpoint}/{name}"

    def _info(self, repository: Repository, commit: Commit, blobs: bool) -> dict[str, Any]:
        siblings = [
            {"rfilename": path} if not blobs else {"rfilename": path, "size": entry.size, "blobId": entry.oid}
            for path, entry in commit.files.items()
        ]
        return {
            "id": repository.name,
            "sha": commit.sha,
            "private": repository.private,
            "siblings": siblings,
        }

    def _tree(self, request: Request, commit: Commit, folder: str) -> Response:
        """One page of a folder: its files and folders, or with `recursive` everything below it."""
        prefix = f"{folder}/" if folder else ""
        below = {path: entry for path, entry in commit.files.items() if path.startswith(prefix)}
        if folder and not below:
            raise Refused(404, f"{folder} does not exist on the revision", "EntryNotFound")
        recursive = request.query_params.get("recursive", "").lower() in ("1", "true")
        found: dict[str, dict[str, Any]] = {}
        for path, entry in sorted(below.items()):
            inner = path[len(prefix) :].split("/")
            for depth in range(1, len(inner) if recursive else min(len(inner), 2)):
                name = prefix + "/".join(inner[:depth])
                found[name] = {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
            if recursive or len(inner) == 1:
                found[path] = _listed(path, entry)
        start = int(request.query_params.get("cursor", 0))
        headers = {}
        if start + self.page < len(found):
            url = request.url.include_query_params(cursor=start + self.page)
            headers["Link"] = f'<{url}>; rel="next"'
        return JSONResponse(list(found.values())[start : start + self.page], headers=headers)

    def _batch(self, asked: dict[str, Any]) -> Response:
        """Address for the upload of each large file; none for one that is stored."""
        answers = []
        for each in asked["objects"]:
            if not self.hub.stored(each["oid"]).exists():
                each["actions"] = {"upload": {"href": f"{self.store}/lfs/{each['oid']}"}}
            answers.append(each)
        return JSONResponse({"transfer": "basic", "objects": answers})

    async def _object(self, request: Request, oid: str) -> Response:
        """A large file: stored if its bytes have the checksum that names it, or read."""
        path = self.hub.stored(oid)
        if request.method in ("GET", "HEAD"):
            return _bytes(request, path.read_bytes(), oid)
        data = await request.body()
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refused(400, "the checksum differs")
        path.write_bytes(data)
        return Response(headers={"ETag": f'"{oid}"'})

    def _resolve(self, request: Request, commit: Commit, path: str) -> Response:
        headers = {"X-Repo-Commit": commit.sha}
        entry = commit.files.get(path)
        if entry is None:
            headers.update({"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return Response("Entry not found", 404, headers)
        if entry.lfs is None:
            return _bytes(request, entry.data, entry.oid, headers)
        headers.update({"X-Linked-ETag": f'"{entry.lfs}"', "X-Linked-Size": str(entry.size)})
        return RedirectResponse(f"{self.store}/lfs/{entry.lfs}", 302, headers)


def _token(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind == "Bearer" else None


def _listed(path: str, entry: Entry) -> dict[str, Any]:
    """A file as in a tree."""
    listed: dict[str, Any] = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    if entry.lfs is not None:
        listed["lfs"] = {"oid": entry.lfs, "size": entry.size, "pointerSize": 130}
    return listed


def _bytes(request: Request, data: bytes, etag: str, headers: dict[str, str] | None = None) -> Response:
    """Bytes or a range of them; for HEAD their size alone."""
    headers = {"ETag": f'"{etag}"', "Accept-Ranges": "bytes", **(headers or {})}
    status = 200
    if match := re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", "")):
        first, last = match.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= len(data):
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        data, status = data[start:stop], 206
    if request.method == "HEAD":
        return Response(status_code=status, headers={**headers, "Content-Length": str(len(data))})
    return Response(data, status, headers, media_type="application/octet-stream")
