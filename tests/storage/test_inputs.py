"""Checksums of ranges of files."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from packline.errors import InputChanged
from packline.storage import inputs
from packline.storage.inputs import hash_range


def test_the_checksum_of_a_range_is_that_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "READ_BYTES", 2)
    path, data = tmp_path / "data", b"abcdefg"
    path.write_bytes(data)
    for start, stop in ((0, 7), (1, 6), (2, 4), (3, 3)):
        assert hash_range(str(path), start, stop) == xxhash.xxh3_128_hexdigest(data[start:stop])
    with pytest.raises(InputChanged, match="expected 9 bytes, found 7"):
        hash_range(str(path), 1, 9)
