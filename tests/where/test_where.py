"""Conditions: two evaluators and Python agree, the canonical text is one, and all else is refused."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.jobs.builds import build
from tests.where.cases import COLUMNS, conditions, python_says, rows

from packline.errors import RecipeError
from packline.packing.options import DocumentFilter
from packline.packing.selection import Selection
from packline.where.columns import check_columns, column_mask
from packline.where.conditions import (
    Incomparable,
    canonical_where,
    conjunction,
    expected_fields,
    fields_of,
    parse_where,
    record_test,
)

TYPES = {
    "n": pa.int64(),
    "x": pa.float64(),
    "s": pa.string(),
    "flag": pa.bool_(),
    "a.b": pa.string(),
    "empty": pa.null(),
}


def columns_of(records: list[dict[str, Any]], cuts: int = 0) -> dict[str, pa.ChunkedArray]:
    """Typed columns of records; `a.b` is a dictionary, in up to two chunks."""
    columns = {}
    for name, kind in TYPES.items():
        parts = [records[:cuts], records[cuts:]]
        arrays = [pa.array([one[name] for one in part], kind) for part in parts]
        if name == "a.b":
            arrays = [array.dictionary_encode() for array in arrays]
        columns[name] = pa.chunked_array(arrays)
    return columns


def nested(record: dict[str, Any]) -> dict[str, Any]:
    """The same record as JSON has it, without the field of a null at times."""
    found = {name: value for name, value in record.items() if name not in ("a.b", "empty")}
    return found | ({} if record["a.b"] is None else {"a": {"b": record["a.b"]}})


@given(conditions(), rows(), st.integers(0, 8))
@example("n == 9007199254740993", [dict.fromkeys(COLUMNS, None) | {"n": 2**53}], 0)
@example("x < 9007199254740993", [dict.fromkeys(COLUMNS, None) | {"x": float(2**53)}], 0)
@example("not n < 1", [dict.fromkeys(COLUMNS, None)], 0)
@example("n in [1, None]", [dict.fromkeys(COLUMNS, None)], 0)
@example("x in [0, 1, 2]", [dict.fromkeys(COLUMNS, None) | {"x": -0.0}], 0)
def test_columns_and_records_agree(text: str, records: list[dict[str, Any]], cuts: int) -> None:
    condition = parse_where(text)
    test = record_test(condition)
    mask = column_mask(condition, columns_of(records, cuts))
    assert mask.dtype == bool and mask.tolist() == [test(nested(one)) for one in records]


def numbers_near(bits: int, signed: bool) -> st.SearchStrategy[int]:
    """Integers of so many bits, most of them next to powers of two."""
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    near = st.builds(
        lambda sign, power, step: sign * 2**power + step,
        st.sampled_from([-1, 1]),
        st.integers(0, bits - 1),
        st.integers(-2, 2),
    )
    return (near | st.integers(least, most)).filter(lambda one: least <= one <= most)


LITERALS = st.one_of(
    numbers_near(70, True).flatmap(lambda one: st.sampled_from([str(one), f"{one}.0", repr(float(one))])),
    st.floats(-1e20, 1e20).map(repr),
    st.integers(10**17, 10**19).map(lambda one: f"{one / 10**18:.17f}e18"),
)
EXACT: dict[str, Callable[[Any, Any], bool]] = {
    **{"==": operator.eq, "!=": operator.ne},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
}


@given(st.data())
def test_integers_compare_exactly_with_numbers_of_any_spelling(data: st.DataObject) -> None:
    bits, signed = data.draw(st.sampled_from([(64, True), (64, False), (32, True), (8, False)]))
    values = data.draw(st.lists(numbers_near(bits, signed), min_size=1, max_size=6))
    literals = data.draw(st.lists(LITERALS, min_size=1, max_size=3))
    literals.append(repr(float(data.draw(st.sampled_from(values)))))
    column = pa.array(values, pa.type_for_alias(f"{'' if signed else 'u'}int{bits}"))
    numbers = [Fraction(float(one)) if re.search("[.e]", one) else Fraction(int(one)) for one in literals]

    def check(text: str, expected: list[bool]) -> None:
        condition = parse_where(text)
        assert column_mask(condition, {"n": column}).tolist() == expected, text
        assert [record_test(condition)({"n": one}) for one in values] == expected, text

    for literal, number in zip(literals, numbers, strict=True):
        for op, compare in EXACT.items():
            check(f"n {op} {literal}", [compare(Fraction(one), number) for one in values])
    check(f"n in [{', '.join(literals)}]", [one in numbers for one in values])


TIMES = [1_699_999_999_999_999_999, 17 * 10**17, 1_700_000_000_000_000_001, 18 * 10**17]


@pytest.mark.parametrize("op", ["!=", "<=", "in"])
def test_a_selection_of_a_store_is_what_a_build_with_the_same_condition_has(
    op: Any, tokenizer_json: Path, tmp_path: Path
) -> None:
    records = [{"text": "a" * place, "t": time} for place, time in enumerate(TIMES, 1)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    where = "t in [1.7e18, 0]" if op == "in" else f"t {op} 1.7e18"
    inputs = tmp_path / "in.jsonl"
    whole = build(tmp_path / "whole", inputs, tokenizer_json, columns=["t"])
    built = build(tmp_path / "built", inputs, tokenizer_json, columns=["t"], where=where)
    holds = EXACT["==" if op == "in" else op]
    expected = [one for one in TIMES if holds(one, 17 * 10**17)]
    assert [one.tolist() for one in built.documents] == [
        whole.documents[TIMES.index(one)].tolist() for one in expected
    ]
    selection = Selection(whole, DocumentFilter(where=where))
    assert selection.documents(np.arange(len(selection))).tolist() == [TIMES.index(one) for one in expected]


@given(conditions(), st.fixed_dictionaries({**COLUMNS, "empty": st.none()}))
def test_python_agrees_where_nothing_is_null(text: str, record: dict[str, Any]) -> None:
    condition = parse_where(text)
    mixed = any(word in text for word in ("True", "False"))
    if "empty" in text or mixed or ("flag" in text and any(char.isdigit() for char in text)):
        return  # Python holds True for 1, and None has no order
    assert record_test(condition)(nested(record)) is python_says(text, record)


@given(conditions())
def test_the_canonical_text_is_a_fixed_point_with_one_meaning(text: str) -> None:
    condition = parse_where(text)
    again = parse_where(str(condition))
    assert str(again) == str(condition) and repr(again) == repr(condition)
    assert fields_of(again) == fields_of(condition)


@pytest.mark.parametrize(
    ("texts", "canonical"),
    [
        (["a>=3", " ( a >= 3.0 ) ", "3 <= a", "a\n>= 3"], "a >= 3"),
        (["'x' in a", 'a . contains("x")'], "a.contains('x')"),
        (["not a in (1, 2)", "a not in [1,2]"], "a not in [1, 2]"),
        (["a == None", "a is None", "not a is not None"], "a is None"),
        (["1 < a <= 3", "a > 1 and 3 >= a"], "a > 1 and a <= 3"),
        (["(a and b) and c", "a and (b and c)"], "a and b and c"),
        (["not (not (a or b))"], "a or b"),
        (["field('a b.c') == 'd'"], "field('a b.c') == 'd'"),
        (["field('class') > 1"], "field('class') > 1"),
        (["field('plain')"], "plain"),
    ],
)
def test_texts_of_one_meaning_have_one_form(texts: list[str], canonical: str) -> None:
    assert {canonical_where(text) for text in texts} == {canonical}


REFUSED = [
    ("a = 3", 3, "=="),
    ("a > 3 && b", 7, "and"),
    ("a > 3 AND b", 7, "and"),
    ("a & b", 1, "did you mean and?"),
    ("a > b", 5, "one value"),
    ("a is 3", 6, "None after is"),
    ("é.startWith('a')", 3, "did you mean 'startswith'?"),
    ("lenn(a) > 3", 1, "did you mean 'len'?"),
    ("foo bar", 5, "a condition"),
    ("a +", 4, "found the end"),
    ("a + 1 > 2", 1, "a field, a value or a comparison"),
    ("a == true", 6, "True"),
    ("a) or (b", 2, "unmatched"),
    ("a in 'abc'", 6, "field in [values]"),
    ("None in a", 9, "value in field"),
    ("a in [b]", 7, "a value in the list"),
    ("__import__('os').system('x')", 18, "a method"),
    ("a.b['x'] == 1", 1, "a field"),
    ("lambda: 1", 1, "a field"),
    ("[x for x in a]", 1, "a field"),
    ("(a := 3)", 2, "a field"),
    ("f'{a}' == 'x'", 1, "a field"),
    ("a == b'x'", 6, "a string"),
    ("a > 1  # why", 8, "without comments"),
    ("a > 1e999", 5, "a finite number"),
    ("a > None", 5, "a number or a string"),
    ("a == [1]", 6, "one value"),
    ("len(a)", 1, "a condition"),
    ("'a' == 'a'", 1, "a field"),
    ("a.startswith(3)", 14, "one string"),
    ("a.startswith('b', 'c')", 1, "with one value"),
    ("len(a, b) > 1", 1, "a field in len"),
    ("field('a..b') > 1", 1, "a name"),
    ("\ufb01eld > 1", 1, "the name field"),
]


@pytest.mark.parametrize(("text", "column", "expected"), REFUSED, ids=[one[0] for one in REFUSED])
def test_all_else_is_refused_with_its_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(RecipeError, match=f"column {column} of ") as caught:
        parse_where(text)
    assert expected in caught.value.message + caught.value.hint
    assert "\n" not in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "  \n", "not " * 100_000 + "a", "(" * 500 + "a", "a == " + "1" * 9000, "x" * (2 << 20)]
)
def test_what_cannot_be_parsed_is_refused_in_short(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_where(text)
    assert len(caught.value.message) < 300


@given(st.text("ab01.'\"()[]<>=!,# \n\\notandrilens", max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        condition = parse_where(text)
    except RecipeError:
        return
    assert parse_where(str(condition)) == condition


def test_fields_and_terms() -> None:
    condition = parse_where("a.b > 1 and (c is None or c < 3) and not len(d) > 2 and e != None")
    assert fields_of(condition) == ("a.b", "c", "d", "e")
    assert expected_fields(condition) == ("a.b", "d", "e")
    assert [str(one) for one in conjunction(condition)] == [
        "a.b > 1",
        "c is None or c < 3",
        "not len(d) > 2",
        "e is not None",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n > 1", "2"),
        ("n > 'a'", 2),
        ("n > 1", True),
        ("n", 1),
        ("n.startswith('a')", 1),
        ("1 in n", "1"),
        ("len(n) > 1", 1),
        ("not n > 1", {}),
    ],
)
def test_what_cannot_be_compared_names_field_and_types(text: str, value: Any) -> None:
    with pytest.raises(Incomparable, match=r"field 'n' in .*: expected .*, found a"):
        record_test(parse_where(text))({"n": value})


def test_lists_of_records_contain_values() -> None:
    test = record_test(parse_where("1 in n and not n.contains('1') and len(n) == 3"))
    assert test({"n": [1.0, True, None]}) and not test({"n": [True, 2, 3]}) and not test({"n": [1, "1", 2]})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s > 3", "column s is string: expected numbers"),
        ("n < 'a'", "column n is int64: expected strings or timestamps"),
        ("n", "column n is int64: expected booleans"),
        ("x.startswith('a')", "column x is double: expected strings"),
        ("s.contains(3)", "column s is string: expected strings, and a string"),
        ("len(n) > 3", "column n is int64: expected strings, for len"),
        ("t > 'monday'", "expected a time, found 'monday'"),
        ("nn > 3", "the store has no column 'nn': found n, x"),
    ],
)
def test_a_column_of_another_type_is_refused_with_both(text: str, found: str) -> None:
    types = TYPES | {"t": pa.timestamp("us", tz="UTC"), "s": pa.dictionary(pa.int32(), pa.string())}
    with pytest.raises(RecipeError) as caught:
        check_columns(parse_where(text), types, "the store")
    assert found.replace("is string", "is ") in caught.value.message.replace("is string", "is ")


def test_a_string_is_a_time_for_timestamps() -> None:
    times = ["2026-11-22T00:00:00", "2026-11-22T10:00:00", None, "2026-11-23T00:00:00"]
    column = pa.array(times).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))

    def found(text: str) -> list[bool]:
        return [bool(one) for one in column_mask(parse_where(text), {"t": column})]

    assert found("t >= '2026-11-22T11:00:00+01:00'") == [False, True, False, True]
    assert found("t == '2026-11-22'") == [True, False, False, False]
    assert found("t in ['2026-11-23T00:00:00Z', 3]") == [False, False, False, True]
    assert found("t == 3 or t is None") == [False, False, True, False]
