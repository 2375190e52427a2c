"""Carried columns: in the store are the values of the inputs, whatever the kind of file and the batches.

The second way is `json.loads` (or the rows that a Parquet file was written from) and a few lines of Python.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.reading import bytes_as_strings, write_records

import packline
from packline.errors import InputError, RecipeError
from packline.fingerprint import Hasher
from packline.recipe import Recipe, Source
from packline.sources import lines as lines_module
from packline.sources.batch import Batch
from packline.sources.carried import Column, Misfit, fit_all
from packline.sources.fields import find_files
from packline.sources.reader import Span, read_span

KINDS = ["jsonl", "json", "jsonl.gz", "json.gz"]
COLUMNS = ("url: string", "n: integer", "score: float", "meta.flag: boolean", "meta.when: timestamp")
NAMES = [column.partition(":")[0] for column in COLUMNS]

strings = st.text(max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.integers(-(2**70), 2**70) | st.integers(-9, 9) | floats
# Older offsets have seconds, which no record has.
zoned = st.datetimes(datetime(1973, 1, 1), timezones=st.timezones() | st.just(UTC))
odd_times = ["2024-02-29", "2024-02-30", "2024-01-02T03:04:05Z", "0001-01-01T00:00:00+01:00"]
times = st.one_of(
    st.datetimes().map(datetime.isoformat),
    st.tuples(zoned, st.sampled_from("Tt ")).map(lambda one: one[0].isoformat(one[1])),
    st.sampled_from(odd_times),
)
anything = st.none() | st.booleans() | numbers | strings | times | st.lists(st.integers(), max_size=1)


def mostly(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of one type, and now and then null or anything else."""
    return st.one_of(values, values, values, st.none(), anything)


metas = st.fixed_dictionaries(
    {}, optional={"flag": mostly(st.booleans()), "when": mostly(times), "other": anything}
)
records = st.fixed_dictionaries(
    {"text": st.text(min_size=1, max_size=5)},
    optional={
        "url": mostly(strings),
        "n": mostly(numbers),
        "score": mostly(numbers),
        "meta": metas | metas | metas | anything,
        "unused": anything,
    },
)


def expected_value(record: dict[str, Any], column: str) -> Any:
    """The value of a column; `Misfit` if it makes the record bad."""
    name, _, kind = column.partition(": ")
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return None
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in ("integer", "float") and isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "float":
            return float(value)
        if value == math.floor(value) and -(2**63) <= value < 2**63:
            return int(value)
    if kind == "timestamp" and isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            return Misfit
    return Misfit


def read(path: Path, columns: tuple[str, ...] = COLUMNS, **source: Any) -> list[Batch]:
    if "template" not in source:
        source = {"text": "text"} | source
    made = Source(inputs=(str(path),), columns=columns, **source)
    (file,) = find_files(Recipe(sources=(made,), tokenizer="t"))
    stop = pq.ParquetFile(path).num_row_groups if path.suffix == ".parquet" else file.size
    return list(read_span(file, made, Span(0, 0, stop), 1 << 20, Hasher()))


def rows_of(batches: list[Batch]) -> list[dict[str, Any]]:
    return [row for batch in batches if batch.columns is not None for row in batch.columns.to_pylist()]


def check(batches: list[Batch], given: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS) -> None:
    good, bad = [], []
    for record in given:
        values = [expected_value(record, column) for column in columns]
        if Misfit in values:
            bad.append(columns[values.index(Misfit)].partition(":")[0])
        else:
            good.append((record["text"], values))
    found = []
    for batch in batches:
        assert batch.columns is None or len(batch.columns) == len(batch)
        rows = [] if batch.columns is None else batch.columns.to_pylist()
        found += list(zip(batch.texts, [list(row.values()) for row in rows], strict=False))
    rejects = [reject for batch in batches for reject in batch.rejects]
    assert found == good
    assert [reject.reason for reject in rejects] == ["column_type"] * len(bad)
    for reject, column in zip(sorted(rejects, key=lambda one: one.position), bad, strict=True):
        assert f"column {column!r}: expected " in reject.detail


FIRST = {"text": "x", "url": "", "n": 1, "score": 0.5, "meta": {"flag": True, "when": "2024-01-01"}}


@settings(max_examples=60)
@given(st.lists(records, max_size=6), st.sampled_from(KINDS), st.sampled_from([40, 300, 1 << 20]))
def test_columns_are_the_fields_of_the_records(given: list[dict[str, Any]], kind: str, block: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setitem(lines_module.read_lines.__kwdefaults__ or {}, "block_bytes", block)
        given = [FIRST, *given]
        path = write_records(Path(folder) / f"a.{kind}", given)
        check(read(path), given)
        check(read(path, template="{{ text }}"), given)
        check(read(path, id="meta.when"), given)


def test_odd_json_in_a_column_is_a_bad_record_and_elsewhere_is_none(tmp_path: Path) -> None:
    lines = [
        b'{"text": "a", "url": "\\ud83d"}',
        b'{"text": "b", "score": 1e400}',
        b'{"text": "c", "other": 1e400, "url": "u", "deep": "\\ud83d"}',
        b'{"text": "d", "url": "\xff"}',
        b'{"text": "e", "url": null, "score": 3}',
        b'{"text": 5, "url": 5}',
        b'{"text": "f", "n": 123456789012345678901234567890}',
        b'{"text": "g", "meta": "not an object"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    batches = read(tmp_path / "a.jsonl", rare_fields=tuple(NAMES))
    rejects = {one.position: (one.reason, one.raw) for batch in batches for one in batch.rejects}
    starts = list(itertools.accumulate((len(line) + 1 for line in lines), initial=0))
    wrong = {0: "column_type", 1: "column_type", 3: "column_type", 5: "not_a_string", 6: "column_type"}
    assert rejects == {starts[number]: (reason, lines[number]) for number, reason in wrong.items()}
    rows = rows_of(batches)
    assert [text for batch in batches for text in batch.texts] == ["c", "e", "g"]
    assert [(row["url"], row["score"]) for row in rows] == [("u", None), (None, 3.0), (None, None)]


PARQUET: dict[str, tuple[st.SearchStrategy[Any], list[pa.DataType]]] = {
    "string": (strings, [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
    "integer": (st.integers(0, 100), [pa.int8(), pa.uint64(), pa.float32(), pa.float64()]),
    "float": (st.integers(-9, 9), [pa.float32(), pa.float64(), pa.int64(), pa.int8(), pa.decimal128(9, 2)]),
    "boolean": (st.booleans(), [pa.bool_()]),
    "timestamp": (
        st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(lambda one: one.replace(microsecond=0)),
        [*(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("ms", "Asia/Tokyo")],
    ),
}


@pytest.mark.parametrize("type", PARQUET)
@settings(max_examples=30)
@given(data=st.data())
def test_columns_of_parquet_have_the_values_of_its_rows(type: Any, data: st.DataObject) -> None:
    values, kinds = PARQUET[type]
    kind = data.draw(st.sampled_from(kinds))
    given = data.draw(st.lists(values | st.none(), min_size=1, max_size=6))
    nested = data.draw(st.booleans())
    column = pa.array(given, kind)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        texts = pa.array([f"t{row}" for row in range(len(given))])
        holder = pa.StructArray.from_arrays([column], ["c"]) if nested else column
        pq.write_table(pa.table({"text": texts, "c": holder}), path, row_group_size=2)
        name = "c.c" if nested else "c"
        for source in ({}, {"template": "{{ text }}"}):
            if getattr(kind, "unit", None) == "ns" and source:
                continue
            batches = read(path, (f"{name}: {type}",), **source)
            found = [row[name] for row in rows_of(batches)]
            if type == "timestamp":
                expected: list[Any] = [None if one is None else one.replace(tzinfo=UTC) for one in given]
            else:
                expected = given
            assert found == expected and not any(batch.rejects for batch in batches)


@given(
    st.lists(st.none() | st.floats() | st.sampled_from([1.0, 2.0**63, -(2.0**63), 0.5]), max_size=6),
    st.lists(st.none() | st.integers(0, 2**64 - 1), max_size=6),
)
def test_numbers_of_parquet_that_are_no_integers_are_bad_rows(
    floats: list[float | None], integers: list[int | None]
) -> None:
    for kind, values in ((pa.float64(), floats), (pa.uint64(), integers)):
        (array,), problems = fit_all([Column("c", "integer")], [pa.array(values, kind)], len(values))
        for row, value in enumerate(values):
            fits = value is None or (
                math.isfinite(value) and value == int(value) and -(2**63) <= value < 2**63
            )
            assert (row in problems) is not fits
            assert array[row].as_py() == (value if fits else None)


def test_a_type_is_that_of_the_first_file_with_a_value(tmp_path: Path) -> None:
    def types(*contents: list[dict[str, Any]], columns: tuple[str, ...] = ("a",)) -> dict[str, str]:
        for number, some in enumerate(contents):
            data = "".join(json.dumps({"text": "t"} | record) + "\n" for record in some)
            (tmp_path / f"{number}.jsonl").write_text(data)
        recipe = Recipe(sources=(Source(inputs=(str(tmp_path),), columns=columns),), tokenizer="t")
        files = find_files(recipe)
        assert len({file.carried for file in files}) == 1
        return {column.name: column.type for column in files[0].carried or ()}

    assert types([{"a": None}, {"a": 1}], [{"a": "s"}]) == {"a": "integer"}
    assert types([{"a": 1}, {"a": 2.5}], []) == {"a": "float"}
    assert types([{}], [{"a": True}]) == {"a": "boolean"}
    assert types([{"a": "2024-01-01"}], []) == {"a": "string"}
    assert types([{"a": "2024-01-01"}], [], columns=("a: timestamp",)) == {"a": "timestamp"}
    assert types([{"a": {"b": "x"}}], [], columns=("a.b",)) == {"a.b": "string"}
    with pytest.raises(RecipeError, match=r"'a' in .* is an object: expected"):
        types([{"a": {"b": "x"}}], [])
    with pytest.raises(RecipeError, match="its type is unknown"):
        types([{"a": None}], [])
    with pytest.raises(RecipeError, match="no record has the field 'b' of columns"):
        types([{"a": 1}], [], columns=("b",))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["hash"], "own provenance"),
        (["a", "a: float"], "given twice"),
        (["a", "a.b"], "one field cannot hold the other"),
        (["score: flaot"], "expected the type string, integer, float, boolean, timestamp, found 'flaot'"),
        (['a"b'], "expected the name of a field"),
    ],
)
def test_columns_that_mean_nothing_are_refused(tmp_path: Path, columns: list[str], message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "a": 1}\n')
    with pytest.raises(RecipeError, match=message):
        packline.build(tmp_path / "a.jsonl", "tokenizer.json", out=tmp_path / "out", columns=columns)


def test_inputs_without_fields_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(InputError, match="is plain text: it has no fields"):
        read(tmp_path / "a.txt")
    pq.write_table(
        pa.table({"text": ["a"], "meta": [{"lang": "de"}], "tags": [["x"]]}), tmp_path / "a.parquet"
    )
    with pytest.raises(InputError, match="column 'meta' is struct<lang: string>"):
        read(tmp_path / "a.parquet", ("meta",))
    with pytest.raises(InputError, match="column 'tags' is list"):
        read(tmp_path / "a.parquet", ("tags",))
    with pytest.raises(InputError, match="expected a column that fits float"):
        read(tmp_path / "a.parquet", ("meta.lang: float",))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("source", [{}, {"where": "keep"}, {"template": "{{ text }}", "where": "keep"}])
def test_rows_keep_their_columns_when_others_are_left_out(
    tmp_path: Path, kind: str, source: dict[str, Any]
) -> None:
    texts = [None if row % 3 == 1 else f"t{row}" for row in range(20)]
    given = [{"text": text, "n": row, "keep": row % 2 == 0} for row, text in enumerate(texts)]
    batches = read(write_records(tmp_path / f"a.{kind}", given), ("n",), **source)
    chosen = [row for row in range(20) if texts[row] and (not source or row % 2 == 0)]
    assert [row["n"] for row in rows_of(batches)] == chosen
    assert [text for batch in batches for text in batch.texts] == [f"t{row}" for row in chosen]


@pytest.mark.parametrize("source", [{}, {"template": "{{ text }}"}])
def test_a_string_of_parquet_that_is_no_utf_8_makes_a_bad_row(tmp_path: Path, source: dict[str, Any]) -> None:
    table = {"text": ["a", "b", "c"], "url": bytes_as_strings([b"fine", b"caf\xe9", None])}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    (batch,) = read(tmp_path / "a.parquet", ("url",), **source)
    assert rows_of([batch]) == [{"url": "fine"}, {"url": None}]
    assert [(one.position, one.reason) for one in batch.rejects] == [(1, "column_type")]
