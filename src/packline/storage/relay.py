"""A storage whose requests are made by a helper process, for one that was forked from a user of obstore.

The client runs threads that a forked child does not have, and cannot be started anew there. So such a process
starts a helper by exec, and sends it the requests, over as many connections as there may be at once.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from packline.errors import StoreError
from packline.storage.places import open_storage
from packline.storage.protocol import FileFacts, Storage

CONNECTIONS = 64


def needs_relay() -> bool:
    """True if this process was forked from one that used the client of object stores."""
    clients = sys.modules.get("packline.storage.clients")
    return clients is not None and bool(clients._forked)


def relayed(place: str, *, reached: bool = False) -> Storage:
    """Storage of a place, for reading, by a helper process."""
    return _Relay(place, reached=reached)  # type: ignore[return-value]


class _Relay:
    """Reading half of `Storage`."""

    folder = None

    def __init__(self, place: str, *, reached: bool) -> None:
        self.place = place
        pairs = [socket.socketpair() for _ in range(CONNECTIONS)]
        files = [theirs.fileno() for _, theirs in pairs]
        words = [sys.executable, "-m", "packline.storage.relay", place, str(int(reached)), *map(str, files)]
        self._helper = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=files)
        self._free: SimpleQueue[Connection] = SimpleQueue()
        for ours, theirs in pairs:
            theirs.close()
            self._free.put(Connection(ours.detach()))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        found: bytes = self._ask("read", name, start, stop)
        return found

    def facts(self, name: str) -> FileFacts | None:
        found: FileFacts | None = self._ask("facts", name)
        return found

    def list(self, folder: str) -> Sequence[str]:
        found: list[str] = self._ask("list", folder)
        return found

    def _ask(self, *question: Any) -> Any:
        connection = self._free.get()
        try:
            connection.send(question)
            found, error = connection.recv()
        except (EOFError, OSError):
            raise StoreError(
                f"the process that reads {self.place} ended unexpectedly",
                hint="it may have been killed for lack of memory; run again",
            ) from None
        except BaseException:
            connection.close()  # its answer is still on its way
            raise
        finally:
            self._free.put(connection)
        if error is not None:
            raise error
        return found


def _serve(storage: Storage, connection: Connection) -> None:
    with connection, suppress(EOFError, OSError):
        while True:
            method, *arguments = connection.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = getattr(storage, method)(*arguments), None
            except Exception as error:
                answer = None, error
            connection.send(answer)


if __name__ == "__main__":
    served = open_storage(sys.argv[1], reached=sys.argv[2] == "1")
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for file in map(int, sys.argv[3:]):
            pool.submit(_serve, served, Connection(file))
