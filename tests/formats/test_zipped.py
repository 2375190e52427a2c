"""Archives of stored members: what the standard library finds in them."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest

from packline.formats.shared import zipped
from packline.formats.shared.zipped import StoredZip, stored_bytes


def make(members: dict[str, bytes], *, large: bool = False) -> bytes:
    file = io.BytesIO()
    archive = StoredZip(file, large=large)
    for name, data in members.items():
        archive.add(name, [data[:3], data[3:]])
    archive.close()
    return file.getvalue()


MEMBERS = {"a.txt": b"hello", "b/c.bin": bytes(range(256)) * 5, "empty": b""}


@pytest.mark.parametrize("large", [False, True])
def test_the_standard_library_reads_it(large: bool) -> None:
    data = make(MEMBERS, large=large)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == MEMBERS
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    assert len(data) == stored_bytes([(name, len(text)) for name, text in MEMBERS.items()], large=large)
    assert data == make(MEMBERS, large=large)


def test_numpy_makes_the_same_bytes() -> None:
    arrays: dict[str, Any] = {
        "first": np.arange(12, dtype=np.int32).reshape(3, 4),
        "second": np.ones(2, np.uint16),
    }
    theirs, ours = io.BytesIO(), io.BytesIO()
    np.savez(theirs, **arrays)
    archive = StoredZip(ours, large=True)
    for name, array in arrays.items():
        member = io.BytesIO()
        np.save(member, array)
        archive.add(f"{name}.npy", [member.getvalue()])
    archive.close()
    assert ours.getvalue() == theirs.getvalue()


@pytest.mark.parametrize("limit", [0, 4, 300, 1300])
def test_wide_fields_are_read_back(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """As if sizes and offsets above a small limit did not fit into 32 bits."""
    monkeypatch.setattr(zipped, "LIMIT", limit)
    data = make(MEMBERS)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == MEMBERS
    assert b"PK\6\6" in data


def test_more_members_than_16_bits_count() -> None:
    members = {f"m{number}": b"x" for number in range(65_537)}
    with zipfile.ZipFile(io.BytesIO(make(members))) as archive:
        assert archive.namelist() == list(members)
