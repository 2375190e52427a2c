"""Exports in slices: the same files as one process writes, in a folder and in an object store."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.formats.stores import make_store, random_documents
from tests.jobs.builds import Stop, digests, stop_after, stored
from tests.storage.kills import Crash, killed_at, storage_calls
from tests.storage.servers import Bucket

import packline
from packline.errors import ResumeMismatch, StoreBusy, StoreError
from packline.facade import Store
from packline.formats.export import run_export
from packline.formats.export_folder import Staging
from packline.jobs.events import UnitDone
from packline.jobs.status import status
from packline.jobs.work import SCRATCH
from packline.packing.options import ExportChoice

ROWS: dict[str, Any] = {
    "to": "baked",
    "choice": ExportChoice(seq_len=16, seed=1, batch_size=2),
    "options": {"file_rows": 16},
}
DOCUMENTS: dict[str, Any] = {"to": "datatrove", "link": "copy"}
KINDS = {"rows": ROWS, "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 1000, longest=30, seed=8)
    folder = tmp_path_factory.mktemp("store") / "store"
    return make_store(folder, documents, vocab_size=1000, eod_id=0, val=(1, 50), shards=4)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def export(store: Store, out: str | Path, kind: str, **more: Any) -> Any:
    return run_export(store.path, out=out, workers=0, **KINDS[kind], **more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_slices_one_after_another_make_the_export_of_one_process(
    store: Store, tmp_path: Path, bucket: Bucket, scratch: Path, where: str, kind: str
) -> None:
    export(store, tmp_path / "whole", kind)
    out = bucket.place(f"export-{kind}") if where == "bucket" else str(tmp_path / "out")
    for number in (2, 0, 1):
        exported = export(store, out, kind, on=packline.Slice(number, 3))  # each helps the others
        assert exported.nothing_to_do == (number != 2)
    assert stored(out) == stored(str(tmp_path / "whole"))
    assert not [path for path in scratch.rglob("*") if path.is_file()]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(ResumeMismatch):
        run_export(store.path, to="npy", out=out, workers=0, on=packline.Slice(0, 2))


@pytest.mark.parametrize(("where", "step"), [("folder", 1), ("bucket", 2)])
def test_a_slice_killed_between_two_calls_of_its_storage_resumes(
    store: Store, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, where: str, step: int
) -> None:
    """At the last call of each kind, in a bucket of every second one."""
    monkeypatch.setattr("packline.jobs.engine.LISTINGS", 0)  # rounds of the same size, whatever the clock
    export(store, tmp_path / "whole", "rows")
    whole = stored(str(tmp_path / "whole"))
    names = count()

    def new() -> str:
        name = f"kill-{next(names)}"
        return bucket.place(name) if where == "bucket" else str(tmp_path / name)

    with storage_calls() as calls:
        export(store, new(), "rows", on=packline.Slice(0, 2))
    kinds = {re.sub(r".*/|\d|-", "", call): number for number, call in enumerate(calls)}
    assert len(kinds) > 14
    for number in [*kinds.values()][::step]:
        out = new()
        with pytest.raises(Crash), killed_at(number):
            export(store, out, "rows", on=packline.Slice(0, 2))
        export(store, out, "rows", on=packline.Slice(1, 2))
        assert stored(out) == whole, calls[number]


def test_slices_at_the_same_time(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "whole", "documents")
    words = ["export", str(store.path), "--to", "datatrove", "--link", "copy", "--workers", "0"]
    command = [sys.executable, "-m", "packline", *words, "--out", str(tmp_path / "out")]
    slices = [subprocess.Popen([*command, "--slice", f"{number}/3"]) for number in range(3)]
    assert [one.wait() for one in slices] == [0, 0, 0]
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


@pytest.mark.parametrize("same", [True, False])
def test_an_export_that_another_slice_publishes_first_counts_if_it_is_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    out, publish = tmp_path / "out", Staging.publish

    def second(staging: Staging, files: dict[str, bytes], listed: list[str]) -> None:
        (out / "packline.json").write_bytes(files["packline.json"] if same else b"{}")
        publish(staging, files, listed)

    monkeypatch.setattr(Staging, "publish", second)
    if same:
        export(store, out, "rows", on=packline.Slice(0, 2))
        monkeypatch.undo()
        export(store, tmp_path / "whole", "rows")
        assert digests(out) == digests(tmp_path / "whole")
    else:
        with pytest.raises(StoreError, match="exists with another content"):
            export(store, out, "rows", on=packline.Slice(0, 2))


def test_a_running_export_of_one_process_is_not_joined_by_slices(store: Store, tmp_path: Path) -> None:
    with Staging(tmp_path / "out"), pytest.raises(StoreBusy):
        export(store, tmp_path / "out", "rows", on=packline.Slice(0, 2))


def test_status_of_an_export_in_a_bucket(store: Store, bucket: Bucket) -> None:
    out = bucket.place("export-status")
    with pytest.raises(Stop):
        export(store, out, "rows", on_event=stop_after(1))
    found = status(out)
    assert (found.kind, found.state) == ("export", "interrupted") and found.units_done >= 1
    exported = export(store, out, "rows")
    assert exported.parts_kept == found.units_done
    assert status(out).state == "finished"


def test_parts_of_an_object_store_wait_in_scratch_only_until_they_are_put(
    store: Store, bucket: Bucket, scratch: Path
) -> None:
    waiting: list[int] = []

    def look(event: object) -> None:
        if isinstance(event, UnitDone):
            waiting.append(sum(path.name.startswith("rows-") for path in scratch.rglob("*.bin")))

    export(store, bucket.place("export-scratch"), "rows", on_event=look)
    assert len(waiting) > 3 and max(waiting) <= 2  # one that is put, one that is written
