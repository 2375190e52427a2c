"""Write a page as one HTML file, atomically: an existing file stays until the new one is complete.

A pipe or a device is written to and never replaced by a file. Does not create folders.
"""

from __future__ import annotations

from pathlib import Path

from packline.errors import OutOfSpace, StoreError
from packline.storage.local import publish_bytes
from packline.viewing.html import document
from packline.viewing.page import Page

HINT = "name a file in a folder that is there and may be written to"


def check_place(out: str | Path) -> Path:
    """Check a path for a file before the work begins.

    Raises:
        StoreError: the path is a folder, or its folder does not exist.
    """
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise StoreError(f"cannot write {path}: expected a place for a file, found {found}", hint=HINT)
    return path


def write_page(page: Page, path: Path) -> None:
    """Write a page as one file that opens offline.

    Raises:
        OutOfSpace: the disk is full.
        StoreError: the file cannot be written.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "page.html"
    >>> write_page(Page("Store", ()), file)
    >>> file.read_text("utf-8").startswith("<!doctype html>")
    True
    """
    data = document(page).encode("utf-8")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            publish_bytes(path.resolve(), data)  # replaces the target of a symbolic link, not the link
    except OutOfSpace:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint=HINT) from error
