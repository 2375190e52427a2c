"""Duplicated documents: exact, whatever the number of files and processes."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.viewing.token_stores import equal_groups

from packline.errors import OutOfSpace
from packline.viewing import duplicates
from packline.viewing.duplicates import Duplicates, HashFiles, find_duplicates


def found_in(
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
        found = found_in(Path(folder), bodies, splits, files, blocks, most)
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

    monkeypatch.setattr(duplicates, "open", full, raising=False)
    with pytest.raises(OutOfSpace, match="no room for the hashes"):
        writer.flush()
