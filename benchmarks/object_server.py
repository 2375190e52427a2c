"""A plain object server for measurements: enough of S3 for obstore, ranges by `sendfile`, on loopback.

    python -m benchmarks.object_server FOLDER [--made FILES] [--latency SECONDS]     prints its port

Buckets are folders of FOLDER. It lists, answers HEAD and GET with ranges and `If-Match`, and PUT with
`If-None-Match`. The bucket `made` has FILES small JSONL files that exist in listings and answers only. It
checks no signatures, and speaks as little of the protocol as the measurements need; correctness is tested
with a real server (`tests/storage/servers.py`).
"""

from __future__ import annotations

import argparse
import bisect
import http.server
import os
import re
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

MADE = "made"
BODY = b'{"text": "a small file of one document, as there are many"}\n'
LISTED = 1000
TIME = "2026-01-01T00:00:00.000Z"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one connection.

    Attributes:
        folder: folder of the buckets.
        names: keys of the bucket `made`, sorted.
        latency: seconds before each answer to GET and HEAD.
    """

    protocol_version = "HTTP/1.1"
    folder: Path
    names: list[str]
    latency: float

    def log_message(self, format: str, *args: object) -> None:
        """No log."""

    def do_HEAD(self) -> None:
        """Size and ETag."""
        self._get(body=False)

    def do_GET(self) -> None:
        """A listing, or bytes."""
        parts = urlsplit(self.path)
        if "list-type" in (query := parse_qs(parts.query)):
            self._list(parts.path.strip("/"), query)
        else:
            self._get(body=True)

    def do_PUT(self) -> None:
        """Create or replace an object."""
        path = self._path()
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("If-None-Match") == "*" and path.exists():
            self._answer(412)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._answer(200, {"ETag": f'"{len(data)}"'})

    def _path(self) -> Path:
        return self.folder / unquote(urlsplit(self.path).path).lstrip("/")

    def _answer(self, status: int, headers: dict[str, str] | None = None, data: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _get(self, *, body: bool) -> None:
        time.sleep(self.latency)
        path = self._path()
        if path.parent.name == MADE or path.parent.parent.name == MADE:
            self._send(None, len(BODY), "made", 0.0, body=body)
            return
        try:
            with open(path, "rb") as file:
                facts = os.fstat(file.fileno())
                etag = f"{facts.st_mtime_ns}-{facts.st_size}"
                self._send(file, facts.st_size, etag, facts.st_mtime, body=body)
        except (FileNotFoundError, IsADirectoryError):
            self._answer(404)

    def _send(self, file: BinaryIO | None, size: int, etag: str, modified: float, *, body: bool) -> None:
        if self.headers.get("If-Match", f'"{etag}"') != f'"{etag}"':
            self._answer(412)
            return
        start, stop = 0, size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            start, stop = int(asked[1]), min(int(asked[2] or size) + 1, size)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Last-Modified", formatdate(modified, usegmt=True))
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if not body:
            return
        if file is None:
            self.wfile.write(BODY[start:stop])
            return
        while start < stop:
            start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        if bucket == MADE:
            at = bisect.bisect_right(self.names, after) if after else bisect.bisect_left(self.names, prefix)
            some = self.names[at : at + LISTED + 1]
            found = [(name, len(BODY), "made") for name in some if name.startswith(prefix)]
        else:
            paths = (path for path in (self.folder / bucket).rglob("*") if path.is_file())
            names = sorted((str(path.relative_to(self.folder / bucket)), path) for path in paths)
            chosen = [one for one in names if one[0].startswith(prefix) and one[0] > after][: LISTED + 1]
            found = []
            for name, path in chosen:
                facts = path.stat()
                etag = f"{facts.st_mtime_ns}-{facts.st_size}"
                found.append((name, facts.st_size, etag))
        more, found = len(found) > LISTED, found[:LISTED]
        rows = "".join(
            f"<Contents><Key>{name}</Key><LastModified>{TIME}</LastModified>"
            f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size></Contents>"
            for name, size, etag in found
        )
        token = f"<NextContinuationToken>{found[-1][0]}</NextContinuationToken>" if more else ""
        text = (
            f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name><Prefix>{prefix}</Prefix>'
            f"<KeyCount>{len(found)}</KeyCount><MaxKeys>{LISTED}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        )
        self._answer(200, {"Content-Type": "application/xml"}, text.encode())


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: clients that are measured end without closing their connections."""

    request_queue_size = 256


def main() -> None:
    """Serve until the process is ended, or its standard input closes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--made", type=int, default=0, help="files of the bucket `made`")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer with bytes")
    options = parser.parse_args()
    names = [f"{number // 1000:06d}/{number:09d}.jsonl" for number in range(options.made)]
    settings = {"folder": options.folder, "names": names, "latency": options.latency}
    handler = type("Bound", (Handler,), settings)
    with Server(("127.0.0.1", 0), handler) as server:
        print(server.server_port, flush=True)
        import threading

        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
