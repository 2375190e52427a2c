"""`packline.import_store`: a foreign data set becomes a store, with the machinery of a build.

    look      format, headers, indexes, tokenizer against what the data says     nothing is written yet
    units     in worker processes, each committed with its receipt               (import_unit, import_run)
    publish   the manifest, with `imported`: format and options

Interrupted at any time, the same command goes on where it stopped, and the bytes come out the same, whatever
the number of processes. Any damage, any id outside the vocabulary, any document without its boundary tokens
is an error with its place, and no store appears. A store made this way has everything that a built one has,
but for the text: its bytes are counted from the tokens.

Cost: one pass over the tokens and one for checksums; about half the speed of copying a file. What it does
not do: encode, filter, or tell ids of one tokenizer from valid ids of another, unless the data says which.
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
    """Turn another project's data set into a store, or go on with an import that was interrupted.

    Args:
        path: a file or folder.
        format: a name of `packline.formats.registry`; by default what it is beyond doubt.
        tokenizer: that made the ids: a tokenizer.json, a folder with one, a hub id, ...
        out: the folder of the store: new, empty, or one that holds the same import.
        eod: end of document, as a string or an id; by default what the data says, or the tokenizer's own.
        bos: put before every document where given; expected there where the format has it there.
        options: the format's options, by name.
        workers: processes; 0 for this one. By default as many as there are cores, where the work is worth it.
        on_event: is called with `ImportPlan`, `Progress`, `UnitDone` and `Note`.

    Raises:
        RecipeError, InputError, TokenizerError: a setting, a data set or a tokenizer that cannot be used.
        CorruptStore: damage, with its place; no store is published.
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
