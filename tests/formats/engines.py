"""Through the engines and back: what `packline export` and `packline import` do, in this process.

done = write(store, "olmo", folder, {"dtype": "uint32"})     export; `done.lost`, `done.shared`, ...
store = bring_back(folder, "olmo", tokenizer, out)           import
refuse(folder, "olmo", tokenizer, out, "words")              an import that has to fail and leave nothing
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from packline.api import import_
from packline.errors import CorruptStore
from packline.facade import Store
from packline.formats.check import check_dataset
from packline.formats.export import Exported, run_export
from packline.packing.options import ExportChoice
from packline.storage.local import Link


def write(
    store: Store,
    name: str,
    folder: Path,
    options: dict[str, Any] | None = None,
    *,
    link: Link = "auto",
    **choice: Any,
) -> Exported:
    """Export a store, in this process."""
    return run_export(
        str(store.path),
        to=name,
        out=folder,
        options=options,
        choice=ExportChoice(**choice),
        link=link,
        workers=0,
        with_tokenizer=False,
    )


def tokenizer_of(store: Store) -> Path:
    """The tokenizer that is kept with a store."""
    return store.path / "tokenizer" / "tokenizer.json"


def bring_back(
    path: Path,
    name: str,
    original: Store,
    out: Path,
    options: dict[str, Any] | None = None,
) -> Store:
    """Import a data set whose ids are those of a store's tokenizer.

    The data set passes a check by itself, and the new store its own.
    """
    problems = check_of(path, name, original, options)
    assert not problems, problems
    store = _import(path, name, original, out, options)
    report = store.verify()
    assert report.ok, [str(problem) for problem in report.problems]
    return store


def refuse(
    path: Path,
    name: str,
    original: Store,
    out: Path,
    words: str,
    options: dict[str, Any] | None = None,
) -> None:
    """An import that fails with these words and publishes nothing; a check that says them too."""
    with pytest.raises(CorruptStore, match=re.escape(words)):
        _import(path, name, original, out, options)
    assert not (out / "manifest.json").exists()
    problems = check_of(path, name, original, options)
    assert any(words in problem for problem in problems), problems


def _import(path: Path, name: str, original: Store, out: Path, options: dict[str, Any] | None) -> Store:
    entry = original.manifest.tokenizer
    given: dict[str, Any] = {"eod": entry.eod_id, "bos": entry.bos_id, "options": options}
    return import_(path, from_=name, tokenizer=tokenizer_of(original), out=out, workers=0, **given)


def check_of(path: Path, name: str, original: Store, options: dict[str, Any] | None = None) -> list[str]:
    """What `packline verify --from` finds wrong."""
    tokenizer = original.manifest.tokenizer
    report = check_dataset(
        path, name, tokenizer_of(original), options, eod=tokenizer.eod_id, bos=tokenizer.bos_id
    )
    assert report.ok == (not report.problems)
    return [str(problem) for problem in report.problems]


def documents_of(store: Store) -> dict[str, list[list[int]]]:
    """Stored documents by split."""
    found: dict[str, list[list[int]]] = {}
    for shard in store.shards:
        found.setdefault(shard.entry.split, []).extend(shard.document(n).tolist() for n in range(len(shard)))
    return found


def loss_of(store: Store) -> dict[str, list[int]]:
    """The loss mask by split; nothing of shards without one."""
    found: dict[str, list[int]] = {}
    for shard in store.shards:
        if shard.loss is not None:
            found.setdefault(shard.entry.split, []).extend(shard.loss.tolist())
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of an export but its record, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "packline.json"
    }
