"""Texts of records: made from the named fields alone, filtered, and within the limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.where.cases import conditions

from packline.errors import RecipeError
from packline.recipe import Recipe, Source, check_recipe
from packline.sources.batch import RecordProblem
from packline.sources.record_text import RecordText
from packline.where.conditions import Incomparable, parse_where, record_test

plain = st.none() | st.booleans() | st.integers(-2, 2) | st.text("abé", max_size=6)
values = plain | st.lists(plain, max_size=3) | st.dictionaries(st.just("b"), plain)


@pytest.mark.parametrize("where", ["a ==", "a < True", ""])
def test_a_condition_that_makes_no_sense_is_refused_with_its_source(where: str) -> None:
    source = Source(inputs=("x",), name="web", where=where)
    with pytest.raises(RecipeError, match="web: where"):
        check_recipe(Recipe(sources=(source,), tokenizer="t"))


def outcome(made: RecordText, record: dict[str, Any]) -> Any:
    try:
        return made.text(record)
    except RecordProblem as problem:
        return problem.reason, problem.detail


@given(
    st.dictionaries(st.sampled_from(["a", "n", "x", "s"]), values),
    conditions(),
    st.sampled_from([{"template": "{{ n }}{{ s }}"}, {}]),
)
def test_a_text_needs_the_named_fields_and_a_condition_decides_first(
    record: dict[str, Any], where: str, more: dict[str, Any]
) -> None:
    made = RecordText(Source(inputs=("x",), where=where, **more), "s", 8)
    found = outcome(made, record)
    assert made.fields is not None
    assert outcome(made, {name: record[name] for name in made.fields if name in record}) == found
    try:
        passes = record_test(parse_where(where))(record)
    except Incomparable as error:
        assert found == ("filter", str(error))
        return
    assert passes or found is None
    if isinstance(found, str):
        assert len(found.encode()) <= 8 and (more or found == record["s"])
    elif passes and found[0] == "too_large":
        assert more or len(record["s"].encode()) > 8


@given(st.text("aé日", max_size=8), st.integers(0, 20))
def test_the_limit_of_a_text_is_in_bytes(text: str, most: int) -> None:
    found = outcome(RecordText(Source(inputs=("x",)), "b.c", most), {"b": {"c": text}})
    size = len(text.encode())
    detail = f"its text has {size} bytes, more than {most}"
    assert found == (text if size <= most else ("too_large", detail))
