"""Progress of a transfer of files: one line, redrawn in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from packline.cli.output import Line, output
from packline.viewing.text import size


class Transferred(Protocol):
    """Files and bytes that are done, and all."""

    @property
    def files(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def total_files(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


@contextmanager
def watch_transfer(word: str) -> Iterator[Callable[[Transferred], None]]:
    """Show the progress of the block.

    Args:
        word: what is done to files, such as `pushed`.

    Yields:
        A function to call with the progress.
    """
    last: list[Transferred] = []

    def line() -> str:
        if not last:
            return "comparing with the hub"
        now = last[-1]
        return (
            f"{now.files:,} of {now.total_files:,} files {word}, {size(now.bytes)} of {size(now.total_bytes)}"
        )

    def draw(width: int) -> list[Line]:
        return [[line()]]

    with output.follow(draw, line) as tick:

        def hear(progress: Transferred) -> None:
            last[:] = [progress]
            tick()

        yield hear
