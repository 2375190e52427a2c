"""Texts of records: filters are a slow reading of their rules, and no other field is needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.recipe import Recipe, Source, check_recipe
from packline.sources.batch import RecordProblem
from packline.sources.record_text import RecordText
from packline.where.conditions import Condition, Not, Term, record_test
from packline.where.grammar import parse_where

plain = st.one_of(
    st.booleans(), st.integers(-2, 2), st.sampled_from([-1.0, 0.5, 1.0]), st.text("ab", max_size=2)
)
values = st.one_of(plain, st.none(), st.lists(plain, max_size=3), st.dictionaries(st.just("b"), plain))
names = st.sampled_from(["a", "b", "a.b"])
wheres = st.one_of(
    st.tuples(names, st.sampled_from(["==", "!="]), plain).map(lambda one: f"{one[0]} {one[1]} {one[2]!r}"),
    st.tuples(names, plain).map(lambda one: f"{one[0]}.contains({one[1]!r})"),
    st.tuples(names, st.sampled_from(["in", "not in"]), st.lists(plain, max_size=3)).map(
        lambda one: f"{one[0]} {one[1]} {one[2]!r}"
    ),
    st.tuples(names, st.sampled_from(["is not None", "is None"])).map(" ".join),
    st.tuples(
        names,
        st.sampled_from(["<", "<=", ">", ">="]),
        st.one_of(st.integers(-2, 2), st.text("ab", max_size=2)),
    ).map(lambda one: f"{one[0]} {one[1]} {one[2]!r}"),
    st.tuples(names, st.sampled_from(["startswith", "endswith"]), st.text("ab", max_size=2)).map(
        lambda one: f"{one[0]}.{one[1]}({one[2]!r})"
    ),
)


class Incomparable(Exception):
    """No order between the two."""


def kind(value: Any) -> str:
    return {bool: "truth", int: "number", float: "number"}.get(type(value), type(value).__name__)


def equal(one: Any, other: Any) -> bool:
    return kind(one) == kind(other) and one == other


def passes_slowly(record: dict[str, Any], term: Condition) -> bool:
    """The rules of docs/recipe.md, one after another."""
    if isinstance(term, Not):
        return not passes_slowly(record, term.term)
    assert isinstance(term, Term)
    value: Any = record
    for name in term.left.name.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    wanted: Any = term.value
    if term.op in ("in", "not in"):
        found = False
        for one in wanted:
            found = found or equal(value, one)
        return found == (term.op == "in")
    if term.op in ("==", "!="):
        return equal(value, wanted) == (term.op == "==")
    if value is None:
        return False
    if term.op == "contains":
        if isinstance(value, list):
            return any(equal(one, wanted) for one in value)
        if isinstance(value, str) and isinstance(wanted, str):
            return value.find(wanted) >= 0
        raise Incomparable
    if term.op in ("startswith", "endswith"):
        if not isinstance(value, str):
            raise Incomparable
        size = len(str(wanted))
        starts = term.op == "startswith"
        return (value[:size] if starts else value[len(value) - size :]) == wanted and size <= len(value)
    if kind(value) != kind(wanted) or kind(value) not in ("number", "str"):
        raise Incomparable
    below, same = value < wanted, value == wanted
    return {"<": below, "<=": below or same, ">": not below and not same, ">=": not below}[term.op]


@given(
    st.dictionaries(st.sampled_from(["a", "c"]), values).map(lambda record: record | {"b": "b"}),
    st.lists(wheres, min_size=1, max_size=3),
)
def test_filters_are_the_slow_reading_of_their_rules(record: dict[str, Any], chosen: list[str]) -> None:
    expected: Any = True
    for where in chosen:
        try:
            if not passes_slowly(record, parse_where(where)):
                expected = False
                break
        except Incomparable:
            expected = "bad"
            break
    source = Source(inputs=("x",), where=" and ".join(f"({one})" for one in chosen))
    try:
        found: Any = RecordText(source, "b", 8).text(record) is not None
    except RecordProblem as problem:
        assert problem.reason == "filter" and parse_where(where).left.name in problem.detail  # type: ignore[union-attr]
        found = "bad"
    assert found == expected


@pytest.mark.parametrize(
    "where", ["a ==", "a exists", "a in 'abc'", "a == ['a']", "a < True", "a..b > 1", ""]
)
def test_a_condition_that_makes_no_sense_is_refused(where: str) -> None:
    source = Source(inputs=("x",), name="web", where=where)
    with pytest.raises(RecipeError, match="web: where"):
        check_recipe(Recipe(sources=(source,), tokenizer="t"))


def test_equal_conditions_are_equal_recipes() -> None:
    recipes = [
        check_recipe(Recipe(sources=(Source(inputs=("x",), where=where),), tokenizer="t"))
        for where in ("a >= 3 and b in ['x']", "3.0<=a and (b in ('x',))")
    ]
    assert recipes[0] == recipes[1]


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
    record: dict[str, Any], chosen: list[str], more: dict[str, Any]
) -> None:
    where: dict[str, Any] = {"where": " and ".join(chosen)} if chosen else {}
    made = RecordText(Source(inputs=("x",), **where, **more), "b", 8)
    found = outcome(made, record)
    assert made.fields is not None
    assert outcome(made, {name: record[name] for name in made.fields if name in record}) == found
    if isinstance(found, str):
        assert len(found.encode()) <= 8 and all(record_test(parse_where(one))(record) for one in chosen)
        assert more or found == record["b"]
    elif found is not None and found[0] == "too_large":
        assert more or len(str(record["b"]).encode()) > 8


@given(st.text("aé日", max_size=8), st.integers(0, 20))
def test_the_limit_of_a_text_is_in_bytes(text: str, most: int) -> None:
    found = outcome(RecordText(Source(inputs=("x",)), "b.c", most), {"b": {"c": text}})
    size = len(text.encode())
    detail = f"its text has {size} bytes, more than {most}"
    assert found == (text if size <= most else ("too_large", detail))
