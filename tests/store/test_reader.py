"""The reader: every way to ask for a document, from threads and from other processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import packline
from packline.errors import CorruptStore, StoreNotFound
from packline.facade import Store


@pytest.fixture(scope="module")
def right(built: Store) -> list[np.ndarray]:
    """All documents, cut out of the files by hand."""
    documents: list[np.ndarray] = []
    for shard in built.manifest.shards:
        tokens = np.fromfile(built.path / f"{shard.name}.bin", "<u2")
        ends = np.flatnonzero(tokens == built.eod_id) + 1
        documents += np.split(tokens, ends)[:-1]
    return documents


def test_any_integer_finds_its_document(built: Store, right: list[np.ndarray]) -> None:
    count = len(right)
    for index in (0, 1, count - 1, -1, -count, np.int64(3), np.uint8(4), np.int32(-2)):
        assert np.array_equal(built.documents[index], right[index])
        assert built.provenance(index).tokens == len(right[index])


def test_slices(built: Store, right: list[np.ndarray]) -> None:
    for cut in (slice(2, 9), slice(None), slice(-5, None), slice(9, 2, -3), slice(3, 3)):
        found = built.documents[cut]
        assert [one.tolist() for one in found] == [one.tolist() for one in right[cut]]
        assert len(found) == len(right[cut])
    assert np.array_equal(built.documents[5:][2:][-1], right[-1])


def test_other_numbers_and_types_are_refused(built: Store) -> None:
    for number in (10**6, -(10**6)):
        with pytest.raises(IndexError):
            built.documents[number]
        with pytest.raises(IndexError):
            built.provenance(number)
    with pytest.raises(IndexError):
        built.documents[2:5][3]
    for index in (1.0, "1", None):
        with pytest.raises(TypeError):
            built.documents[index]  # type: ignore[call-overload]


def test_a_document_cannot_be_written_to(built: Store) -> None:
    document = built.documents[0]
    assert type(document) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        document[0] = 1


def test_opening_refuses_what_disagrees(damaged: Path) -> None:
    shard = packline.open(damaged).manifest.shards[0].name
    data = (damaged / f"{shard}.bin").read_bytes()
    (damaged / f"{shard}.bin").write_bytes(data[:-2])
    with pytest.raises(CorruptStore, match=rf"{shard}\.bin: expected .* found"):
        packline.open(damaged)
    (damaged / f"{shard}.bin").unlink()
    with pytest.raises(CorruptStore, match="cannot read"):
        packline.open(damaged)


def test_opening_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="does not exist"):
        packline.open(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFound, match="not a store"):
        packline.open(tmp_path)
    (tmp_path / ".packline").mkdir()
    with pytest.raises(StoreNotFound, match="has not finished") as caught:
        packline.open(tmp_path)
    assert "packline status" in caught.value.hint
