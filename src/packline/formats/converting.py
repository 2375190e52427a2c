"""`packline.convert`: conversion from one layout to another, through a store.

    A   a store, or a data set of any format ── import ──> B.store (kept) ── export ──> B

There is one path from each layout and one to each, so all pairs behave the same, and all checks of both steps
apply. The intermediate store is kept: it can be exported again, verified and trained on.

Cost: an import and an export; the export links the store's bytes where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packline.errors import RecipeError
from packline.store.manifest import MANIFEST

if TYPE_CHECKING:
    from packline.formats.exporting.run import Exported
    from packline.formats.exporting.target import Link
    from packline.jobs.events import Event


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: str,
    format: str | None = None,
    tokenizer: str | Path | None = None,
    eod: str | int | None = None,
    bos: str | int | None = None,
    options: dict[str, Any] | None = None,
    import_options: dict[str, Any] | None = None,
    link: Link = "auto",
    workers: int | None = None,
    on_import: Callable[[Event], None] | None = None,
    on_export: Callable[[Event], None] | None = None,
    **choice: Any,
) -> Exported:
    """Write a data set in another layout, or resume an interrupted conversion.

    Args:
        source: a store, or a file or folder of another format, which becomes a store at `OUT.store`.
        out: the folder of the output.
        to: the format to write.
        format: the format to read; by default recognised, if unambiguous.
        tokenizer: the tokenizer that made the ids; needed unless `source` is a store.
        eod: end of document, as a string or an id; by default from the metadata or the tokenizer.
        bos: begin of document, as a string or an id; by default from the metadata or the tokenizer.
        options: options of the format to write.
        import_options: options of the format to read.
        link: how bytes of the store are shared; see `packline.export`.
        workers: number of processes; 0 for this one.
        on_import: called with the events of the import.
        on_export: called with the events of the export.
        **choice: documents or rows to export: fields of `Choice` of
            `packline.formats.exporting.source`, such as `seq_len`.

    Raises:
        PacklineError: any error of the import or the export. Finished work is kept.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    >>> import msgspec
    >>> _ = (folder / "tokenizer.json").write_bytes(msgspec.json.encode({"model": model}))
    >>> _ = (folder / "train.bin").write_bytes(bytes([0, 0, 1, 0, 2, 0, 1, 0, 2, 0]))
    >>> done = convert(
    ...     folder / "train.bin",
    ...     folder / "shards",
    ...     format="nanogpt",
    ...     to="llmc",
    ...     tokenizer=folder / "tokenizer.json",
    ...     eod="</s>",
    ... )
    >>> done.documents, (folder / "shards" / "fineweb_train_000000.bin").read_bytes()[1024:].hex()
    (2, '02000000010002000100')
    """
    from packline.formats.exporting.run import export
    from packline.formats.exporting.source import make_choice
    from packline.formats.importing.run import ImportRequest, run_import

    chosen, rest = make_choice(choice)
    if rest:
        raise RecipeError(f"unknown setting {min(rest)!r}")
    store = Path(source)
    if not is_store(source, format):
        if tokenizer is None:
            raise RecipeError("no tokenizer", hint="name the one that made the ids with --tokenizer")
        store = Path(f"{Path(out)}.store")
        request = ImportRequest(
            str(source), format, str(tokenizer), str(store), eod, bos, import_options or {}, workers
        )
        run_import(request, on_import)
    return export(
        store, to=to, out=out, options=options, choice=chosen, link=link, workers=workers, on_event=on_export
    )


def is_store(path: str | Path, format: str | None) -> bool:
    """True if a folder should be read as a store: it is one, and no format is given."""
    return format is None and (Path(path) / MANIFEST).is_file()
