"""Importing: whole stores out of foreign files, whatever the workers and interruptions; and refusals."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.stores import CASES, EOD, random_documents, write_tokenizer
from tests.jobs.builds import Stop, digests, stop_after

import packline
from packline.api import import_
from packline.errors import (
    CorruptStore,
    InputError,
    OutOfSpace,
    PacklineError,
    RecipeError,
    ResumeMismatch,
)
from packline.formats.import_ import ImportRequest, run_import
from packline.jobs import resources
from packline.jobs.events import ImportPlanned, Note, Progress, UnitDone
from packline.jobs.status import status

VOCABULARY = 1000
DOCUMENTS = random_documents(60, VOCABULARY)


def write_shards(folder: Path, stream: list[int], shards: int) -> Path:
    """llm.c's shards of a stream, so many of equal size: documents go on from one to the next."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.array(stream, "<u2"), shards)):
        header = struct.pack("<3i", 20240520, 1, len(part)).ljust(1024, b"\0")
        (folder / f"web_train_{number:06d}.bin").write_bytes(header + part.tobytes())
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer", VOCABULARY, 0)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Seven files, and so seven units, with beginnings at the front."""
    stream = [token for body in DOCUMENTS for token in (0, *body)]
    return write_shards(tmp_path / "shards", stream, 7)


def test_a_store_is_whole_and_says_where_it_comes_from(shards: Path, tokenizer: Path, tmp_path: Path) -> None:
    events: list[Any] = []
    store = import_(
        shards,
        from_="llmc",
        tokenizer=tokenizer,
        out=tmp_path / "store",
        eod=EOD,
        on_event=events.append,
    )
    assert [document.tolist() for document in store.documents] == [[*body, 0] for body in DOCUMENTS]
    report = store.verify(deep=True)
    assert report.ok, report.problems
    assert report.deep is not None and report.deep.documents == 0
    assert "no text to encode again" in report.deep.notes[0]
    (imported,) = store.manifest.imported
    assert imported.sources == tuple(store.manifest.sources)
    assert imported.format == "llmc" and imported.options["edges"] == "bos"
    assert imported.options["marker"] == 0
    plan = events[0]
    assert isinstance(plan, ImportPlanned) and plan.units == 7 and plan.tokens == store.manifest.tokens
    assert sum(one.tokens for one in events if isinstance(one, Progress)) == store.manifest.tokens
    assert sum(one.documents for one in events if isinstance(one, UnitDone)) == len(DOCUMENTS)
    # Provenance: the file and the byte that a document begins at.
    for number in (0, 17, 59):
        found = store.provenance(number)
        data = (shards / found.file).read_bytes()
        body = np.array([0, *DOCUMENTS[number]], "<u2").tobytes()
        assert body.startswith(data[found.position : found.position + len(body)])
        assert found.source == "shards" and found.tokens == len(DOCUMENTS[number]) + 1
        assert found.text_bytes == len(store.text(number).encode()) or "\ufffd" in store.text(number)
    rows = store.rows(seq_len=16)
    assert sum(int((row >= 0).sum()) for row in rows.read(np.arange(len(rows)))["targets"]) > 0
    again = import_(shards, from_="llmc", tokenizer=tokenizer, out=tmp_path / "store", eod=EOD)
    assert again.manifest == store.manifest


KILLED = """
import os, signal, sys
from packline.api import import_
from packline.jobs.events import UnitDone

done = 0
def hear(event):
    global done
    if isinstance(event, UnitDone):
        done += 1
        if done == {units}:
            os.kill(os.getpid(), signal.SIGKILL)

path, tokenizer, out = sys.argv[1:]
import_(
    path, from_="llmc", tokenizer=tokenizer, out=out, eod=0, workers={workers}, on_event=hear
)
"""


@pytest.mark.parametrize(("units", "workers"), [(1, 0), (4, 0), (2, 2)])
def test_after_kill_9_the_same_import_goes_on_to_the_same_bytes(
    shards: Path, tokenizer: Path, tmp_path: Path, units: int, workers: int
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    import_(shards, from_="llmc", tokenizer=tokenizer, out=whole, eod=0, workers=0)
    code = KILLED.format(units=units, workers=workers)
    command = [sys.executable, "-c", code, shards, tokenizer, out]
    killed = subprocess.run(list(map(str, command)), check=False, env=os.environ | {"PYTHONPATH": _home()})
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(packline.errors.StoreNotFound):
        packline.open(out)
    plans: list[ImportPlanned] = []
    request = ImportRequest(str(shards), "llmc", str(tokenizer), str(out), 0, workers=0)
    with pytest.raises(ResumeMismatch, match=r"marker|edges|eod"):
        run_import(ImportRequest(str(shards), "llmc", str(tokenizer), str(out), 5))
    run_import(request, lambda event: plans.append(event) if isinstance(event, ImportPlanned) else None)
    assert plans[0].units == 7 and plans[0].units_done >= units
    # The recipe has the tokenizer as it was named, and both runs named it alike.
    assert digests(out) == digests(whole)


def _home() -> str:
    return str(Path(packline.__file__).parents[1])


def test_a_file_that_changed_since_a_unit_was_committed_is_refused(
    shards: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stop):
        run_import(ImportRequest(str(shards), "llmc", str(tokenizer), str(out), 0, workers=0), stop_after(2))
    first = shards / "web_train_000000.bin"
    data = bytearray(first.read_bytes())
    state = status(out)
    assert (state.state, state.units_total, state.total_is_exact) == ("interrupted", 7, True)
    assert 2 <= state.units_done <= 7
    data[1030] ^= 1
    first.write_bytes(data)
    os.utime(first, ns=(1, 1))
    with pytest.raises(ResumeMismatch, match=r"another state of .*web_train_000000.bin"):
        import_(shards, from_="llmc", tokenizer=tokenizer, out=out, eod=0)
    data[1030] ^= 1
    first.write_bytes(data)
    assert import_(shards, from_="llmc", tokenizer=tokenizer, out=out, eod=0).verify().ok


def test_an_import_of_files_that_were_touched_or_changed_after_it(
    shards: Path, tokenizer: Path, tmp_path: Path
) -> None:
    request = ImportRequest(str(shards), "llmc", str(tokenizer), str(tmp_path / "out"), 0, workers=0)
    run_import(request)
    first = shards / "web_train_000000.bin"
    data, after = bytearray(first.read_bytes()), time.time_ns() + 10**9
    os.utime(first, ns=(after, after))
    assert run_import(request).nothing_to_do
    data[1030] ^= 1
    first.write_bytes(data)
    os.utime(first, ns=(1, 1))
    with pytest.raises(ResumeMismatch, match=r"the content of input .*web_train_000000.bin"):
        run_import(request)


def nothing_published(out: Path) -> bool:
    return not (out / "manifest.json").exists()


def damage(change: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    def apply(shards: Path) -> None:
        path = shards / "web_train_000004.bin"
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return apply


def _replace(data: bytearray, start: int, value: bytes) -> None:
    data[start : start + len(value)] = value


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (damage(lambda data: data.__delitem__(slice(-2, None))), CorruptStore, "size in bytes"),
        (
            damage(lambda data: _replace(data, 1024 + 8, struct.pack("<H", 5000))),
            CorruptStore,
            r"web_train_00000[34].bin: document at [\d,]+, token \d+: an id outside the vocabulary: "
            "expected below 1,000, found 5,000",
        ),
        (
            lambda shards: (shards / "web_train_000009.bin").write_bytes(
                struct.pack("<3i", 20240801, 7, 1).ljust(1024, b"\0") + b"\1\0\0\0"
            ),
            CorruptStore,
            "web_train_000009.bin: dtype, as of the first file: expected uint16, found uint32",
        ),
        (lambda shards: [path.unlink() for path in shards.iterdir()], InputError, "shards"),
    ],
    ids=["cut off", "id", "mixed dtype", "nothing"],
)
def test_damage_is_refused_with_its_place_and_nothing_is_published(
    change: Callable[[Path], None],
    error: type[PacklineError],
    words: str,
    shards: Path,
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    change(shards)
    for workers in (0, 2):
        with pytest.raises(error, match=words):
            import_(shards, from_="llmc", tokenizer=tokenizer, out=tmp_path / "out", eod=0, workers=workers)
        assert nothing_published(tmp_path / "out")


def test_documents_without_their_boundary_tokens_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    packline.export(store, to="megatron", out=tmp_path / "out", options={"edges": "none"}, workers=0)
    (tmp_path / "out" / "packline.json").unlink()
    with pytest.raises(CorruptStore, match="no boundary token at the end") as caught:
        import_(tmp_path / "out", from_="megatron", tokenizer=tokenizer, out=tmp_path / "back", eod=0)
    assert "--set edges=" in caught.value.hint
    assert nothing_published(tmp_path / "back")


def test_what_is_cut_off_at_the_end_is_a_document_and_is_counted(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.array([5, 6, 0, 7, 8], "<u2").tobytes())
    events: list[Any] = []
    store = import_(
        tmp_path / "train.bin",
        from_="nanogpt",
        tokenizer=tokenizer,
        out=tmp_path / "store",
        eod=0,
        on_event=events.append,
    )
    assert [one.tolist() for one in store.documents] == [[5, 6, 0], [7, 8, 0]]
    assert any(isinstance(one, Note) and "unfinished documents: 1" in one.text for one in events)
    assert store.verify(deep=True).ok


def test_requests_that_make_no_sense_are_refused(
    shards: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(workers: int) -> None:
        import_(shards, from_="llmc", tokenizer=tokenizer, out=tmp_path / "out", eod=0, workers=workers)

    with pytest.raises(RecipeError, match="workers is -1"):
        attempt(workers=-1)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(resources, "free_disk", lambda folder: 10)
    with pytest.raises(OutOfSpace, match="too small"):
        attempt(workers=0)
