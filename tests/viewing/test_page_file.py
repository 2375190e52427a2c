"""A page is in its file whole, or what was there before still is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from packline.errors import OutOfSpace, PacklineError, StoreError
from packline.viewing.html import check_place, render_file, write_page
from packline.viewing.page import Note, Page

PAGE = Page("Store", (Note("two & two"),))


def test_a_page_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    for page in (Page("Before", ()), PAGE):
        write_page(page, out)
        assert out.read_text("utf-8") == render_file(page)
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, OutOfSpace), (errno.EIO, StoreError), (errno.EROFS, StoreError)]
)
def test_a_page_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[PacklineError]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    out = tmp_path / "page.html"
    write_page(PAGE, out)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(expected) as error:
        write_page(Page("Later", ()), out)
    assert error.value.hint
    assert out.read_text("utf-8") == render_file(PAGE)


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "page.html").symlink_to("deep/real.html")
    for page in (Page("Before", ()), PAGE):
        write_page(page, tmp_path / "page.html")
        assert (tmp_path / "page.html").is_symlink()
        assert (tmp_path / "deep/real.html").read_text("utf-8") == render_file(page)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_page(PAGE, pipe)
        assert os.read(reading, 1 << 16).decode("utf-8") == render_file(PAGE)
        assert pipe.is_fifo()
    finally:
        os.close(reading)


def test_no_place_for_a_file_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "page.html"
    with pytest.raises(StoreError, match=f"cannot write {missing}: No such file or directory") as error:
        write_page(PAGE, missing)
    assert error.value.hint
    with pytest.raises(StoreError, match=f"expected a place for a file, found no folder {missing.parent}"):
        check_place(missing)
    for ask in (check_place, lambda path: write_page(PAGE, path)):
        with pytest.raises(StoreError, match=f"cannot write {tmp_path}: ") as error:
            ask(tmp_path)
        assert error.value.hint
