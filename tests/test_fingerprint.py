"""Hashes: equal for equal values and no others; sealed metadata is read as it was written or refused."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packline.fingerprint import (
    NotWhole,
    hash_bytes,
    hash_texts,
    hash_value,
    json_form,
    seal,
    split_of,
    splits_of,
    unseal,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


class Facts(msgspec.Struct):
    """Metadata of a test."""

    name: str
    counts: list[int]
    checksum: str = ""


FACTS = st.builds(
    Facts,
    name=st.text(st.characters(codec="utf-8"), max_size=8),
    counts=st.lists(st.integers(0, 99), max_size=5),
    checksum=st.just(""),
)


def reversed_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(one) for one in value] if isinstance(value, list) else value


@given(VALUES, VALUES)
def test_values_have_one_hash_if_and_only_if_they_are_equal(one: object, other: object) -> None:
    assert hash_value(one) == hash_value(reversed_keys(one))
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (hash_value(one) == hash_value(other)) == same


@given(FACTS, st.text(st.characters(codec="utf-8"), max_size=8))
def test_what_is_sealed_is_read_again_whatever_checksum_it_had(facts: Facts, old: str) -> None:
    data = seal(facts)
    found = unseal(data, Facts)
    assert (found.name, found.counts) == (facts.name, facts.counts)
    assert found.checksum == hash_bytes(json_form(facts)), "of the form with an empty checksum"
    assert seal(msgspec.structs.replace(facts, checksum=old)) == seal(found) == data


@given(FACTS, st.data())
def test_any_other_spelling_of_the_same_values_is_refused(facts: Facts, data: st.DataObject) -> None:
    sealed = seal(facts)
    whole = json.loads(sealed)
    spellings = [
        json.dumps(whole).encode(),
        json.dumps(dict(reversed(whole.items())), indent=1).encode() + b"\n",
        sealed.replace(b'"checksum": ', b'"checksum":\t'),
        sealed.replace(b'"name": "', b'"name": "\xff'),
        sealed[:-1],
        sealed + b"\n",
        sealed.replace(b'"checksum"', b'"unheard": 1,\n "checksum"'),
        sealed.replace(whole["checksum"].encode(), data.draw(st.text(max_size=40)).encode(errors="replace")),
        data.draw(st.binary(max_size=40)),
    ]
    for spelling in spellings:
        with pytest.raises(NotWhole):
            unseal(spelling, Facts)


FRACTION = st.floats(0, 0.5)


@given(st.lists(st.binary(max_size=40), max_size=9), st.integers(0, 2**63 - 1), FRACTION, FRACTION)
def test_hashes_and_splits_of_many_texts_are_those_of_each(
    texts: list[bytes], seed: int, val: float, test: float
) -> None:
    offsets = np.cumsum([0, *map(len, texts)])
    hashes = hash_texts(b"".join(texts), offsets, seed)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [xxhash.xxh3_64_intdigest(text, seed) for text in texts]
    expected = []
    for one in hashes.tolist():
        share = one / 2**64
        expected.append("val" if share < val else "test" if share < val + test else "train")
    assert splits_of(hashes, val, test).tolist() == expected
    assert [split_of(text, seed, val, test) for text in texts] == expected
