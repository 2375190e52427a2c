from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packline.errors import OutOfSpace, PacklineError, RecipeError
from packline.fingerprint import hash_bytes
from packline.formats.export_folder import Target
from packline.storage import local as module
from packline.store.files import FileEntry


@pytest.fixture
def target(tmp_path: Path) -> Target:
    (tmp_path / "staged").mkdir()
    return Target(tmp_path / "staged")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(100_000))
    return path


def test_a_file_that_is_written_is_entered_with_its_checksum(target: Target) -> None:
    tokens = np.arange(7, dtype="<u4")
    with target.create("a/b/tokens.bin") as file:
        file.write(b"head")
        file.write(tokens)
    data = b"head" + tokens.tobytes()
    assert (target.folder / "a/b/tokens.bin").read_bytes() == data
    assert target.files == [FileEntry("a/b/tokens.bin", len(data), hash_bytes(data))]


def test_a_file_that_failed_is_not_entered(target: Target) -> None:
    with pytest.raises(KeyError), target.create("x") as file:
        file.write(b"half")
        raise KeyError
    assert target.files == []


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_nothing_is_written_outside(target: Target, name: str) -> None:
    with pytest.raises(PacklineError, match="cannot be called"), target.create(name):
        pass


def cannot(*_: Any) -> None:
    raise OSError(errno.EXDEV, "another device")


@pytest.mark.parametrize(
    ("link", "how", "hard", "reflink"),
    [
        ("auto", "linked", True, False),
        ("hard", "linked", True, False),
        ("auto", "reflinked", False, True),
        ("reflink", "reflinked", True, True),
        ("auto", "copied", False, False),
        ("copy", "copied", True, True),
    ],
)
def test_bytes_are_shared_as_asked_and_as_can_be(
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: Any,
    how: str,
    hard: bool,
    reflink: bool,
) -> None:
    if not hard:
        monkeypatch.setattr(os, "link", cannot)
    monkeypatch.setattr(module, "_reflink", module.copy_file if reflink else cannot)
    (tmp_path / "staged").mkdir()
    target = Target(tmp_path / "staged", link=link)
    entry = FileEntry("train.bin", 100_000, hash_bytes(stored.read_bytes()))
    target.share(stored, "data/one.bin", entry)
    target.share(stored, "data/two.bin")  # of unknown checksum: found out
    for name in ("data/one.bin", "data/two.bin"):
        assert (target.folder / name).read_bytes() == stored.read_bytes()
        assert os.path.samefile(target.folder / name, stored) == (how == "linked")
    assert target.shared == {how: 200_000}
    assert [(one.bytes, one.checksum) for one in target.files] == [(entry.bytes, entry.checksum)] * 2


def test_what_was_asked_for_and_cannot_be_is_an_error(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", cannot)
    monkeypatch.setattr(module, "_reflink", cannot)
    for link, what in (("hard", "hard links"), ("reflink", "reflinks")):
        folder = tmp_path / link
        folder.mkdir()
        with pytest.raises(PacklineError, match=f"no {what} there"):
            Target(folder, link=link).share(stored, "x")  # type: ignore[arg-type]
        assert not (folder / "x").exists()
    with pytest.raises(RecipeError, match="link is 'symbolic'"):
        Target(tmp_path, link="symbolic")  # type: ignore[arg-type]


def test_a_link_of_an_interrupted_run_is_replaced_and_not_written_through(
    target: Target, stored: Path
) -> None:
    before = stored.read_bytes()
    target.share(stored, "x.bin")
    with target.create("x.bin") as file:
        file.write(b"new")
    assert (target.folder / "x.bin").read_bytes() == b"new" and stored.read_bytes() == before


def test_a_full_disk_is_said_to_be_one(target: Target, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OutOfSpace, match="is full"):
        target.share(stored, "x")
