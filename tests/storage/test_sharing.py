"""Sharing of files: the fall-backs, and what is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from packline.storage.local import copy_file, share_file


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(100_000))
    return path


def test_copying_continues_where_the_kernel_stops(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.copy_file_range
    calls: list[int] = []

    def some(source: int, target: int, count: int, here: int, there: int) -> int:
        calls.append(count)
        if len(calls) > 1:
            raise OSError(errno.EXDEV, "no")
        return whole(source, target, 1234, here, there)

    monkeypatch.setattr(os, "copy_file_range", some)
    copy_file(stored, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == stored.read_bytes() and len(calls) == 2


@pytest.mark.parametrize("link", ["auto", "hard", "copy"])
def test_an_existing_file_is_never_overwritten(stored: Path, tmp_path: Path, link: str) -> None:
    (tmp_path / "other").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        share_file(stored, tmp_path / "other", link)  # type: ignore[arg-type]
    assert (tmp_path / "other").read_bytes() == b"old"


def test_a_symbolic_link_is_followed(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "name").symlink_to(stored)
    share_file(tmp_path / "name", tmp_path / "again")
    assert os.path.samefile(tmp_path / "again", stored) and not (tmp_path / "again").is_symlink()


def test_a_copy_is_another_file(stored: Path, tmp_path: Path) -> None:
    assert share_file(stored, tmp_path / "copy", "copy") == "copied"
    assert not os.path.samefile(tmp_path / "copy", stored)
    assert (tmp_path / "copy").read_bytes() == stored.read_bytes()
