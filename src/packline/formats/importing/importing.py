"""`packline.import_store`: import a foreign data set into a store, with the machinery of a build.

    look      format, headers, indexes, tokenizer compared with the metadata     nothing is written yet
    units     in worker processes, each committed with its receipt               (import_unit, import_run)
    publish   the manifest, with `imported`: format and options

Interrupted at any time, the same command resumes where it stopped, and the bytes are the same, whatever
the number of processes. Any damage, any id outside the vocabulary, any document without its boundary tokens
is an error with its position, and no store appears. An imported store has everything that a built one has,
except the text: text bytes are counted from the tokens.

Cost: one pass over the tokens and one for checksums; about half the speed of copying a file. Does not encode
or filter, and cannot tell ids of one tokenizer from valid ids of another unless the metadata names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packline.formats.importing.run import ImportRequest, OnEvent, run_import
from packline.store.reader import Store


def import_store(
    path: str | Path,
    *,
    format: str | None = None,
    tokenizer: str | Path,
    out: str | Path,
    eod: str | int | None = None,
    bos: str | int | None = None,
    options: dict[str, Any] | None = None,
    workers: int | None = None,
    on_event: OnEvent | None = None,
) -> Store:
    """Import another project's data set into a store, or resume an interrupted import.

    Args:
        path: a file or folder.
        format: a name from `packline.formats.registry`; by default recognised, if unambiguous.
        tokenizer: the tokenizer that made the ids: a tokenizer.json, a folder with one, a hub id, ...
        out: the folder of the store: new, empty, or one that holds the same import.
        eod: end of document, as a string or an id; by default from the metadata, or the tokenizer's own.
        bos: begin of document, put before every document if given; required there if the format has it there.
        options: options of the format, by name.
        workers: number of processes; 0 for this one. By default one per core, if the work is large enough.
        on_event: called with `ImportPlan`, `Progress`, `UnitDone` and `Note`.

    Raises:
        RecipeError, InputError, TokenizerError: an unusable setting, data set or tokenizer.
        CorruptStore: damage, with its position; no store is published.
        OutOfSpace: the store would not fit on the disk.

    >>> import json, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "train.bin").write_bytes(bytes([0, 0, 1, 0, 2, 0, 1, 0, 2, 0]))
    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    >>> _ = (folder / "tokenizer.json").write_text(json.dumps({"model": model}))
    >>> store = import_store(
    ...     folder / "train.bin",
    ...     format="nanogpt",
    ...     tokenizer=folder / "tokenizer.json",
    ...     out=folder / "store",
    ...     eod="</s>",
    ... )
    >>> [document.tolist() for document in store.documents]
    [[0, 1, 2], [1, 2]]
    """
    request = ImportRequest(str(path), format, str(tokenizer), str(out), eod, bos, options or {}, workers)
    run_import(request, on_event)
    return Store(out)
