"""A proxy before an object store that answers as stores and networks do on a bad day.

    schedule = Schedule(seed=7, rate=0.3)
    with fault_proxy(bucket.endpoint, schedule) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        ...
    assert proxy.faults()                     # what was done, in order: (method, path, fault)

A fault is chosen by the seed, the method, the path and the number of earlier requests with both, so it does
not depend on the order in which threads and processes send their requests. After `burst` faults in a row for
one method and path the next passes, so that whoever tries again comes to an end. `at` names
faults by hand instead.

    busy       503 SlowDown, nothing done
    failed     500 InternalError, nothing done
    reset      the connection is reset, nothing done
    conflict   409 for a conditional put, nothing done
    truncated  done; the answer ends in the middle of its body
    slow       done; the answer comes in small pieces over `slow_seconds`
    lost       done; the connection is reset instead of an answer
    flipped    a bit of the answer's body is flipped; of the request's body where it has one, which a store
               answers by 400 where the signature contains the checksum, and stores where it does not
    denied     403 with an answer that repeats the request's signature and key id, as S3 does; only by `at`
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import xxhash

FAULTS = ("busy", "failed", "reset", "conflict", "truncated", "slow", "lost", "flipped")
PASSING = tuple(fault for fault in FAULTS if fault != "flipped")
"""Faults after which a client that tries again has the right bytes."""

_ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>{}</Message></Error>"
_CONDITIONS = {"if-none-match", "if-match"}


@dataclass
class Schedule:
    """Choice of the fault for each request.

    Args:
        seed: another seed, other faults.
        rate: share of the requests that meet one.
        faults: what to choose from.
        burst: most faults in a row for one method and path.
        slow_seconds: time of a slow answer.
        at: `at(method, path, number)` names the fault of a request, None for none, instead of the seed;
            `number` counts the requests with this method and path from 0.
    """

    seed: int = 0
    rate: float = 0.3
    faults: Sequence[str] = PASSING
    burst: int = 2
    slow_seconds: float = 0.3
    at: Callable[[str, str, int], str | None] | None = None

    def choose(self, method: str, path: str, number: int, conditional: bool, in_row: int) -> str | None:
        if self.at is not None:
            return self.at(method, path, number)
        key = path.strip("/").partition("/")[2]  # not the bucket: its name is another one in each run
        draw = xxhash.xxh3_64_intdigest(f"{self.seed} {method} {key} {number}".encode())
        if in_row >= self.burst or (draw % 10_000) >= self.rate * 10_000:
            return None
        fault = self.faults[draw // 10_000 % len(self.faults)]
        return None if fault == "conflict" and not conditional else fault


@dataclass
class FaultProxy:
    endpoint: str
    schedule: Schedule
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path (with bucket, without query) and fault of each request, in order of arrival."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _in_row: Counter[tuple[str, str]] = field(default_factory=Counter)

    def faults(self) -> list[tuple[str, str, str]]:
        return [(method, path, fault) for method, path, fault in self.requests if fault]

    def choose(self, method: str, path: str, conditional: bool) -> str | None:
        with self.lock:
            key = (method, path)
            number, in_row = self._counts[key], self._in_row[key]
            fault = self.schedule.choose(method, path, number, conditional, in_row)
            self._counts[key] += 1
            self._in_row[key] = in_row + 1 if fault else 0
            self.requests.append((method, path, fault))
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy
    upstream: str

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_request(self) -> None:
        parts = urlsplit(self.path)
        conditional = any(name.lower() in _CONDITIONS for name in self.headers)
        fault = self.proxy.choose(self.command, parts.path, conditional)
        body = self._body()
        if fault == "busy":
            return self._refuse(503, "SlowDown", "Please reduce your request rate.")
        if fault == "failed":
            return self._refuse(500, "InternalError", "We encountered an internal error.")
        if fault == "conflict":
            return self._refuse(409, "ConditionalRequestConflict", "Another request is in progress.")
        if fault == "denied":
            given = f"{self.headers.get('Authorization')} {self.headers.get('x-amz-security-token')}"
            return self._refuse(403, "SignatureDoesNotMatch", f"The signature of {given} does not match.")
        if fault == "reset":
            return self._reset()
        if fault == "flipped" and body:
            body = _flip(body)
            signed = self.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
            if signed not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
                return self._refuse(400, "XAmzContentSHA256Mismatch", "The checksum does not match.")
        status, headers, answer = self._forward(body)
        if fault == "lost":
            return self._reset()
        if fault == "flipped" and not body and answer:
            answer = _flip(answer)
        self._answer(status, headers, answer, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        try:
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str | None) -> None:
        self.send_response_only(status)
        dropped = {"connection", "transfer-encoding", "date", "server"}
        if self.command != "HEAD":
            dropped.add("content-length")
        for name, value in headers:
            if name.lower() not in dropped:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD" or not body:
            return
        if fault == "truncated":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            return self._reset()
        if fault == "slow":
            pieces = 10
            step = max(1, -(-len(body) // pieces))
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(self.proxy.schedule.slow_seconds / pieces)
            return
        self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = b"" if self.command == "HEAD" else _ERROR.format(code, message).encode()
        self._answer(status, [("Content-Type", "application/xml")], body, None)

    def _reset(self) -> None:
        """End the connection by a reset, not in order."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        self.wfile = _Nowhere()  # type: ignore[assignment]


class _Nowhere:
    closed = True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _flip(data: bytes) -> bytes:
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0x10
    return bytes(flipped)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that have gone


@contextmanager
def fault_proxy(endpoint: str, schedule: Schedule) -> Iterator[FaultProxy]:
    """Proxy before a server, in threads of this process, until the end of the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}", schedule)
    server.RequestHandlerClass = type(
        "Handler", (_Handler,), {"proxy": proxy, "upstream": urlsplit(endpoint).netloc}
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
