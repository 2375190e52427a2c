"""Run units one after another in this process: no fork, no pipe, the same bytes.

For debugging, for tests that build hundreds of small stores, and for the one unit that a limit requires
to be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec

from packline.encoders.encoder import Encoder
from packline.errors import PacklineError
from packline.jobs.folder import BuildFolder
from packline.jobs.prepare import Work
from packline.jobs.publish import LimitWatch
from packline.jobs.unit import Task, check_unchanged
from packline.jobs.units import Stream, Unit
from packline.jobs.worker import Committed, UnitCommitter
from packline.sources.slices import StreamEnd, cut_slices
from packline.store.manifest import Receipt, StreamReceipt


class Unwanted:
    """Collection of the numbers of a stream's slices that need no file."""

    def __init__(self, stream: Stream, wanted: Callable[[str], bool]) -> None:
        self._stream, self._wanted = stream, wanted

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and not self._wanted(self._stream.unit_name(number))


def cut_stream(
    build: Work, folder: BuildFolder, stream: Stream, wanted: Callable[[str], bool]
) -> Iterator[Task | StreamEnd]:
    """Tasks of a stream's wanted units, and its end."""
    pieces = cut_slices(
        build.files[stream.file],
        build.recipe.sources[stream.source],
        folder.spool,
        slice_bytes=stream.slice_bytes,
        max_document_bytes=build.recipe.max_document_bytes,
        skip=Unwanted(stream, wanted),
    )
    for piece in pieces:
        # Before each slice is passed on: a file truncated meanwhile looks like one that was always damaged.
        check_unchanged(build.files[stream.file])
        if isinstance(piece, StreamEnd):
            yield piece
        elif piece.path:
            yield unit_task(build, stream.unit_name(piece.number), stream.source, piece=piece)


def unit_task(build: Work, unit: str, source: int, **what: Any) -> Task:
    """A task with the recipe's limits."""
    recipe = build.recipe
    return Task(unit, source, max_documents=recipe.limit_documents, max_tokens=recipe.limit_tokens, **what)


def run_here(
    build: Work,
    folder: BuildFolder,
    encoder: Encoder,
    tell: Callable[[Any], None],
) -> None:
    """Run all units without a receipt, in order, until the limits are reached."""
    receipts, streams = folder.committed(), folder.streams()
    before = set(receipts)
    limit = LimitWatch(build, receipts, streams)

    def wanted(name: str) -> bool:
        return name not in before

    def hear(event: Any) -> None:
        if limit.given and isinstance(event, Committed):
            receipts[event.unit] = folder.receipt(event.unit)
        tell(event)

    with closing(UnitCommitter(build.job, encoder, folder, hear, build.names)) as units:
        for unit in build.units:
            if limit.reached():
                return
            if isinstance(unit, Unit):
                if wanted(unit.name):
                    units.run(unit_task(build, unit.name, unit.source, spans=unit.spans))
            elif unit.name not in streams or any(
                wanted(unit.unit_name(number)) for number in range(streams[unit.name].units)
            ):
                for task in cut_stream(build, folder, unit, wanted):
                    if isinstance(task, StreamEnd):
                        receipt = StreamReceipt(unit.file, task.slices, task.checksum)
                        folder.commit_stream(unit.name, receipt)
                        streams[unit.name] = receipt
                    else:
                        units.run(task)
                        if limit.given:
                            units.wait()
                            if limit.reached():
                                return
            if limit.given:
                units.wait()
        units.wait()


def run_again(
    build: Work,
    folder: BuildFolder,
    encoder: Encoder,
    name: str,
    documents: int | None,
    tokens: int | None,
) -> Receipt:
    """Run one unit by name, with other limits."""
    with closing(UnitCommitter(build.job, encoder, folder, lambda _: None, build.names)) as units:
        for unit in build.units:
            tasks: Any = ()
            if isinstance(unit, Stream):
                if name.startswith(f"{unit.name}-"):
                    tasks = cut_stream(build, folder, unit, lambda one: one == name)
            elif unit.name == name:
                tasks = [unit_task(build, name, unit.source, spans=unit.spans)]
            for task in tasks:
                if isinstance(task, Task):
                    units.run(msgspec.structs.replace(task, max_documents=documents, max_tokens=tokens))
                    units.wait()
                    return folder.receipt(name)
    raise PacklineError(f"unit {name} is not in the plan")
