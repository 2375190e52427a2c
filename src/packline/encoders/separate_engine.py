"""An engine in a separate process, which loads it while this one loads NumPy, Arrow and the reference.

    this process ──path of a tokenizer──────────────> python -m packline.encoders.engine_process
                   name, tokenizer.json; texts
                 <──ready; offsets, tokens───────────

gigatoken and HF tokenizers hold the interpreter's lock while they load, so threads do not load them side by
side: 0.45 and 0.35 s for 150,000 tokens, which is most of a build of a few megabytes. The process is
therefore started as soon as the tokenizer is known (`start_ahead`), and loads what will probably be
requested. Only a request decides: an engine of another tokenizer.json is replaced.

Loading this module loads neither NumPy nor Arrow, which would delay all this.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from packline.encoders import ENGINE_NAMES, Engine, EngineName

if TYPE_CHECKING:
    from packline.ragged import Ragged
    from packline.recipe import Engine as Requested
    from packline.sources.batch import Texts

LARGE = 1 << 19
"""Characters of a tokenizer.json whose engine takes longer to load than a process to start."""


class EngineProcess:
    """A process that loads an engine, and ends with this object or this process.

    Args:
        ahead: path of a tokenizer, requested engine, and "parse" or "text": what to load before the request.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, ahead: tuple[str, ...] = ()) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "packline.encoders.engine_process", *ahead],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # the same packline
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for this process, which ends the other
            )
            self.connection, self.pid = Connection(ours.detach()), process.pid
        weakref.finalize(self, _end, self.connection, process)
        _RUNNING.add(self)

    def load(self, name: EngineName, json: str) -> None:
        """Let it load an engine, and wait until it has.

        The tokenizer is sent as a file, since a pipe would hold up this process until the other one reads.
        The mark in its special tokens goes along, since every process has its own.

        Raises:
            OSError, EOFError: it has ended.
        """
        from packline.encoders.special_tokens import MARK

        with tempfile.TemporaryFile() as file, socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            file.write(json.encode())
            file.seek(0)
            socket.send_fds(ours, [bytes([ENGINE_NAMES.index(name)]), MARK.encode()], [file.fileno()])
        self.connection.recv_bytes()


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


_RUNNING: weakref.WeakSet[EngineProcess] = weakref.WeakSet()


def engine_processes() -> list[int]:
    """Processes in which this one has engines."""
    return [process.pid for process in _RUNNING]


_AHEAD: list[EngineProcess] = []
"""The process that was started ahead, until an engine takes it."""


def start_ahead(tokenizer: str, engine: Requested = "auto", *, parse: bool = False) -> None:
    """Start a process that loads the engine of a tokenizer, unless one was started or that takes no time.

    Args:
        tokenizer: argument of `load_tokenizer`; one that is not on this machine is left alone.
        engine: requested engine.
        parse: encode strings of special tokens as these tokens.
    """
    path = os.path.expanduser(tokenizer)
    with suppress(OSError):
        file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        if not _AHEAD and os.stat(file).st_size >= LARGE:
            _AHEAD.append(EngineProcess((os.path.abspath(path), engine, "parse" if parse else "text")))


def stop_ahead() -> None:
    """End a process that was started ahead and is not used."""
    _AHEAD.clear()


class SeparateEngine:
    """An engine in a separate process, which ends with this object or this process.

    It is loaded here instead if that process cannot be started or has ended, for whatever reason: so errors
    are the same. A fork of this process must not use it.

    Args:
        name: the engine.
        json: the tokenizer.json.
        load: loads the engine in this process.
    """

    def __init__(self, name: EngineName, json: str, load: Callable[[], Engine]) -> None:
        self.name, self._load = name, load
        self._here: Engine | None = None
        self.process: EngineProcess | None = None
        """The other process; None if the engine is in this one."""
        try:
            process = _AHEAD.pop() if _AHEAD else EngineProcess()
            process.load(name, json)
            self.process = process
        except (OSError, EOFError):
            self._here = load()

    def encode(self, texts: Texts) -> Ragged:
        """Encode each text; see `Engine.encode`."""
        import numpy as np

        from packline.ragged import Ragged

        if self.process is not None:
            connection = self.process.connection
            try:
                connection.send_bytes(texts.offsets.tobytes())
                connection.send_bytes(texts.data)
                offsets = np.frombuffer(connection.recv_bytes(), np.int64)
                return Ragged(np.frombuffer(connection.recv_bytes(), np.uint32), offsets)
            except (OSError, EOFError):
                self.process = None
        if self._here is None:
            self._here = self._load()
        return self._here.encode(texts)
