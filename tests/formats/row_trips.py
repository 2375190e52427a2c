"""Rows of documents by hand, and stores that go to a row format and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.formats.stores import EOD, Case

from packline.api import import_
from packline.facade import Store
from packline.formats.export import run_export
from packline.packing.options import ExportChoice

IGNORED = -100


def rows_by_hand(
    documents: Sequence[Sequence[int]],
    seq_len: int,
    pad_id: int,
    masks: Sequence[Sequence[int]] | None = None,
) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Tokens, targets and lengths of rows that are cut from documents back to back."""
    stream, targets = [], []
    for number, document in enumerate(documents):
        for place, token in enumerate(document):
            stream.append(token)
            after = place + 1
            known = after < len(document) and (masks is None or masks[number][after])
            targets.append(document[after] if known else IGNORED)
    tokens, wanted, lengths = [], [], []
    for begin in range(0, len(stream), seq_len):
        row = stream[begin : begin + seq_len]
        empty = seq_len - len(row)
        tokens.append(row + [pad_id] * empty)
        wanted.append(targets[begin : begin + seq_len] + [IGNORED] * empty)
        lengths.append(len(row))
    return tokens, wanted, lengths


def stored_documents(store: Store) -> list[list[int]]:
    """All documents, as lists."""
    return [document.tolist() for document in store.documents]


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of an export's format."""
    own = ("packline.json", "tokenizer.json", "tokenizer_config.json")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in own}


def there_and_back(
    store: Store,
    name: str,
    folder: Path,
    choice: ExportChoice,
    options: dict[str, Any] | None = None,
    reading: dict[str, Any] | None = None,
    but_for: Sequence[str] = (),
) -> Store:
    """Export, import, export again: equal bytes; the imported store, which `verify` passes."""
    run_export(store.path, to=name, out=folder / "there", choice=choice, options=options, workers=0)
    imported = import_(
        folder / "there",
        from_=name,
        tokenizer=store.path / "tokenizer",
        out=folder / "imported",
        options=reading,
        workers=0,
    )
    report = imported.verify()
    assert report.ok, report.problems
    run_export(imported.path, to=name, out=folder / "back", choice=choice, options=options, workers=0)
    there, back = files_of(folder / "there"), files_of(folder / "back")
    assert there.keys() == back.keys()
    assert [name for name in there if there[name] != back[name] and name not in but_for] == []
    return imported


def import_of(folder: Path, name: str, case: Case, out: Path, **options: Any) -> Store:
    """Import files of a case's tokenizer."""
    from tests.formats.stores import write_tokenizer

    tokenizer = write_tokenizer(out.with_name("made"), case.vocab_size, case.eod_id, case.bos_id)
    eod = options.pop("eod", EOD)
    return import_(folder, from_=name, tokenizer=tokenizer, out=out, eod=eod, options=options, workers=0)
