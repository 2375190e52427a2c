"""`status`: of a store, of a build that was stopped, of one that runs, and of what is neither."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.jobs.builds import Stop, build, set_sizes, stop_after
from tests.laws.reference import write_corpus

import packline
from packline.cli.output import plain
from packline.cli.progress import Tally, status_lines
from packline.errors import BuildStopped, CorruptStore, StoreNotFound
from packline.jobs.events import BuildPlanned, UnitDone, UnitsKnown
from packline.jobs.folder import StoreFolder
from packline.jobs.status import Status, status

EOD = "<|endoftext|>"


@pytest.fixture
def stopped(
    tmp_path: Path,
    documents: list[str],
    tokenizer_json: Path,
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, Callable[..., Any]]:
    """A build of several units that was stopped, and how to go on with it."""
    set_sizes(monkeypatch, 64 << 10)
    write_jsonl(tmp_path / "in.jsonl", documents[:300])

    def build(**more: Any) -> Any:
        out = tmp_path / "store"
        return packline.build(tmp_path / "in.jsonl", tokenizer_json, out=out, eod=EOD, workers=0, **more)

    with pytest.raises(Stop):
        build(on_event=stop_after(2))
    return tmp_path / "store", build


class Listener:
    """Compares what events and the command line say of a build's units; stops it after three."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tally, self.units = folder, Tally(), 0
        self.seen: list[tuple[int, bool]] = []

    def __call__(self, event: Any) -> None:
        self.tally.hear(event)
        if isinstance(event, BuildPlanned | UnitsKnown):
            self.seen.append((event.units, event.is_exact))
        if not isinstance(event, BuildPlanned | UnitDone):
            return
        found = status(self.folder)
        (line,) = [line for line in map(plain, status_lines(found)) if "committed" in line]
        assert line.endswith(f"  {self.tally.units()}")
        self.units += isinstance(event, UnitDone)
        if self.units == 3:
            raise Stop


def test_one_number_of_units_is_told_everywhere(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes(monkeypatch, 25_000, 1 << 13)
    kinds = ("jsonl", "jsonl.zst", "jsonl.gz")
    write_corpus(tmp_path / "in", [(kind, documents[:90], False) for kind in kinds])
    folder, seen = tmp_path / "store", []
    while not (folder / "manifest.json").exists():
        listener = Listener(folder)
        with suppress(Stop):
            build(folder, tmp_path / "in", tokenizer_json, on_event=listener)
        seen += listener.seen
        if (found := status(folder)).state == "interrupted":
            with pytest.raises(BuildStopped) as caught:
                next(iter(packline.follow(folder, seq_len=64, batch_size=10_000, grace=0)))
            about = "" if found.total_is_exact else "about "
            assert f"of its {about}{found.units_total:,} units, and no process" in caught.value.message
    assert {exact for _, exact in seen} == {True, False} and len({total for total, _ in seen}) > 1
    assert seen[-1] == (status(folder).units_total, True)


def test_interrupted_then_running_then_finished(stopped: tuple[Path, Callable[..., Any]]) -> None:
    folder, build = stopped
    found = status(folder)
    assert found.state == "interrupted"
    assert 2 <= found.units_done == len(list((folder / "receipts").glob("*.json")))
    assert found.units_total is not None
    assert found.units_done < found.units_total
    assert found.total_is_exact
    assert found.sources["in"] == found.ledger
    assert (found.documents, found.tokens) == (found.ledger.documents, found.ledger.tokens)
    assert found.documents > 0
    assert (found.eod, found.eod_id) == (EOD, 0)
    assert found.bytes_on_disk == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Status) == found

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with StoreFolder(folder):
        assert status(folder).state == "running"
    assert status(folder).state == "interrupted"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    store = build()
    done = status(folder)
    assert done.state == "finished" and done.units_done == done.units_total == found.units_total
    assert (done.documents, done.tokens) == (len(store.documents), store.manifest.tokens)
    assert done.recipe == found.recipe
    assert done.tokenizer_fingerprint == found.tokenizer_fingerprint


def test_a_damaged_record_is_said(stopped: tuple[Path, Callable[..., Any]]) -> None:
    folder, _ = stopped
    (folder / ".packline/build.json").write_text("{")
    with pytest.raises(CorruptStore, match="is damaged"):
        status(folder)
    (folder / ".packline/build.json").unlink()
    found = status(folder)
    assert (found.state, found.recipe, found.units_total) == ("interrupted", None, None)


def test_neither_store_nor_build(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="does not exist"):
        status(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(StoreNotFound, match="not a store"):
        status(tmp_path)


def test_an_export_has_a_status_too(stopped: tuple[Path, Callable[..., Any]]) -> None:
    _, build = stopped
    store, out = build(), stopped[0].parent / "rows"

    def export(**more: Any) -> Any:
        settings: dict[str, Any] = {"seq_len": 8, "options": {"file_rows": 64}, "workers": 0}
        return packline.export(store, to="baked", out=out, **settings, **more)

    with pytest.raises(Stop):
        export(on_event=stop_after(1))
    found = status(out)
    assert (found.kind, found.state) == ("export", "interrupted")
    assert found.units_done >= 1 and found.bytes_on_disk > 0
    export()
    assert status(out).state == "finished"
