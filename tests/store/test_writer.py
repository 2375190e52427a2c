"""The writer: how documents were batched must not show in any byte."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.ragged import Ragged, dtype_for, offsets_of
from packline.sources.batch import Batch, Reject, Texts
from packline.store import writer as writer_module
from packline.store.provenance import CarriedTypes, carried_columns
from packline.store.tables import ShardEntry
from packline.store.writer import RejectEntry, RejectsWriter, ShardWriter

COUNT = 37
LENGTHS = np.random.default_rng(5).integers(1, 20, COUNT)
TOKENS = np.random.default_rng(6).integers(0, 60_000, int(LENGTHS.sum())).astype("<u2")
WHOLE = Ragged(TOKENS, offsets_of(LENGTHS))
TEXT_BYTES = LENGTHS * 3
IDS = [None if place % 5 == 0 else f"id-{place}" for place in range(COUNT)]
FILES = ["a.jsonl"] * 20 + ["b.jsonl"] * 17


CARRIED: CarriedTypes = (("url", "string"), ("n", "integer"))
URLS = [None if place % 7 == 0 else "u" * (place * 3 % 50) for place in range(COUNT)]
NUMBERS = [None if place % 4 == 0 else place - 10 for place in range(COUNT)]


def write_shard(folder: Path, cuts: list[int], *, carried: bool = False) -> ShardEntry:
    """Write all documents, cut into batches at these places (a batch is of one file)."""
    more: CarriedTypes = CARRIED if carried else ()
    writer = ShardWriter(folder, "train-000000", "train", "books", "fiction", dtype_for(60_000), carried=more)
    edges = sorted({0, 20, COUNT, *cuts})
    for start, stop in pairwise(edges):
        part = WHOLE.take(np.arange(start, stop))
        texts = Texts.of(["x" * size for size in TEXT_BYTES[start:stop]])
        batch = Batch(0, texts, np.arange(start, stop, dtype=np.int64) * 100, IDS[start:stop])
        if carried:
            batch.columns = pa.record_batch(
                {
                    "url": pa.array(URLS[start:stop], pa.string()),
                    "n": pa.array(NUMBERS[start:stop], pa.int64()),
                }
            )
        writer.write(part, batch, FILES[start], texts.hashes())
    return writer.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, COUNT - 1)),
    st.sampled_from([1, 7, 16, 1 << 16]),
    st.integers(0, 200),
    st.booleans(),
)
def test_bytes_and_row_groups_depend_on_the_documents_alone(
    cuts: list[int], row_group: int, group_bytes: int, carried: bool
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer_module, "ROW_GROUP", row_group)
            patch.setattr(writer_module, "GROUP_BYTES", group_bytes)
            entry = write_shard(Path(one), [], carried=carried)
            assert write_shard(Path(other), cuts, carried=carried) == entry
        assert contents(Path(one)) == contents(Path(other))
        file = pq.ParquetFile(Path(one) / "train-000000.docs.parquet")
        table = file.read()
        assert table["hash"].to_pylist() == [xxhash.xxh3_64_intdigest(b"x" * size) for size in TEXT_BYTES]
        assert carried_columns(file.schema_arrow) == (CARRIED if carried else ())
        if not carried:
            return
        assert (table["url"].to_pylist(), table["n"].to_pylist()) == (URLS, NUMBERS)
        for group in range(file.metadata.num_row_groups):
            urls = file.read_row_group(group, ["url"])["url"].to_pylist()
            assert len(urls) <= row_group
            assert len(urls) == 1 or sum(len(url or "") for url in urls) <= group_bytes


def test_rejects_are_kept_verbatim(tmp_path: Path) -> None:
    writer = RejectsWriter(tmp_path, "000000")
    writer.write(Reject(0, 10, "malformed_json", "bad", b"{\xff\n"), "a.jsonl")
    writer.write(Reject(0, 20, "too_large", "long", b"12345"), "a.jsonl")
    writer.write(Reject(0, 25, "too_large", "long", b"678", continued=True), "a.jsonl")
    writer.write(Reject(0, 90, "corrupt_parquet", "lost", b"", records=7), "b.parquet")
    entries = writer.close()
    assert [entry.name for entry in entries] == ["rejects/000000.raw", "rejects/000000.jsonl"]
    raw = (tmp_path / "000000.raw").read_bytes()
    lines = msgspec.json.Decoder(RejectEntry).decode_lines((tmp_path / "000000.jsonl").read_bytes())
    kept = [(line.position, line.reason, raw[line.offset : line.offset + line.bytes]) for line in lines]
    assert kept == [
        (10, "malformed_json", b"{\xff\n"),
        (20, "too_large", b"12345678"),
        (90, "corrupt_parquet", b""),
    ]
    assert [line.records for line in lines] == [1, 1, 7]


def test_a_unit_without_rejects_writes_no_file(tmp_path: Path) -> None:
    assert RejectsWriter(tmp_path, "000000").close() == ()
    assert list(tmp_path.iterdir()) == []
