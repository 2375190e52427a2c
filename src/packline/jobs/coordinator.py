"""Process that runs a build: prepares it, runs its units, publishes the store.

It is a separate process, started fresh for every build. Workers are forked from it, and a fork is safe
only in a process without foreign threads and locks. It reads one request from standard input and writes
events to standard output, one JSON line each.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from packline.encoders import EngineName, EngineReport
from packline.encoders.encoder import Encoder
from packline.jobs.build import Request
from packline.jobs.events import (
    EVENT_ENCODER,
    EnginesTried,
    Event,
    Finished,
    Note,
    Planned,
    Progress,
    as_failed,
)
from packline.jobs.folder import BuildFolder
from packline.jobs.held_out import find_share, settle_share
from packline.jobs.inline import run_again, run_here
from packline.jobs.pool import FORK, Pool
from packline.jobs.prepare import (
    Work,
    count_workers,
    identity_of,
    load_encoder,
    prepare,
    refuse_changed_inputs,
    refuse_other_store,
    sample_texts,
    set_room,
)
from packline.jobs.publish import apply_limits, discard_empty, make_manifest, store_bytes
from packline.jobs.resources import die_with_parent, free_disk, peak_memory, resident_memory
from packline.jobs.signals import ignore_signals, interrupt_on_signals
from packline.jobs.worker import Committed, done_event
from packline.sources.files import not_text_notes
from packline.store.manifest import Manifest, refuse_empty, split_warnings

UNDECODED = (
    "{} of the documents that were decoded did not give their very text back, with ids equal to the"
    " reference's: this tokenizer does not keep every character"
)
BYTES_A_TOKEN = 3.5
"""Estimated bytes per token for the disk check, on the low side for English."""


Tell = Callable[[Event], None]


class Coordinator:
    """One build, from its request to its store."""

    def __init__(self, request: Request, tell: Tell) -> None:
        self._request, self._tell = request, tell
        self._first_encode = 0.0
        self._peak = 0
        self._run_bytes = 0
        self._engine_bytes: dict[str, dict[str, int]] = {}
        self._undecoded: dict[float, int] = {}

    def run(self) -> None:
        """Build the store; report progress as events.

        Raises:
            PacklineError: the error that stopped the build.
        """
        build = prepare(self._request.recipe, self._request.options)
        folder = BuildFolder(Path(self._request.out))
        try:
            self._run(build, folder)
        finally:
            folder.close()

    def _run(self, build: Work, folder: BuildFolder) -> None:
        if (manifest := folder.finished()) is not None:
            discarded = False
            try:
                discarded = discard_empty(
                    folder, manifest, partial(refuse_other_store, folder, manifest, build)
                )
            finally:
                if not discarded:
                    self._clean(folder)
            if not discarded:
                refuse_empty(folder.path, manifest)
                self._finish(folder, manifest, len(manifest.receipts), 0.0, nothing_to_do=True)
                return
        earlier = folder.begin(identity_of(build), build.tokenizer.json)
        receipts = folder.committed()
        if earlier is not None:
            refuse_changed_inputs(folder, earlier, build, receipts)
        encoder = load_encoder(build)
        base = resident_memory()
        workers, memory = count_workers(build.options)
        self._announce(build, folder, len(receipts), workers, encoder.load_seconds)
        set_room(build, self._choose(build, encoder, workers), base)
        if build.recipe.val_documents:
            self._tell(Note("all inputs are read once to choose the validation documents"))
            build.val_share = settle_share(
                folder, build.files, bool(receipts), partial(find_share, build, workers)
            )
        self._run_units(build, folder, encoder, workers, memory)
        receipts = apply_limits(
            build,
            folder,
            folder.committed(),
            folder.streams(),
            lambda name, documents, tokens: run_again(build, folder, encoder, name, documents, tokens),
        )
        manifest = make_manifest(build, folder, receipts, folder.streams(), encoder.reference.round_trip)
        folder.publish(manifest)
        self._clean(folder)
        refuse_empty(folder.path, manifest)
        if undecoded := sum(self._undecoded.values()):
            self._tell(Note(UNDECODED.format(undecoded)))
        self._finish(folder, manifest, 0, encoder.load_seconds)

    def _clean(self, folder: BuildFolder) -> None:
        if left := folder.clean():
            self._tell(Note(left))

    def _announce(self, build: Work, folder: BuildFolder, done: int, workers: int, seconds: float) -> None:
        expected = build.source_bytes
        self._tell(
            Planned(
                expected,
                len(build.files),
                len(build.units),
                done,
                workers,
                build.tokenizer.name,
                build.tokenizer.vocab_size,
                build.boundary.eod,
                build.boundary.eod_id,
                build.dtype,
                time.monotonic() - self._request.started,
                seconds,
            )
        )
        for line in not_text_notes(build.files, build.names):
            self._tell(Note(line))
        itemsize = 2 if build.dtype == "uint16" else 4
        needed, free = int(sum(expected.values()) / BYTES_A_TOKEN * itemsize), free_disk(folder.path)
        if needed > free and build.recipe.limit_documents is None and build.recipe.limit_tokens is None:
            self._tell(
                Note(f"the store may need {needed / 1e9:.1f} GB, and the disk has {free / 1e9:.1f} GB free")
            )

    def _choose(self, build: Work, encoder: Encoder, workers: int) -> list[EngineName]:
        chosen = encoder.choose(sample_texts(build), _in_a_child if workers else None)
        self._tell(EnginesTried(chosen.reports, list(chosen.names), chosen.reason))
        return chosen.names

    def _run_units(
        self,
        build: Work,
        folder: BuildFolder,
        encoder: Encoder,
        workers: int,
        memory: int,
    ) -> None:
        if workers:
            gc.collect()
            gc.freeze()  # else each worker's garbage collector would touch, and so copy, shared pages
            gc.enable()
            # A unit may add to an engine's cache before the next check: leave room for that.
            limit = max(memory * 3 // 4, peak_memory() + (128 << 20))
            pool = Pool(build, folder, encoder, workers=workers, memory_bytes=limit, tell=self._hear)
            pool.run()
        else:
            run_here(build, folder, encoder, self._hear)

    def _hear(self, event: Progress | Committed) -> None:
        if isinstance(event, Progress):
            self._run_bytes += event.text_bytes
            self._tell(event)
            return
        first = event.first_encode
        self._first_encode = min(self._first_encode or first, first)
        self._peak = max(self._peak, event.peak_rss_bytes)
        self._engine_bytes[f"{first}"] = event.engine_bytes
        self._undecoded[first] = event.undecoded
        self._tell(done_event(event))

    def _finish(
        self, folder: BuildFolder, manifest: Manifest, done: int, seconds: float, nothing_to_do: bool = False
    ) -> None:
        engine_bytes: dict[str, int] = {}
        for counts in self._engine_bytes.values():
            for name, size in counts.items():
                engine_bytes[name] = engine_bytes.get(name, 0) + size
        started = self._request.started
        self._tell(
            Finished(
                manifest.ledger,
                manifest.sources,
                len(manifest.shards),
                len(manifest.receipts),
                done,
                store_bytes(folder.path, manifest),
                time.monotonic() - started,
                max(self._first_encode - started, 0.0) if self._first_encode else 0.0,
                seconds,
                self._run_bytes,
                max(self._peak, 0),
                engine_bytes,
                nothing_to_do,
                split_warnings(manifest),
            )
        )


def _in_a_child(compute: Callable[[], list[EngineReport]]) -> list[EngineReport]:
    """Compute in a forked process: engines used in this process could no longer be forked."""
    ours, theirs = FORK.Pipe()

    def run(pipe: Connection) -> None:
        die_with_parent()
        ignore_signals()
        ours.close()
        pipe.send_bytes(msgspec.json.encode(compute()))

    process = FORK.Process(target=run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        return msgspec.json.decode(ours.recv_bytes(), type=list[EngineReport])
    except EOFError:
        return compute()  # the child died: trying again in this process shows the error
    finally:
        ours.close()
        process.join()


def main() -> int:
    """Run the request from standard input."""
    die_with_parent()
    gc.disable()  # it would scan the tokenizer's 300,000 strings again and again, and find nothing
    # Events go to the original standard output; everything else printed goes to standard error.
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(event: Event) -> None:
        events.write(EVENT_ENCODER.encode(event) + b"\n")

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        Coordinator(request, tell).run()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1  # the reader is gone
    except Exception as error:  # reported, not raised: the calling process shows it
        if os.environ.get("PACKLINE_DEBUG"):
            import traceback

            traceback.print_exc()
        tell(as_failed(error))
        return 1
    return 0


if __name__ == "__main__":
    interrupt_on_signals()
    sys.exit(main())
