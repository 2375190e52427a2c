"""Recognition of stores among the sources of a conversion."""

from __future__ import annotations

from pathlib import Path

from packline.store.manifest import MANIFEST


def is_store(path: str | Path, format: str | None) -> bool:
    """True if a folder should be read as a store: it is one, and no format is given."""
    return format is None and (Path(path) / MANIFEST).is_file()
