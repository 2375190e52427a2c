"""A web server for tests, on loopback: one folder, with ranges, ETags and faults by script."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Web:
    """State of the server, changed by tests while it serves.

    Attributes:
        faults: what happens to the next answers with a body, one after another.
        ranges: False for a server that ignores ranges.
        etags: False for a server without ETags.
        times: False for one without times of modification.
        requests: method, path and range of each request.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[str] = []
        self.ranges = self.etags = self.times = True
        self.requests: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.address = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        web = self.web
        asked = self.headers.get("Range", "")
        with web.lock:
            web.requests.append((self.command, self.path, asked))
            fault = web.faults.pop(0) if web.faults and body else ""
        path = web.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if fault.isdigit() or not path.is_file():
            self._refuse(int(fault) if fault.isdigit() else 404)
            return
        data = path.read_bytes()
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        if web.etags and self.headers.get("If-Match", etag) != etag:
            self._refuse(412)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if web.ranges else None
        start, stop = 0, len(data)
        if found:
            start, stop = int(found[1]), min(int(found[2] or len(data)) + 1, len(data))
            if start >= len(data):
                self._refuse(416)
                return
        part = data[start:stop]
        if fault == "short":
            part = part[: len(part) // 2]
            stop = start + len(part)
        if fault == "flip":
            part = bytes([part[0] ^ 1]) + part[1:]
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        if web.etags:
            self.send_header("ETag", etag)
        if web.times:
            self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if not body:
            return
        if fault in ("cut", "stall"):
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            if fault == "stall":
                web.stopped.wait(30)
            self.close_connection = True
            return
        self.wfile.write(part)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve(folder: Path) -> Iterator[Web]:
    web = Web(folder)
    handler = type("Handler", (_Handler,), {"web": web})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        serving.daemon_threads = True
        web.address = f"http://127.0.0.1:{serving.server_port}"
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield web
        finally:
            web.stopped.set()
            serving.shutdown()
            thread.join()
