"""The process of an engine that is loaded apart: answers what `separate_engine` sends.

Neither Arrow nor HF tokenizers is loaded here, since both would delay the engine.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from packline.encoders import ENGINE_NAMES, EngineName
from packline.errors import PacklineError

if TYPE_CHECKING:
    import numpy as np


class _Received:
    """Texts as an engine reads them, without Arrow."""

    strings = None

    def __init__(self, data: bytes, offsets: np.ndarray) -> None:
        self.data, self.offsets = memoryview(data), offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def raw(self) -> list[bytes]:
        return [bytes(self.data[start:end]) for start, end in pairwise(self.offsets.tolist())]

    def to_list(self) -> list[str]:
        return [text.decode() for text in self.raw()]


def answer_requests(descriptor: int, ahead: Sequence[str]) -> None:
    """Load an engine ahead, and the one that is requested at a socket; encode until it is closed."""
    import gigatoken  # noqa: F401  nearly always the engine
    import numpy as np

    from packline.encoders.engines import ENGINES
    from packline.encoders.special_tokens import MARK

    loaded = name, json = _expected(*ahead) if ahead else (None, "")
    engine = None if name is None else ENGINES[name](json)
    connection = Connection(descriptor)
    with socket.socket(fileno=os.dup(descriptor)) as channel:
        words, files, *_ = socket.recv_fds(channel, 1 << 10, 1)
    if not files:
        return
    with open(files[0], "rb") as opened:
        name, json = ENGINE_NAMES[words[0]], opened.read().decode()
    if engine is None or (name, json.replace(words[1:].decode(), MARK)) != loaded:
        engine = ENGINES[name](json)
    connection.send_bytes(b"ready")
    while True:
        try:
            offsets = np.frombuffer(connection.recv_bytes(), np.int64)
            texts: Any = _Received(connection.recv_bytes(), offsets)
        except (EOFError, OSError):
            return
        found = engine.encode(texts)
        connection.send_bytes(found.offsets.astype(np.int64, copy=False).tobytes())
        connection.send_bytes(found.tokens.astype(np.uint32, copy=False).data.cast("B"))


def _expected(tokenizer: str, engine: Any, special_tokens: str) -> tuple[EngineName | None, str]:
    """Engine and tokenizer.json that will probably be requested; None if there is no such engine."""
    from packline.encoders.special_tokens import json_to_encode
    from packline.encoders.supported import engine_apart
    from packline.encoders.tokenizer import load_tokenizer

    try:
        json = json_to_encode(load_tokenizer(tokenizer), parse=special_tokens == "parse")
        return engine_apart(engine, json), json
    except PacklineError:  # whoever requests it reports this
        return None, ""


if __name__ == "__main__":
    try:
        answer_requests(sys.stdin.fileno(), sys.argv[1:])
    finally:
        os._exit(0)  # the operating system frees the engine faster than its destructor
