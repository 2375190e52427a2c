from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.formats.stores import CASES, make_store, random_documents
from tests.jobs.builds import Stop, digests, stop_after

import packline
from packline.errors import (
    CorruptStore,
    OutOfSpace,
    RecipeError,
    ResumeMismatch,
    StoreBusy,
    StoreError,
)
from packline.facade import Store
from packline.formats import export as exporting
from packline.formats.export import ExportPlanned, run_export
from packline.formats.export_folder import Staging
from packline.jobs import resources
from packline.jobs.events import Progress, UnitDone
from packline.packing.options import ExportChoice
from packline.store.writer import HashedFile

ROWS = ExportChoice(seq_len=16, seed=1, batch_size=2)
PARTS = {"file_rows": 9}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("store")
    documents = random_documents(120, 1000, longest=30, seed=8)
    return make_store(folder / "store", documents, vocab_size=1000, eod_id=0, val=(1, 50, 99), shards=4)


@pytest.fixture(scope="module")
def expected(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The baked rows that an export without any fault makes."""
    out = tmp_path_factory.mktemp("expected") / "out"
    bake(store, out)
    return digests(out)


def bake(store: Store, out: Path, **more: Any) -> exporting.Exported:
    return run_export(store.path, to="baked", out=out, options=PARTS, choice=ROWS, **{"workers": 0, **more})


def left(out: Path) -> list[str]:
    """What stands beside the output, and the output."""
    return sorted(path.name for path in out.parent.iterdir())


CRASHING = """
import os, signal, sys
from packline.formats.export import run_export
from packline.packing.options import ExportChoice
from packline.store.writer import HashedFile
import packline.storage.local, packline.store.writer

left = int(sys.argv[3])

def dying(call):
    def called(*arguments, **settings):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **settings)
    return called

HashedFile.write = dying(HashedFile.write)
os.rename, os.replace, os.fsync, os.link = map(dying, (os.rename, os.replace, os.fsync, os.link))
run_export(sys.argv[1], to=sys.argv[4], out=sys.argv[2], workers={workers}, options={options},
       choice=ExportChoice(**{choice}))
print(left)
"""


def crash(
    store: Store, out: Path, after: int, to: str, options: Any, choice: dict[str, Any], workers: int = 0
) -> int:
    """Run an export that kills itself at a call that touches the disk; the exit code."""
    code = CRASHING.replace("{options}", repr(options)).replace("{choice}", repr(choice))
    code = code.replace("{workers}", str(workers))
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.path), str(out), str(after), to],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize(("after", "workers"), [(0, 0), (29, 0), (96, 2)])
def test_killed_at_any_instant_and_run_again(
    store: Store, expected: dict[str, str], tmp_path: Path, after: int, workers: int
) -> None:
    out = tmp_path / "work" / "out"
    choice = {"seq_len": 16, "seed": 1, "batch_size": 2}
    code = crash(store, out, after, "baked", PARTS, choice, workers)
    assert code == -signal.SIGKILL and not (out / "packline.json").exists()
    done = bake(store, out)
    assert digests(out) == expected and left(out) == ["out"]
    assert done.parts_kept == 0 or after > 12


@pytest.mark.parametrize("after", [0, 25, 50])
def test_linked_shards_survive_a_kill_as_well(store: Store, tmp_path: Path, after: int) -> None:
    before = digests(store.path)
    out, whole = tmp_path / "work" / "out", tmp_path / "whole"
    crash(store, out, after, "megatron", {}, {})
    run_export(store.path, to="megatron", out=out, workers=0)
    run_export(store.path, to="megatron", out=whole, workers=0)
    assert digests(out) == digests(whole) and left(out) == ["out"]
    assert digests(store.path) == before


def test_killed_before_the_record_is_finished_by_the_next_run(
    store: Store, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Staging, "publish", killed)
        bake(store, out)
    assert not (out / "packline.json").exists()
    parts = len(list((out / ".packline" / "parts").iterdir()))
    done = bake(store, out)
    assert done.parts_kept == done.parts == parts and digests(out) == expected and left(out) == ["out"]


def test_an_error_of_a_worker_is_raised_here(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.path, tmp_path / "store")
    shard = store.shards[0].entry.name
    tokens = np.fromfile(tmp_path / "store" / f"{shard}.bin", "<u2")
    tokens[5] = 1000
    tokens.tofile(tmp_path / "store" / f"{shard}.bin")
    damaged = Store(tmp_path / "store")
    for workers in (0, 2):
        with pytest.raises(CorruptStore, match=f"token 5 of {shard}.bin is 1,000"):
            bake(damaged, tmp_path / "work" / "out", workers=workers)
        assert not (tmp_path / "work" / "out" / "packline.json").exists()


@pytest.mark.parametrize("after", [0, 20, 44])
def test_a_full_disk_leaves_nothing_and_the_next_run_goes_on(
    store: Store, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    out, calls = tmp_path / "work" / "out", [0]
    write = HashedFile.write

    def full(self: HashedFile, data: Any) -> int:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(28, "No space left on device")
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(HashedFile, "write", full)
        with pytest.raises(OutOfSpace, match="is full"):
            bake(store, out)
    assert out.exists() == (after > 20)  # nothing is left where no part was finished
    assert not (out / "packline.json").exists()
    bake(store, out)
    assert digests(out) == expected and left(out) == ["out"]


def test_room_is_asked_for_before_anything_is_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "work" / "out"
    monkeypatch.setattr(resources, "free_disk", lambda folder: 1000)
    with pytest.raises(OutOfSpace, match="1,000 bytes free"):
        bake(store, out)
    assert left(out) == []
    # What is linked takes no room; what is copied does.
    assert run_export(store.path, to="megatron", out=out, workers=0).shared["linked"] > 1000
    with pytest.raises(OutOfSpace, match="1,000 bytes free"):
        run_export(store.path, to="megatron", out=tmp_path / "copied", workers=0, link="copy")


def test_going_on_keeps_what_is_finished(store: Store, expected: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stop):
        bake(store, out, on_event=stop_after(3))
    (out / "train" / "rows-000001.bin").unlink()  # a part whose files are not what its receipt says
    kept = (out / "train" / "rows-000000.bin").stat()
    events: list[Any] = []
    done = bake(store, out, on_event=events.append)
    assert done.parts_kept == 2
    assert (out / "train" / "rows-000000.bin").stat().st_ino == kept.st_ino
    assert (out / "train" / "rows-000000.bin").stat().st_mtime_ns == kept.st_mtime_ns
    assert digests(out) == expected
    assert [event.unit for event in events if isinstance(event, UnitDone)][:2] == [
        "train/rows-000001",
        "train/rows-000003",
    ]


def test_another_export_is_refused_with_what_differs(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stop):
        bake(store, out, on_event=stop_after(1))
    with pytest.raises(ResumeMismatch, match=r"settings\.seed: 1 -> 2"):
        run_export(
            store.path, to="baked", out=out, options=PARTS, choice=msgspec.structs.replace(ROWS, seed=2)
        )
    with pytest.raises(ResumeMismatch, match=r"options\.file_rows: 9 -> 8"):
        run_export(store.path, to="baked", out=out, options={"file_rows": 8}, choice=ROWS)
    bake(store, out)
    with pytest.raises(ResumeMismatch, match="format: 'baked' -> 'megatron'"):
        run_export(store.path, to="megatron", out=out)
    other = CASES["plain"].make(tmp_path / "other")
    with pytest.raises(ResumeMismatch, match=r"source\.store"):
        bake(other, out)


def test_a_finished_export_that_lost_bytes_is_not_taken_for_done(store: Store, tmp_path: Path) -> None:
    bake(store, tmp_path / "out")
    (tmp_path / "out" / "train" / "rows-000001.loss").write_bytes(b"")
    with pytest.raises(CorruptStore, match="found 0"):
        bake(store, tmp_path / "out")


def test_what_is_there_is_never_overwritten(store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    bake(store, tmp_path / "out")  # an empty folder is fine
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"not empty .* found thesis\.tex"):
        bake(store, tmp_path / "mine")
    with pytest.raises(StoreError, match="is a file"):
        bake(store, tmp_path / "mine" / "thesis.tex")
    assert left(tmp_path / "mine" / "x") == ["thesis.tex"]


def test_two_exports_do_not_write_one_folder(store: Store, tmp_path: Path) -> None:
    with Staging(tmp_path / "out"), pytest.raises(StoreBusy, match="another export is writing"):
        bake(store, tmp_path / "out")
    bake(store, tmp_path / "out")


def test_events_add_up(store: Store, tmp_path: Path) -> None:
    events: list[Any] = []
    done = bake(store, tmp_path / "out", on_event=events.append)
    planned = events[0]
    assert isinstance(planned, ExportPlanned) and (planned.format, planned.units) == ("baked", done.parts)
    assert sum(event.tokens for event in events if isinstance(event, Progress)) == planned.tokens
    assert sum(isinstance(event, UnitDone) for event in events) == done.parts
    assert planned.lost == done.lost and [lost.what for lost in done.lost] == ["dropped tokens"]
    events.clear()
    choice = ExportChoice(seq_len=8, packing="pad")
    cut = run_export(store.path, to="baked", out=tmp_path / "cut", choice=choice, on_event=events.append)
    assert [lost.what for lost in cut.lost] == ["truncated tokens", "untrained rows", "untrained tokens"]
    assert events[0].lost == cut.lost


def test_settings_that_make_no_sense(store: Store, tmp_path: Path) -> None:
    wrong: list[tuple[str, Any]] = [("workers is -1", {"workers": -1}), ("link is 'soft'", {"link": "soft"})]
    for words, settings in wrong:
        with pytest.raises(RecipeError, match=words):
            run_export(store.path, to="megatron", out=tmp_path / "out", **settings)
        assert left(tmp_path / "out") == []


def test_text_to_batches_in_one_call(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a b a " * 50)
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(msgspec.json.encode({"model": model, "pre_tokenizer": {"type": "Whitespace"}}))
    settings: dict[str, Any] = {
        "to": "npz",
        "seq_len": 8,
        "batch_size": 4,
        "eod": "</s>",
        "workers": 0,
    }
    done = packline.export(tmp_path / "text", tokenizer=tokenizer, out=tmp_path / "out", **settings)
    assert packline.open(tmp_path / "out.store").verify().ok
    batches = [np.load(path) for path in sorted((tmp_path / "out").glob("*.npz"))]
    tokens = np.concatenate([batch["input_tensor"] for batch in batches])
    assert len(batches) == -(-(done.rows or 0) // 4)
    assert tokens.ravel()[:8].tolist() == [0, 1, 0, 0, 1, 0, 0, 1]
    again = packline.export(tmp_path / "text", tokenizer=tokenizer, out=tmp_path / "out", **settings)
    assert again.nothing_to_do
    with pytest.raises(RecipeError, match="no setting 'eod'"):
        packline.export(tmp_path / "out.store", out=tmp_path / "x", **settings)


def test_a_loader_and_a_store_may_be_given_as_they_are(store: Store, tmp_path: Path) -> None:
    loader = packline.Loader(store.rows(16), batch_size=2, seed=1)
    packline.export(loader, to="baked", out=tmp_path / "loader", workers=2)
    settings: dict[str, Any] = {"split": "train", "seq_len": 16, "seed": 1, "batch_size": 2}
    packline.export(store, to="baked", out=tmp_path / "store", workers=0, **settings)
    whole = (tmp_path / "store" / "rows-000000.bin").read_bytes()
    rows = (tmp_path / "loader" / "rows-000000.bin").read_bytes()
    assert rows and whole.startswith(rows)
