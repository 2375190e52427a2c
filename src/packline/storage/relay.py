"""A storage whose requests are made by a helper process.

The client of object stores runs threads that a forked child does not have, and it cannot be started anew
there. A process that was forked after its parent had used it, such as a worker of a data loader, therefore
starts a helper by exec, and sends it the requests.

    process ──(number, name, start, stop)──> helper ──> object store
            <──(number, size), bytes──────────
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import msgspec

from packline.errors import StoreError
from packline.storage.places import open_storage
from packline.storage.protocol import FileFacts, Storage

THREADS = 16


def needs_relay() -> bool:
    """True if this process was forked from one that used the client of object stores."""
    clients = sys.modules.get("packline.storage.clients")
    return clients is not None and bool(clients._forked)


def relayed(place: str) -> Storage:
    """Storage of a place, for reading, by a helper process."""
    return _Relay(place)  # type: ignore[return-value]


class _Relay:
    """Reading half of `Storage`."""

    folder = None

    def __init__(self, place: str) -> None:
        self.place = place
        self._helper = subprocess.Popen(
            [sys.executable, "-m", "packline.storage.relay", place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._receive, name="packline-relay", daemon=True).start()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Storage.read`."""
        found: bytes = self._ask("read", name, start, stop)
        return found

    def read_parts(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """See `Storage.read_parts`."""
        yield self.read(name, start, stop)

    def facts(self, name: str) -> FileFacts | None:
        """See `Storage.facts`."""
        found = self._ask("facts", name)
        return None if found is None else FileFacts(*found)

    def list(self, folder: str) -> Sequence[str]:
        """See `Storage.list`."""
        found: list[str] = self._ask("list", folder)
        return found

    def _ask(self, *question: Any) -> Any:
        number, answer = next(self._numbers), Future[Any]()
        self._waiting[number] = answer
        with self._lock, contextlib.suppress(BrokenPipeError):
            assert self._helper.stdin is not None
            _send(self._helper.stdin, msgspec.msgpack.encode((number, *question)))
        if self._helper.poll() is not None:
            self._fail()
        return answer.result()

    def _receive(self) -> None:
        assert self._helper.stdout is not None
        for message in _messages(self._helper.stdout):
            number, kind, value = msgspec.msgpack.decode(message)
            answer = self._waiting.pop(number)
            if kind == "value":
                answer.set_result(value)
            elif kind == "missing":
                answer.set_exception(FileNotFoundError(value[0]))
            else:
                answer.set_exception(StoreError(value[0], hint=value[1]))
        self._helper.wait()
        self._fail()

    def _fail(self) -> None:
        """Answer everything with an error: the helper has ended."""
        for number in list(self._waiting):
            if (answer := self._waiting.pop(number, None)) is not None:
                answer.set_exception(
                    StoreError(
                        f"the process that reads {self.place} ended unexpectedly",
                        hint="it may have been killed for lack of memory; run again",
                    )
                )


def _send(file: IO[bytes], message: bytes) -> None:
    file.write(len(message).to_bytes(8, "little"))
    file.write(message)
    file.flush()


def _messages(file: IO[bytes]) -> Iterator[bytes]:
    while len(head := file.read(8)) == 8:
        size = int.from_bytes(head, "little")
        message = file.read(size)
        if len(message) < size:
            return
        yield message


def serve_relay(place: str, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    storage, lock = open_storage(place), threading.Lock()

    def answer(message: bytes) -> None:
        number, kind, *arguments = msgspec.msgpack.decode(message)
        found: tuple[Any, ...]
        try:
            value = getattr(storage, {"read": "read", "facts": "facts", "list": "list"}[kind])(*arguments)
            if isinstance(value, FileFacts):
                value = msgspec.structs.astuple(value)
            found = (number, "value", value)
        except FileNotFoundError as error:
            found = (number, "missing", [str(error)])
        except Exception as error:
            found = (number, "error", [str(error), getattr(error, "hint", "")])
        with lock, contextlib.suppress(BrokenPipeError):
            _send(answers, msgspec.msgpack.encode(found))

    with ThreadPoolExecutor(THREADS) as pool:
        for message in _messages(requests):
            pool.submit(answer, message)


if __name__ == "__main__":
    serve_relay(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
