"""Durable writing into a local folder: a file is whole or absent, and its bytes never change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.storage.kills import failing_at

from packline.errors import OutOfSpace
from packline.storage.local import LocalFolder, publish_bytes, share_file


@contextmanager
def recorded() -> Iterator[list[tuple[str, int, Path | None]]]:
    """Steps in order: `sync` or `move`, the inode of the file or folder, and the target of a move."""
    steps: list[tuple[str, int, Path | None]] = []
    sync, replace, rename, link = os.fsync, os.replace, os.rename, os.link

    def moving(move: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, **options: Any) -> None:
            steps.append(("move", os.stat(source).st_ino, Path(target)))
            move(source, target, **options)

        return call

    def syncing(descriptor: int) -> None:
        steps.append(("sync", os.fstat(descriptor).st_ino, None))
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(os, "replace", moving(replace))
        patch.setattr(os, "rename", moving(rename))
        patch.setattr(os, "link", moving(link))
        yield steps


def put_two(folder: Path) -> None:
    for name in ("x", "y"):
        (folder / f"{name}.part").write_bytes(b"long")
    LocalFolder(folder).put_files({"one/x": folder / "x.part", "y": folder / "y.part"})


def put_bytes(folder: Path) -> None:
    publish_bytes(folder / "a", b"x")


def put_small(folder: Path) -> None:
    LocalFolder(folder).put_new("a", b"x")


@pytest.mark.parametrize("write", [put_bytes, put_small, put_two])
def test_contents_are_durable_before_a_name_and_the_name_after_it(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    with recorded() as steps:
        write(tmp_path)
    moves = [place for place, step in enumerate(steps) if step[2] is not None]
    assert moves
    for place in moves:
        _, source, target = steps[place]
        assert target is not None
        assert ("sync", source, None) in steps[:place]
        assert ("sync", target.parent.stat().st_ino, None) in steps[place:], "else the name may be lost"


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_failure_at_any_step_leaves_the_file_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    for number in range(4):
        folder = LocalFolder(tmp_path / str(number))
        folder.path.mkdir()
        with failing_at(number, OSError(errno.ENOSPC, "full"), "fsync", "link"):
            if number < 3:
                with pytest.raises(OutOfSpace, match=r"the disk of .* is full"):
                    folder.put_new("a", b"whole")
            else:
                assert folder.put_new("a", b"whole")
        assert folder.list("") == ([] if number < 2 else ["a"]), "an unfinished file is not listed"
        folder.put_new("a", b"whole")
        assert folder.read("a") == b"whole"
        assert os.listdir(folder.path) == ["a"]


# ------------------------------------------------------------------ copies and links


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(100_000))
    return path


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


def test_without_links_a_file_is_cloned_or_copied(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "no")

    monkeypatch.setattr(os, "link", refuse)
    assert share_file(stored, tmp_path / "other") in ("reflinked", "copied")
    assert (tmp_path / "other").read_bytes() == stored.read_bytes()


def test_a_file_that_vanishes_while_its_folder_is_walked_is_left_out(tmp_path: Path) -> None:
    storage = LocalFolder(tmp_path)
    for name in ("a", "b", "c"):
        storage.put_new(name, b"x")
    walk = storage.walk()
    assert next(walk).name == "a"
    storage.delete(["b"])
    assert [one.name for one in walk] == ["c"]
