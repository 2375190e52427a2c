"""Parquet: every kind of text column, ids, bad rows, damaged row groups, and slices equal to spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sources.reading import bytes_as_strings, files_of, read_file, read_sliced, source_of

from packline.errors import InputError

TEXTS = ["plain", "", "naïve 漢字", "nul \x00 inside", "x" * 3000, "last"]


def write(path: Path, columns: dict[str, Any], rows: int = 1 << 20, **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows, **options)
    return path


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_of_any_string_type(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(TEXTS).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(TEXTS, kind)
    path = write(tmp_path / "a.parquet", {"other": list(range(6)), "text": column}, rows=4)
    source = source_of(path)
    read = read_file(source)
    assert read.texts == TEXTS and read.positions == list(range(6)) and not read.rejects
    assert read_file(source, cuts=[1]) == read
    assert read_sliced(source, 1)[0] == read


def test_a_field_of_a_struct_is_a_column_and_a_null_struct_a_null_text(tmp_path: Path) -> None:
    structs = [{"body": "a", "id": 0}, None, {"body": None, "id": 2}, {"body": "b", "id": 3}]
    path = write(tmp_path / "a.parquet", {"data": structs}, rows=2)
    read = read_file(source_of(path, text="data.body", id="data.id"))
    assert (read.texts, read.positions, read.ids) == (["a", "b"], [0, 3], ["0", "3"])
    assert [reject.position for reject in read.rejects] == [1, 2]


def test_nulls_bad_utf8_and_texts_beyond_the_limit_cost_their_rows(tmp_path: Path) -> None:
    values = [b"good", None, b"caf\xe9", b"y" * 99, b"", b"cut \xe2\x82", b"also good"]
    path = write(tmp_path / "a.parquet", {"text": bytes_as_strings(values), "id": list("abcdefg")}, rows=5)
    source = source_of(path)
    read = read_file(source, most=50)
    assert (read.texts, read.positions, read.ids) == (["good", "", "also good"], [0, 4, 6], ["a", "e", "g"])
    found = [(reject.position, reject.reason, reject.raw) for reject in read.rejects]
    assert found == [
        (1, "not_a_string", b"null"),
        (2, "invalid_utf8", b"caf\xe9"),
        (3, "too_large", b"y" * 99),
        (5, "invalid_utf8", b"cut \xe2\x82"),
    ]
    assert "0xe9" in read.rejects[1].detail
    assert read_sliced(source, 1, most=50)[0] == read


IDS: list[tuple[pa.Array, list[str | None]]] = [
    (pa.array([1, 2, None, 3]), ["1", "2", None, "3"]),
    (pa.array(["a", None, "b", "a"]).dictionary_encode(), ["a", None, "b", "a"]),
    (pa.array([1.5, None, 2.0, 3.0]), ["1.5", None, "2.0", "3.0"]),
    (bytes_as_strings([b"a", b"\xff\xfe", None, b"d"]), ["a", None, None, "d"]),
    (pa.array([0, 1, None, 1500], pa.timestamp("ns")), [
        "1970-01-01 00:00:00", "1970-01-01 00:00:00.000000001", None, "1970-01-01 00:00:00.000001500"]),
    (pa.array([0, 1, None, 10**9], pa.timestamp("ns", "Asia/Tokyo")), [
        "1970-01-01 09:00:00+09:00", "1970-01-01 09:00:00.000000001+09:00", None,
        "1970-01-01 09:00:01+09:00"]),
    (pa.array([0, 10**7, None, 1], pa.date32()), ["1970-01-01", "29349-01-26", None, "1970-01-02"]),
    (pa.array([0, 10**18, None, 1000], pa.timestamp("ms")), [
        "1970-01-01 00:00:00", str(10**18), None, "1970-01-01 00:00:01"]),
    (pa.array([0, 2**62, None, 10**3], pa.duration("ms")), ["0:00:00", str(2**62), None, "0:00:01"]),
    (pa.array([0, 1, None, 10**6], pa.timestamp("us", "Mars/Phobos")), [
        "1970-01-01 00:00:00.000000+00:00", "1970-01-01 00:00:00.000001+00:00", None,
        "1970-01-01 00:00:01.000000+00:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("ids", "expected"), IDS, ids=lambda one: str(getattr(one, "type", "")))
def test_ids_of_any_type_stay_with_their_rows_and_never_lose_a_text(
    tmp_path: Path, ids: pa.Array, expected: list[str | None]
) -> None:
    texts = ["one", "two", "three", "four"]
    path = write(tmp_path / "a.parquet", {"text": texts, "id": ids}, rows=3)
    source = source_of(path)
    read = read_file(source)
    assert (read.texts, read.ids, read.rejects) == (texts, expected, [])
    assert read_sliced(source, 1)[0] == read


def test_a_column_that_is_there_twice_is_refused_if_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for names in (["text", "text"], ["text", "id", "id"]):
        table = pa.Table.from_arrays([pa.array(["a", "b"])] * len(names), names=names)
        pq.write_table(table, path)
        if names.count("text") == 1:
            assert read_file(source_of(path)).ids == [None, None]
            continue
        with pytest.raises(InputError, match=r"a\.parquet has 2 columns called 'text'") as caught:
            files_of(source_of(path))
        assert caught.value.hint
    with pytest.raises(InputError, match="2 columns called 'id'"):
        files_of(source_of(path, id="id"))


def test_a_page_whose_checksum_is_wrong_costs_its_row_group_and_no_other(tmp_path: Path) -> None:
    texts = [f"text {number} " * 20 for number in range(30)]
    path = write(
        tmp_path / "a.parquet",
        {"text": texts},
        rows=10,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 20] ^= 1  # a letter, still UTF-8
    path.write_bytes(data)
    read = read_file(source_of(path))
    assert read.texts == texts[:10] + texts[20:]
    (reject,) = read.rejects
    assert (reject.reason, reject.position, reject.records) == ("corrupt_parquet", 10, 10)
    assert "row group 1, rows 10 to 19" in reject.detail


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 5), max_size=3),
    slice_bytes=st.integers(1, 6000),
    batch_bytes=st.integers(100, 5000),
)
def test_spans_and_slices_of_any_size_give_the_same_documents(
    tmp_path: Path, counts: list[int], cuts: list[int], slice_bytes: int, batch_bytes: int
) -> None:
    path = tmp_path / "a.parquet"
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    texts: list[str] = []
    with pq.ParquetWriter(path, schema) as writer:
        for count in counts:
            fresh = [f"{len(texts) + number} " * (number % 9) for number in range(count)]
            ids = list(range(len(texts), len(texts) + count))
            writer.write_table(pa.table({"id": ids, "text": fresh}, schema=schema))
            texts += fresh
    source = source_of(path)
    whole = read_file(source)
    assert whole.texts == texts and whole.positions == list(range(len(texts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packline.sources.parquet.CUT_BYTES", batch_bytes)
        assert read_file(source, cuts) == whole
        sliced, count = read_sliced(source, slice_bytes)
    assert sliced == whole
    assert count <= sum(map(len, texts)) // slice_bytes + 1


def damage(path: Path, group: int, column: str = "text") -> None:
    """Write over the pages of one row group."""
    facts = pq.ParquetFile(path).metadata.row_group(group)
    (place,) = (n for n in range(facts.num_columns) if facts.column(n).path_in_schema == column)
    start = facts.column(place).data_page_offset
    size = facts.column(place).total_compressed_size
    data = bytearray(path.read_bytes())
    data[start + 30 : start + size] = b"\xa5" * (size - 30)
    path.write_bytes(data)


def test_rows_before_the_damage_within_a_group_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packline.sources.parquet.CUT_BYTES", 4096)
    texts = [f"text {number} " * 20 for number in range(2000)]
    path = write(
        tmp_path / "a.parquet",
        {"text": texts},
        compression="none",
        use_dictionary=False,
        data_page_size=2048,
        write_batch_size=16,
    )
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at : at + 3000] = b"\xff" * 3000
    path.write_bytes(data)
    source = source_of(path)
    read = read_file(source)
    lost = [reject for reject in read.rejects if reject.reason == "corrupt_parquet"]
    assert len(read.texts) > 500
    assert len(read.texts) + sum(reject.records for reject in read.rejects) == 2000
    assert all(
        texts[number] == text for number, text in zip(read.positions[:500], read.texts[:500], strict=True)
    )
    assert read_sliced(source, 10_000)[0].texts == read.texts
    assert lost or any(reject.reason == "invalid_utf8" for reject in read.rejects)


def test_a_file_without_its_end_is_refused_before_any_work(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"a\.parquet is not a readable Parquet file") as caught:
        files_of(source_of(path))
    assert "footer" in caught.value.hint
