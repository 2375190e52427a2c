"""`index.json` of rows in records: which indexes are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from packline.errors import InputError
from packline.formats.layouts.columns import INDEX, read_index


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[1]", "expected an object, found list"),
        (None, "or folders train and val"),
    ],
)
def test_an_index_that_is_no_object_is_refused_with_its_path(
    tmp_path: Path, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / INDEX).write_bytes(data)
    with pytest.raises(InputError, match=words) as refused:
        read_index(tmp_path)
    assert str(tmp_path) in str(refused.value)
