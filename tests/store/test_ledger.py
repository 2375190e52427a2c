"""The ledger, whose counts add up and balance, and the names of sources and units."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.recipe import Recipe, Source
from packline.store.ledger import Ledger, MaskCounts, losses, source_names, totals_by_source
from packline.store.manifest_check import PLAIN
from packline.store.naming import STREAM, UnitName, parse_unit, planned_name, slug_of, source_slugs

COUNT = st.integers(0, 1000)
COUNTS = st.builds(MaskCounts, trained_tokens=COUNT, truncated=COUNT, truncated_tokens=COUNT)
REJECTED = st.dictionaries(st.sampled_from(["too_large", "invalid_utf8", "malformed_json"]), COUNT)
NUMBERS = [name for name in Ledger.__struct_fields__ if name not in ("rejected", "lost_ids", "mask")]
RARE = ("filtered", "lost_ids")
LEDGERS = st.builds(
    Ledger,
    rejected=REJECTED,
    mask=COUNTS | st.just(msgspec.UNSET),
    **dict.fromkeys(NUMBERS, COUNT) | dict.fromkeys(RARE, COUNT | st.just(msgspec.UNSET)),
)


def total(ledgers: Iterable[Ledger]) -> Ledger:
    return sum(ledgers, Ledger())


@given(st.lists(LEDGERS, max_size=5))
def test_a_sum_of_ledgers_is_the_sum_of_every_count(ledgers: list[Ledger]) -> None:
    """A count that no part has is absent from the sum and from its JSON."""
    found = total(ledgers)
    for name in set(NUMBERS) - {*RARE}:
        assert getattr(found, name) == sum(getattr(ledger, name) for ledger in ledgers)
    assert found.bad == sum(ledger.bad for ledger in ledgers)
    assert list(found.rejected) == sorted(found.rejected)
    masks = [ledger.mask for ledger in ledgers if ledger.mask]
    for name in MaskCounts.__struct_fields__ if found.mask else ():
        assert getattr(found.mask, name) == sum(getattr(mask, name) for mask in masks)
    for name in RARE:
        there = [count for ledger in ledgers if (count := getattr(ledger, name)) is not msgspec.UNSET]
        assert getattr(found, name) == (sum(there) if there else msgspec.UNSET)
    absent = {name for name in (*RARE, "mask") if getattr(found, name) is msgspec.UNSET}
    assert not absent & msgspec.json.decode(msgspec.json.encode(found)).keys()
    assert ("mask" in absent) == (not masks)


@given(st.lists(st.tuples(st.sampled_from("abc"), LEDGERS), max_size=6))
def test_the_ledgers_of_sources_add_up_to_that_of_the_store(ledgers: list[tuple[str, Ledger]]) -> None:
    before = msgspec.json.encode([ledger for _, ledger in ledgers])
    found = totals_by_source(["a", "b", "c"], ledgers)
    assert total(found.values()) == total(ledger for _, ledger in ledgers)
    assert ledgers == [] or (ledgers[0][1] + ledgers[-1][1]) == total([ledgers[0][1], ledgers[-1][1]])
    assert found["b"] == total(ledger for source, ledger in ledgers if source == "b")
    assert msgspec.json.encode([ledger for _, ledger in ledgers]) == before, "a sum changes none of its parts"


@given(LEDGERS)
def test_a_ledger_that_is_made_to_balance_balances(ledger: Ledger) -> None:
    ledger.mask, ledger.filtered = msgspec.UNSET, ledger.filtered or 0
    left_out = ledger.empty + ledger.too_short + ledger.too_long + ledger.filtered
    ledger.documents_in = ledger.documents + left_out + ledger.bad
    ledger.eod_tokens = ledger.documents
    ledger.tokens = ledger.text_tokens + ledger.eod_tokens + ledger.bos_tokens
    assert ledger.imbalance() == []
    assert sum(count for _, count in losses(ledger)) == ledger.documents_in - ledger.documents
    counted = [name for name in NUMBERS if name not in ("text_bytes", "special_token_strings")]
    for name in counted:
        changed = msgspec.structs.replace(ledger, **{name: getattr(ledger, name) + 1})
        assert changed.imbalance(), name


def test_more_than_there_is_does_not_balance() -> None:
    ledger = Ledger(documents_in=1, documents=1, tokens=3, text_tokens=2, eod_tokens=1)
    ledger.mask = MaskCounts(trained_tokens=3, truncated=1, truncated_tokens=1)
    assert ledger.imbalance() == []
    for name in ("trained_tokens", "truncated"):
        more = msgspec.structs.replace(ledger.mask, **{name: getattr(ledger.mask, name) + 1})
        assert len(msgspec.structs.replace(ledger, mask=more).imbalance()) == 1, name


# ------------------------------------------------------------------------- names of sources

word = st.text("abcxyz_-0123456789", min_size=1, max_size=6)
words = st.lists(word, min_size=1, max_size=4)


def name_of(*inputs: str) -> str:
    (name,) = source_names(Recipe(sources=(Source(inputs=inputs),), tokenizer="t"))
    return name


@given(words, st.lists(word, min_size=2, max_size=5, unique=True), st.sampled_from(["", "/", "s3://", "./"]))
def test_files_that_a_shell_put_for_a_glob_are_called_as_the_glob_is(
    folders: list[str], files: list[str], start: str
) -> None:
    folder = start + "/".join(folders)
    listed = [f"{folder}/{file}.jsonl" for file in files]
    assert name_of(*listed) == name_of(f"{folder}/*.jsonl") == name_of(folder) == folders[-1]
    assert name_of(*listed) == name_of(*listed[::-1]), "whichever is named first"
    assert name_of(f"{folder}.v2.jsonl.gz") == name_of(f"{folder}.txt", f"{folder}.txt") == folders[-1]
    assert name_of(*(f"/{file}.jsonl" for file in files)) == "source"


@given(words, words, words)
def test_files_of_several_folders_are_called_after_the_one_that_holds_them(
    above: list[str], one: list[str], other: list[str]
) -> None:
    top = "/".join(above)
    assert name_of(f"{top}/1/{'/'.join(one)}.txt", f"{top}/2/{'/'.join(other)}.txt") == above[-1]


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
