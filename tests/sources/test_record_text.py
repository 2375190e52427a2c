"""Texts of records: filters are a slow reading of their rules, and no other field is needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.recipe import Recipe, Source, Where, check_recipe
from packline.sources.batch import RecordProblem
from packline.sources.record_text import RecordText, make_filter

plain = st.one_of(
    st.booleans(), st.integers(-2, 2), st.sampled_from([-1.0, 0.5, 1.0]), st.text("ab", max_size=2)
)
values = st.one_of(plain, st.none(), st.lists(plain, max_size=3), st.dictionaries(st.just("b"), plain))
names = st.sampled_from(["a", "b", "a.b"])
wheres = st.one_of(
    st.builds(Where, field=names, op=st.sampled_from(["==", "!=", "contains"]), value=plain),
    st.builds(
        Where, field=names, op=st.sampled_from(["in", "not in"]), value=st.lists(plain, max_size=3).map(tuple)
    ),
    st.builds(Where, field=names, op=st.sampled_from(["exists", "missing"])),
    st.builds(
        Where,
        field=names,
        op=st.sampled_from(["<", "<=", ">", ">="]),
        value=st.one_of(st.integers(-2, 2), st.text("ab", max_size=2)),
    ),
    st.builds(
        Where, field=names, op=st.sampled_from(["starts with", "ends with"]), value=st.text("ab", max_size=2)
    ),
)


class Incomparable(Exception):
    """No order between the two."""


def kind(value: Any) -> str:
    return {bool: "truth", int: "number", float: "number"}.get(type(value), type(value).__name__)


def equal(one: Any, other: Any) -> bool:
    return kind(one) == kind(other) and one == other


def passes_slowly(record: dict[str, Any], where: Where) -> bool:
    """The rules of docs/recipe.md, one after another."""
    value: Any = record
    for name in where.field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    op, wanted = where.op, where.value
    if value is None:
        return op in ("missing", "!=", "not in")
    if op == "missing":
        return False
    if op == "exists":
        return True
    if op == "==":
        return equal(value, wanted)
    if op == "!=":
        return not equal(value, wanted)
    if op in ("in", "not in"):
        assert isinstance(wanted, tuple)
        found = False
        for one in wanted:
            found = found or equal(value, one)
        return found == (op == "in")
    if op == "contains":
        if isinstance(value, list):
            return any(equal(one, wanted) for one in value)
        if isinstance(value, str) and isinstance(wanted, str):
            return value.find(wanted) >= 0
        raise Incomparable
    if op in ("starts with", "ends with"):
        if not isinstance(value, str):
            raise Incomparable
        size = len(str(wanted))
        return (
            value[:size] if op == "starts with" else value[len(value) - size :]
        ) == wanted and size <= len(value)
    if kind(value) != kind(wanted) or kind(value) not in ("number", "str"):
        raise Incomparable
    below, same = value < wanted, value == wanted
    return {"<": below, "<=": below or same, ">": not below and not same, ">=": not below}[op]


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), values),
    st.lists(wheres, min_size=1, max_size=3),
)
def test_filters_are_the_slow_reading_of_their_rules(record: dict[str, Any], chosen: list[Where]) -> None:
    expected: Any = True
    for where in chosen:
        try:
            if not passes_slowly(record, where):
                expected = False
                break
        except Incomparable:
            expected = "bad"
            break
    try:
        found: Any = make_filter(chosen)(record)
    except RecordProblem as problem:
        assert problem.reason == "filter" and where.field in problem.detail
        found = "bad"
    assert found == expected


@pytest.mark.parametrize(
    "where",
    [
        {"field": "a", "op": "=="},
        {"field": "a", "op": "exists", "value": 1},
        {"field": "a", "op": "in", "value": "abc"},
        {"field": "a", "op": "==", "value": ("a",)},
        {"field": "a", "op": "<", "value": True},
        {"field": "a", "op": "starts with", "value": 1},
        {"field": "", "op": "exists"},
        {"field": "a..b", "op": "exists"},
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(where: dict[str, Any]) -> None:
    source = Source(inputs=("x",), name="web", where=(Where(**where),))
    with pytest.raises(RecipeError, match=r"web: where\[0\]"):
        check_recipe(Recipe(sources=(source,), tokenizer="t"))


def outcome(made: RecordText, record: dict[str, Any]) -> Any:
    try:
        return made.text(record)
    except RecordProblem as problem:
        return problem.reason, problem.detail


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), values | st.text("é", max_size=6)),
    st.lists(wheres, max_size=2),
    st.sampled_from([{"template": "{{ c }}{{ a }}"}, {}]),
)
def test_a_text_needs_the_named_fields_alone(
    record: dict[str, Any], chosen: list[Where], more: dict[str, Any]
) -> None:
    made = RecordText(Source(inputs=("x",), where=tuple(chosen), **more), "b", 8)
    found = outcome(made, record)
    assert made.fields is not None
    assert outcome(made, {name: record[name] for name in made.fields if name in record}) == found
    if isinstance(found, str):
        assert len(found.encode()) <= 8 and make_filter(chosen)(record)
        assert more or found == record["b"]
    elif found is not None and found[0] == "too_large":
        assert more or len(str(record["b"]).encode()) > 8


@given(st.text("aé日", max_size=8), st.integers(0, 20))
def test_the_limit_of_a_text_is_in_bytes(text: str, most: int) -> None:
    found = outcome(RecordText(Source(inputs=("x",)), "b.c", most), {"b": {"c": text}})
    size = len(text.encode())
    detail = f"its text has {size} bytes, more than {most}"
    assert found == (text if size <= most else ("too_large", detail))
