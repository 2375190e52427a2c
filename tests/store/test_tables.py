"""Tables of a store: rows come back as they went in, and the bytes are a function of the rows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.stores import relist

from packline.errors import CorruptStore
from packline.facade import Store
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest import manifest_files
from packline.store.manifest_check import read_manifest
from packline.store.tables import (
    SHARD_FILES,
    UNIT_FILES,
    InputEntry,
    InputRows,
    ShardEntry,
    ShardRows,
    UnitEntry,
    UnitRows,
)
from packline.testing import StoreShape, make_store, store_shapes

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
NUMBERS = st.integers(0, 2**61)
CHECKSUMS = st.text("0123456789abcdef", min_size=32, max_size=32)


def files(names: list[str], optional: str) -> st.SearchStrategy[tuple[FileEntry, ...]]:
    """Entries of these names; those with the optional ending may be absent."""
    chosen = [name for name in names if not name.endswith(optional)]
    kept = st.sampled_from([names, chosen] if optional else [names])
    return kept.flatmap(
        lambda some: st.tuples(*(st.builds(FileEntry, st.just(n), NUMBERS, CHECKSUMS) for n in some))
    )


@st.composite
def shards(draw: st.DrawFn) -> list[tuple[str, str, ShardEntry]]:
    rows = []
    for unit in draw(st.lists(NAMES, max_size=6, unique=True)):
        split = draw(st.sampled_from(["train", "val"]))
        name = f"{split}-{unit}"
        listed = draw(files([f"{name}{ending}" for ending in SHARD_FILES.values()], ".loss"))
        rows.append((unit, draw(NAMES), ShardEntry(name, split, draw(NUMBERS), draw(NUMBERS), listed)))
    return rows


@st.composite
def units(draw: st.DrawFn) -> list[UnitEntry]:
    rows = []
    for unit in draw(st.lists(NAMES, max_size=6, unique=True)):
        names = [f"{begin}{unit}{ending}" for begin, ending in UNIT_FILES.values()]
        receipt, *rejects = draw(files(names, "")) if draw(st.booleans()) else draw(files(names[:1], ""))
        rows.append(UnitEntry(unit, draw(NAMES), receipt, tuple(rejects)))
    return rows


INPUTS = st.lists(
    st.builds(
        InputEntry,
        source=NAMES,
        name=st.text(st.characters(codec="utf-8"), max_size=9),
        bytes=NUMBERS,
        format=st.sampled_from(["jsonl", "parquet"]),
        compression=st.sampled_from(["", "gzip"]),
        text=st.text(st.characters(codec="utf-8"), max_size=4),
        checksum=st.just("") | CHECKSUMS,
    ),
    max_size=6,
)


@settings(max_examples=20)
@given(shards(), INPUTS, units(), st.integers(0, 6))
def test_rows_come_back(
    shards: list[tuple[str, str, ShardEntry]], inputs: list[InputEntry], units: list[UnitEntry], cut: int
) -> None:
    parts = [ShardRows.from_entries(shards[:cut]), ShardRows.from_entries(shards[cut:])]
    assert ShardRows.joined(parts).data == ShardRows.from_entries(shards).data
    ordered = sorted(units, key=lambda one: one.unit)
    for rows, expected in (
        (ShardRows.from_entries(shards), [shard for _, _, shard in shards]),
        (InputRows.from_entries(inputs), inputs),
        (UnitRows.from_entries(units), ordered),
    ):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / rows.file).write_bytes(rows.data)
            read = type(rows).read(StoreFiles(Path(folder)), rows.entry)
        assert list(read) == list(expected) and len(read) == len(expected)
        assert [read[place] for place in range(-len(read), len(read))] == [*expected, *expected]
        assert read == rows and read.data == rows.data
        with pytest.raises(IndexError):
            read[len(read)]


@settings(max_examples=12)
@given(store_shapes())
def test_a_store_read_and_written_again_is_the_same(shape: StoreShape) -> None:
    with shape.opened() as store:
        for name, data in manifest_files(read_manifest(store.path)).items():
            assert (store.path / name).read_bytes() == data


@settings(max_examples=12)
@given(store_shapes())
def test_counts_in_bulk_are_those_of_the_entries(shape: StoreShape) -> None:
    with shape.opened() as store:
        manifest = store.manifest
        assert manifest.documents == sum(shard.documents for shard in manifest.shards)
        assert manifest.tokens == sum(shard.tokens for shard in manifest.shards)
        by_split: dict[str, int] = {}
        for shard in manifest.shards:
            by_split[shard.split] = by_split.get(shard.split, 0) + shard.tokens
        assert manifest.shards.by_split("tokens") == by_split
        on_disk = [path for path in store.path.rglob("*") if path.is_file() and path.name != "manifest.json"]
        assert manifest.store_bytes == sum(path.stat().st_size for path in on_disk)
        assert sorted(entry.name for entry in manifest.files()) == sorted(
            path.relative_to(store.path).as_posix() for path in on_disk
        )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store", [[5, 2], [4], [3, 3]], splits=["train", "val", "train"])


def test_a_shard_is_made_once(store: Store) -> None:
    shards = store.shards
    assert len(shards) == 3 and shards[1] is shards[1] and shards[-1] is shards[2]
    assert list(shards) == [shards[0], shards[1], shards[2]] == shards[:]
    with pytest.raises(IndexError):
        shards[3]


def test_a_table_with_other_columns_is_refused(store: Store) -> None:
    import pyarrow.parquet as pq

    from packline.fingerprint import hash_bytes

    path = store.path / "shards.parquet"
    pq.write_table(store.manifest.shards.table.drop_columns(["split"]), path)
    data = path.read_bytes()
    said = r"shards\.parquet: column 3: expected split string not null, found documents int64 not null"
    with pytest.raises(CorruptStore, match=said):
        ShardRows.read(store.files, FileEntry(path.name, len(data), hash_bytes(data)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns(["hash"]), "column 7: expected hash uint64, found none"),
        (lambda table: table.append_column("x", [[[1]] * 2]), "column 8: expected none, found x list<"),
        (lambda table: table.append_column("id", [["a"] * 2]), "column 8: expected none, found id string"),
        (lambda table: table.append_column("url", [["a"] * 2]), ""),
    ],
)
def test_provenance_with_other_columns_is_refused(
    store: Store, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    import pyarrow.parquet as pq

    path = store.path / "train-made-000000.docs.parquet"
    pq.write_table(change(pq.read_table(path)), path, store_schema=True)
    opened = relist(store.path)
    problems = " ".join(one.what for one in opened.verify().problems)
    assert said in problems and ("not readable" in problems) == bool(said)
    if not said:
        assert opened.provenance(0).columns == {"url": "a"}
    else:
        with pytest.raises(CorruptStore, match=re.escape(f"{path}: {said}")):
            opened.provenance(0)
