"""Tallies: the same counts however documents are divided, and limits between classes of rates."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.errors import CorruptStore
from packline.ragged import offsets_of
from packline.viewing import tally
from packline.viewing.suspicious import HashFiles
from packline.viewing.tally import CLASSES, TokenTally, add_up, edge_of, measure_rates, rate_class

V, EOD = 50, 0
BODY = st.lists(st.integers(0, 6), max_size=8) | st.lists(st.integers(1, 5), min_size=30, max_size=60)
DOCUMENTS = st.lists(st.tuples(BODY, st.integers(1, 400)), min_size=1, max_size=8)


def count(documents: list[tuple[list[int], int]], cuts: list[int]) -> list[TokenTally]:
    found = []
    for start, stop in itertools.pairwise(cuts):
        with tempfile.TemporaryDirectory() as folder:
            counter = tally.Counter(V, [EOD], 0, HashFiles(Path(folder), 1, 0))
            for number in range(start, stop):
                body, size = documents[number]
                tokens, offsets = np.array([*body, EOD], np.uint16), np.array([0, len(body) + 1])
                counter.add(number, tokens, offsets, np.array([size]), number % 2, "here")
            found.append(counter.finish())
    return found


@settings(max_examples=40)
@given(DOCUMENTS, st.data())
def test_tallies_of_any_ranges_in_any_order_add_up_to_one(
    documents: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    cuts = sorted({0, len(documents), *data.draw(st.lists(st.integers(0, len(documents)), max_size=3))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "KEPT", 2)
        (whole,) = count(documents, [0, len(documents)])
        parts = data.draw(st.permutations(count(documents, cuts)))
        assert add_up(parts, V) == add_up([whole], V)
    rates = sorted((size / len(body), n) for n, (body, size) in enumerate(documents) if len(body) >= 32)
    assert [(one.value, one.document) for one in whole.suspects["few"]] == rates[:2]
    most = sorted((-rate, number) for rate, number in rates)
    assert [(-one.value, one.document) for one in whole.suspects["many"]] == most[:2]
    tokens = [token for body, _ in documents for token in (*body, EOD)]
    assert whole.used().tolist() == np.bincount(tokens, minlength=V).tolist()
    assert sum(whole.text_bytes.values()) == sum(size for _, size in documents)


@given(st.floats(2.0**-6, 2.0**14, exclude_max=True))
def test_a_rate_is_between_the_edges_of_its_class(rate: float) -> None:
    number = int(rate_class(np.array([rate]))[0])
    assert edge_of(number) * (1 - 1e-9) <= rate < edge_of(number + 1) * (1 + 1e-9)
    assert edge_of(number + 32) == pytest.approx(2 * edge_of(number)), "an octave is 32 classes"


@given(st.floats(2.0**14, allow_infinity=False), st.floats(0, 2.0**-6))
def test_rates_beyond_the_classes_are_in_the_outermost(large: float, small: float) -> None:
    assert rate_class(np.array([large, small])).tolist() == [CLASSES - 1, 0]


@given(st.lists(st.integers(100, 400) | st.integers(240, 260), min_size=1, max_size=60))
def test_limits_are_an_octave_or_more_from_the_median_and_counts_are_exact(classes: list[int]) -> None:
    found = measure_rates(np.bincount(classes, minlength=CLASSES))
    ordered = sorted(classes)
    first, middle, last = (ordered[int(share * len(ordered))] for share in (0.25, 0.5, 0.75))
    beyond = 1.5 * (last - first)
    low, high = round(32 * (math.log2(found.low) + 6)), round(32 * (math.log2(found.high) + 6))
    assert abs(low - max(min(first - beyond, middle - 32), 0)) <= 0.5
    assert abs(high - min(max(last + 1 + beyond, middle + 33), CLASSES)) <= 0.5
    assert found.few == sum(one < low for one in classes)
    assert found.many == sum(one >= high for one in classes)
    assert edge_of(middle) < found.median < edge_of(middle + 1)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.data())
def test_an_id_outside_the_vocabulary_is_named_with_its_document(ids: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)), max_size=3)) | {len(ids)})
    lengths = np.diff([0, *cuts])
    wrong = next((place for place, one in enumerate(ids) if one >= V), None)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "BLOCK_TOKENS", data.draw(st.integers(1, 9)))
        counter = tally.Counter(V, [], 0, HashFiles(Path(folder), 1, 0))
        arguments = (7, np.array(ids, np.int32), offsets_of(lengths), lengths, 0, "here")
        if wrong is None:
            counter.add(*arguments)
            return
        document = sum(cut <= wrong for cut in cuts)
        place = f"here: document {7 + document}, token {wrong - [0, *cuts][document]}: "
        with pytest.raises(CorruptStore, match=f"{place}expected an id below 50, found {ids[wrong]}"):
            counter.add(*arguments)
