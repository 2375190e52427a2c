"""Stores of somebody else, with right checksums: what no build writes is refused, with its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.store.stores import relist, with_rows

import packline
from packline.errors import CorruptStore, PacklineError
from packline.facade import Store
from packline.store.lookup import find_by_id
from packline.store.manifest import Manifest, with_tables
from packline.store.manifest_check import read_manifest
from packline.store.reader import provenance_of
from packline.store.tables import ShardRows, UnitEntry
from packline.store.verify import verify
from packline.testing import make_store, write_manifest

NAME = "train-made-a-000000"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", [[5, 60, 7], [70, 2]], labels=["a", "b"]).path


Change = Callable[[Manifest], Manifest]


def tokenizer(**fields: Any) -> Change:
    return lambda old: replace(old, tokenizer=replace(old.tokenizer, **fields))


def totals(**fields: Any) -> Change:
    return lambda old: replace(old, totals=replace(old.totals, **fields))


def units(change: Callable[[list[UnitEntry]], list[UnitEntry]]) -> Change:
    return lambda old: with_rows(old, units=change([*old.units]))


def renamed(unit: UnitEntry, name: str) -> UnitEntry:
    return replace(unit, unit=name, receipt=replace(unit.receipt, name=f"receipts/{name}.json"))


def column(name: str, value: Any, others: Change = lambda old: old) -> Change:
    """This value in the first row of the shards."""

    def change(old: Manifest) -> Manifest:
        table = old.shards.table
        place = table.column_names.index(name)
        values = pa.array([value, *table[name].to_pylist()[1:]], table.schema.types[place])
        return others(
            with_tables(old, shards=ShardRows(table.set_column(place, table.schema[place], values)))
        )

    return change


PLAIN = "one plain component"
CRAFTED: dict[str, tuple[Change, str]] = {
    "name above": (column("name", "../outside/secret"), PLAIN),
    "name of dots": (column("name", ".."), PLAIN),
    "NUL in a name": (column("name", "a\0b"), PLAIN),
    "a shard twice": (lambda old: with_rows(old, shards=[*old.shards] * 2), "'train-made-a-000000' twice"),
    "split": (column("split", "dev"), "split of a shard: expected train or val or test"),
    "negative documents": (column("documents", -1), "documents of a shard"),
    "huge tokens": (column("tokens", 2**63 - 1, totals(tokens=2**63 - 1)), "tokens of a shard"),
    "dtype": (lambda old: replace(old, dtype="junk,,"), "dtype is 'junk,,': expected int32 or uint16"),
    "eod_id": (tokenizer(eod_id=10**12), "eod_id of the tokenizer: expected 0 to 999"),
    "bos_id": (tokenizer(bos_id=-1), "tokenizer: bos_id is -1: expected at least 0"),
    "negative total": (totals(bytes=-1), "totals: bytes is -1: expected at least 0"),
    "negative bytes": (column("idx_bytes", -1), "idx_bytes of a shard"),
    "bytes alone": (column("loss_bytes", 1), "loss of a shard"),
    "shard of another source": (column("source", "c"), "source of a shard"),
    "unit of another shard": (column("unit", "000007"), "name of a shard"),
    "unit": (units(lambda old: [renamed(old[0], "../x")]), f"name of a unit: expected {PLAIN}"),
    "a unit twice": (units(lambda old: [old[0], *old]), "'made-a-000000' twice"),
    "tables above": (
        lambda old: replace(old, tables=(replace(old.tables[0], name="../shards.parquet"), *old.tables[1:])),
        "tables: expected shards.parquet",
    ),
    "totals": (totals(documents=7), "documents of a shard, in all: expected 7, found 5"),
    "fewer shards": (totals(shards=1), "number of shards: expected 1, found 2"),
    "bytes of all files": (totals(bytes=1), "bytes of all files: expected 1"),
    "tokenizer": (
        lambda old: replace(old, tokenizer_files=(replace(old.tokenizer_files[0], name="/etc/hosts"),)),
        f"name of a file of tokenizer/: expected tokenizer/ and {PLAIN}",
    ),
    "source of an input": (
        lambda old: with_rows(old, inputs=(replace(old.inputs[0], source="c"), *list(old.inputs)[1:])),
        "source of an input",
    ),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_manifest_that_no_build_writes_is_refused(store: Path, what: str) -> None:
    change, said = CRAFTED[what]
    write_manifest(store, change(read_manifest(store)))
    with pytest.raises(CorruptStore, match=r"manifest|\.parquet: ") as caught:
        packline.open(store)
    assert said in str(caught.value)
    report = verify(store)
    assert not report.ok and said in str(report.problems[0])


@pytest.mark.parametrize("name", ["manifest.json", f"{NAME}.bin", f"{NAME}.idx", f"{NAME}.docs.parquet"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_what_is_no_file_of_the_store_is_not_opened(store: Path, name: str, kind: str) -> None:
    path, outside = store / name, store.parent / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "dangling":
        path.symlink_to(store / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)  # whoever opens it waits for ever
    else:
        path.mkdir()
    report = verify(store)
    assert [problem.file for problem in report.problems if problem.file == name]
    with pytest.raises(CorruptStore, match=name.replace(".", r"\.")):
        opened = packline.open(store)
        opened.provenance(0)


def test_links_that_stay_within_the_store_are_its_own(store: Path) -> None:
    (store / f"{NAME}.bin").rename(store / "kept")
    (store / f"{NAME}.bin").symlink_to("kept")
    linked = store.parent / "linked"
    linked.symlink_to(store)
    assert len(packline.open(linked).documents[0]) == 5
    assert verify(linked).ok


def test_a_folder_that_leads_out_is_refused(store: Path) -> None:
    (store / "tokenizer").rename(store.parent / "elsewhere")
    (store / "tokenizer").symlink_to(store.parent / "elsewhere")
    assert not verify(store).ok
    with pytest.raises(CorruptStore, match="a link out of it"):
        _ = packline.open(store).tokenizer


# ---------------------------------------------------------------- indexes and ids


def change_index(folder: Path, where: str, document: int, value: int) -> None:
    path = folder / f"{NAME}.idx"
    data = bytearray(path.read_bytes())
    count = int.from_bytes(data[18:26], "little")
    size = 4 if where == "length" else 8
    at = 34 + (0 if where == "length" else 4 * count) + size * document
    data[at : at + size] = value.to_bytes(size, "little", signed=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("where", "value"),
    [("length", 2**31 - 1), ("length", 0), ("offset", 2**62), ("offset", 3)],
)
def test_an_index_is_checked_wherever_documents_are_read(store: Path, where: str, value: int) -> None:
    change_index(store, where, 1, value)
    reads: tuple[Callable[[Store], Any], ...] = (
        lambda opened: opened.documents[1],
        lambda opened: opened.text(1),
        lambda opened: list(opened.documents),
        lambda opened: opened.rows(16).read(np.arange(3)),
        lambda opened: opened.rows(16, shuffle_documents=1).read(np.arange(3)),
        lambda opened: opened.rows(16, packing="pad").read(np.arange(3)),
        lambda opened: opened.rows(16, packing="best_fit").read(np.arange(3)),
    )
    for read in reads:
        with pytest.raises(CorruptStore, match=rf"{NAME}\.idx|{store}"):
            read(packline.open(store))
    # With a checksum that is right, what contradicts itself is refused.
    opened = relist(store)
    with pytest.raises(CorruptStore, match=rf"{NAME}\.idx"):
        opened.documents[1]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_ids_outside_the_vocabulary_are_not_handed_out(tmp_path: Path, dtype: str) -> None:
    made = make_store(tmp_path / "store", [[5, 60, 7]], labels=["a"], dtype=dtype)
    right = [document.tolist() for document in made.documents]
    tokens = np.fromfile(made.path / f"{NAME}.bin", made.dtype)
    tokens[9] = 1000 if dtype == "uint16" else -1
    tokens.tofile(made.path / f"{NAME}.bin")
    opened = packline.open(made.path)
    for read in (lambda: opened.documents[1], lambda: opened.text(1), lambda: list(opened.documents[1:])):
        with pytest.raises(CorruptStore, match=rf"token 9 of {NAME}\.bin is (1,000|-1): expected an id"):
            read()
    assert [opened.documents[place].tolist() for place in (0, 2)] == [right[0], right[2]]


# ---------------------------------------------------------------- files that libraries read


@pytest.mark.parametrize("data", [b"", b"PAR1" + bytes(40) + b"PAR1"])
@pytest.mark.parametrize("listed", [True, False])
def test_damaged_provenance_is_one_kind_of_error(store: Path, data: bytes, listed: bool) -> None:
    (store / f"{NAME}.docs.parquet").write_bytes(data)
    opened = relist(store) if listed else packline.open(store)
    reads: tuple[Callable[[], Any], ...] = (
        lambda: opened.provenance(0),
        lambda: opened.shards[0].open_provenance(),
        lambda: provenance_of(opened, np.array([0, 1])),
        lambda: find_by_id(opened, "d1"),
    )
    for read in reads:
        with pytest.raises(CorruptStore, match=rf"{NAME}\.docs\.parquet"):
            read()
    assert opened.provenance(3).label == "b"


@pytest.mark.parametrize("data", [b"{}", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_tokenizer_is_one_kind_of_error(store: Path, data: bytes) -> None:
    (store / "tokenizer" / "tokenizer.json").write_bytes(data)
    with pytest.raises(CorruptStore, match=r"tokenizer\.json"):
        packline.open(store).text(0)
    assert len(packline.open(store).documents[0]) == 5
    with pytest.raises(PacklineError):
        from packline.viewing.tokens import Vocabulary

        Vocabulary.of_store(packline.open(store))
