"""Documents that look wrong: what is reported is right, and nothing plain is missed; exact duplicates."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.viewing.token_stores import equal_groups, what_is_wrong

from packline.errors import OutOfSpace
from packline.viewing import suspicious
from packline.viewing.suspicious import (
    LONGEST,
    Duplicates,
    HashFiles,
    find_duplicates,
    judge_document,
    screen,
)

SPECIAL = np.zeros(1000, bool)
SPECIAL[[0, 7]] = True
short_body = st.lists(st.integers(0, 9), max_size=40) | st.lists(st.integers(0, 4), min_size=30, max_size=67)
short_bodies = st.lists(short_body, min_size=1, max_size=8)
DTYPES = pytest.mark.parametrize("dtype", [np.uint16, np.uint32])


def found_in(bodies: Sequence[Sequence[int]], dtype: type) -> list[dict[str, float]]:
    """What screening and counting say of each document of a block; all end with id 0."""
    tokens: np.ndarray = np.array([token for body in bodies for token in (*body, 0)], dtype)
    ends = np.cumsum([len(body) + 1 for body in bodies], dtype=np.int64) - 1
    starts = ends - [len(body) for body in bodies]
    asked = screen(tokens, starts, ends, SPECIAL)
    return [
        judge_document(tokens[starts[place] : ends[place]], SPECIAL, asked[place]) if place in asked else {}
        for place in range(len(bodies))
    ]


@DTYPES
@given(bodies=short_bodies)
def test_short_documents_are_judged_as_by_hand(bodies: list[list[int]], dtype: type) -> None:
    assert found_in(bodies, dtype) == [what_is_wrong(body, (0, 7)) for body in bodies]


@DTYPES
@given(st.integers(0, 2**32), st.integers(200, 9000), st.floats(0, 1), st.integers(1, 6), st.integers(0, 300))
def test_long_documents_that_are_plainly_wrong_are_found(
    dtype: type, seed: int, length: int, share: float, period: int, run: int
) -> None:
    """Noise, of which a share is a repeated piece, with a run somewhere."""
    draw = np.random.default_rng(seed)
    body = draw.integers(1, 1000, length)
    repeated = int(share * length)
    at = int(draw.integers(0, length - repeated + 1))
    body[at : at + repeated] = np.resize(draw.integers(8, 1000, period), repeated)
    where = int(draw.integers(0, length))
    body[where : where + run] = 5
    right = what_is_wrong(body.tolist(), (0, 7))
    (found,) = found_in([body.tolist()], dtype)
    assert all(right[reason] == value for reason, value in found.items())
    surely = {
        reason
        for reason, value in right.items()
        if value >= {"repetition": 0.45, "one token": 0.6, "long run": 100, "no text": 1}[reason]
    }
    assert surely <= set(found)


@DTYPES
@pytest.mark.parametrize("length", [99, 100, 101, 115])
def test_a_run_is_found_wherever_it_begins(length: int, dtype: type) -> None:
    for place in range(40):
        body = [*range(10, 10 + place), *[3] * length, *range(500, 700)]
        (found,) = found_in([body], dtype)
        assert found.get("long run") == (float(length) if length >= 100 else None)


def test_a_document_does_not_lend_its_tokens_to_its_neighbour() -> None:
    halves = [[*range(1, 200), *[0] * 60], [*[0] * 60, *range(1, 200)]]
    assert found_in(halves, np.uint16) == [{}, {}]
    assert "no text" in found_in([[], [1, 2], [0, 7, 0]], np.uint16)[2]


@pytest.mark.parametrize("length", [255, 1024, 1027, 1028, 5000])
def test_counting_is_exact_at_the_limits(length: int) -> None:
    count = length - 3
    for same in (int(np.ceil(0.3 * count)), int(np.ceil(0.3 * count)) - 1):
        body = [*[5] * (same + 3), *(8 + place % 990 for place in range(length - same - 3))]
        assert ("repetition" in judge_document(np.array(body, np.uint16), SPECIAL)) == (same / count >= 0.3)
        assert judge_document(np.array(body, np.uint32), SPECIAL) == what_is_wrong(body, (0, 7))


def test_only_the_first_part_of_an_enormous_document_is_looked_at() -> None:
    body = np.arange(LONGEST + 10_000, dtype=np.uint32) % 900 + 8
    body[LONGEST:] = 5
    assert judge_document(body, SPECIAL) == {}
    body[LONGEST - 100 :] = 5
    assert judge_document(body, SPECIAL) == {"long run": 100.0}


def groups_in(
    folder: Path, bodies: list[list[int]], splits: list[int], files: int, blocks: int, most: int
) -> Duplicates:
    """Hashed in blocks by two writers that take turns."""
    writers = [HashFiles(folder, files, number) for number in range(2)]
    for number, start in enumerate(range(0, len(bodies), blocks)):
        part = bodies[start : start + blocks]
        tokens = np.array([token for body in part for token in (1, *body, 0)], np.uint16)
        ends = np.cumsum([len(body) + 2 for body in part], dtype=np.int64)
        starts = ends - [len(body) + 2 for body in part]
        writers[number % 2].add(start, tokens, starts + 1, ends - 1)
    for writer in writers:
        writer.flush()
    lengths = np.array([len(body) + 2 for body in bodies], np.int64)
    return find_duplicates(folder, files, lambda one: lengths[one], lambda one: np.array(splits)[one], most)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=3), st.integers(0, 1)), max_size=40),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 7),
    st.sampled_from([1, 2, 20]),
)
def test_groups_are_those_of_a_dictionary(
    drawn: list[tuple[list[int], int]], files: int, blocks: int, most: int
) -> None:
    bodies, splits = [body for body, _ in drawn], [split for _, split in drawn]
    right = equal_groups(bodies)
    with tempfile.TemporaryDirectory() as folder:
        found = groups_in(Path(folder), bodies, splits, files, blocks, most)
    assert found.groups == len(right)
    assert found.documents == sum(len(group) - 1 for group in right)
    assert found.tokens == sum((len(group) - 1) * (len(bodies[group[0]]) + 2) for group in right)
    assert found.across_splits == sum(len({splits[one] for one in group}) > 1 for group in right)
    right.sort(key=lambda group: (-(len(group) - 1) * (len(bodies[group[0]]) + 2), group))
    assert [(one.copies, one.documents) for one in found.largest] == [
        (len(group), group[:4]) for group in right[:most]
    ]
    assert all(one.tokens == len(bodies[one.documents[0]]) + 2 for one in found.largest)


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = HashFiles(tmp_path, 1, 0)
    writer.add(0, np.array([5, 0], np.uint16), np.array([0]), np.array([1]))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(suspicious, "open", full, raising=False)
    with pytest.raises(OutOfSpace, match="no room for the hashes"):
        writer.flush()
