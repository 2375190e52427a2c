"""Names of units: plain parts of paths, and unique, whatever a source is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.store.manifest_check import PLAIN
from packline.store.naming import STREAM, UnitName, parse_unit, planned_name, slug_of, source_slugs

NAMES = st.text(min_size=1) | st.from_regex(r"[a-b.-]{1,3}(-\d{6})?(-\d{6})?(\.stream)?", fullmatch=True)


@given(st.lists(NAMES, unique=True), st.integers(0, 10**7), st.none() | st.integers(0, 10**7))
def test_a_unit_is_named_after_its_source_and_no_other(
    names: list[str], number: int, part: int | None
) -> None:
    slugs = source_slugs(names)
    assert slugs == [slug_of(name) for name in names]
    for slug in slugs:
        unit = UnitName(slug, number, part)
        assert parse_unit(str(unit)) == unit
        assert planned_name(str(unit)) == str(UnitName(slug, number))
        assert PLAIN.fullmatch(str(unit)) and len(str(unit)) < 120
        assert not str(unit).endswith(STREAM) and parse_unit(f"{unit}{STREAM}") is None


def test_plain_names_are_kept() -> None:
    for name in ("web", "Web_2.v1", "a-b", "a-12345", "_"):
        assert slug_of(name) == name
    for name in ("a b", "a/b", "", ".a", "-a", "a-123456", "ä", "a" * 81):
        assert slug_of(name) != name


def test_two_sources_of_one_slug_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"sources 'a b' and 'a_b\..*' would write files of the same name"):
        source_slugs(["a b", slug_of("a b")])
