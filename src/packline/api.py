"""Functions of `packline` that make stores and exports: typed, with the words of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from packline.conversion import convert, is_toml
from packline.errors import CorruptStore, RecipeError, refuse_unknown_names, unknown_name
from packline.settings import (
    BuildKeywords,
    CachePlace,
    ExportKeywords,
    RowKeywords,
    is_recipe,
    make_recipe,
)

if TYPE_CHECKING:
    from packline.chat.sft_unit import Overflow, Scheme
    from packline.chat.sources import ConversationSource
    from packline.facade import Store
    from packline.formats.baked import BakedRows
    from packline.formats.export import Exported
    from packline.jobs.dry_run import Estimate
    from packline.jobs.events import Event
    from packline.jobs.machines import On
    from packline.loading.loader import Loader
    from packline.recipe import Recipe, Split
    from packline.storage.local import Link


def build(
    inputs: Recipe | str | Path | Sequence[str | Path],
    tokenizer: str | Path | None = None,
    *,
    out: str | Path,
    reuse: str | Path | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
    **settings: Unpack[BuildKeywords],
) -> Store:
    """Build a store from text, or resume an interrupted build.

    Args:
        inputs: files, folders, globs or URIs; or a `Recipe`, or a file with one (`.toml`).
        tokenizer: a tokenizer.json, a folder with one, a hub id, a `.tiktoken` or SentencePiece file.
        out: folder of the store: new, empty, or containing the same build.
        reuse: an earlier store: units that would come out the same are linked from it, only the others run.
        on: where it runs: this machine, `"ray"` or `packline.Ray(address)`, or `packline.Slice(i, n)`.
        on_event: called with every event of `packline.jobs.job` while the build runs.
        **settings: see `packline.settings.BuildKeywords`; with a recipe they replace what it contains:
            `eod="<|endoftext|>"`, `val_fraction=0.01`, `engine="auto"`, `workers=2`, `memory="4GiB"`, ...

    Raises:
        PacklineError: the build stopped; `hint` suggests a remedy. Finished units are kept.

    With gpt2, `packline.build("corpus/*.jsonl", tokenizer="gpt2", out="store")`; with your own tokenizer:

    >>> import pathlib, tempfile
    >>> from packline.vocabulary.training import train_bpe
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "notes.txt").write_text("The first note.")
    >>> _ = (folder / "tokenizer.json").write_text(train_bpe(["some text to learn from"], 260))
    >>> store = build(folder / "notes.txt", folder / "tokenizer.json", out=folder / "store", workers=0)
    >>> store.text(0)
    'The first note.'
    """
    from packline.facade import Store
    from packline.jobs.build_job import make_build
    from packline.jobs.engine import run_job

    recipe, options = make_recipe(inputs, tokenizer, settings)
    job = make_build(recipe, out, options, reuse=reuse, on=on)
    run_job(job, on_event, on=on)
    return Store.just_written(str(out), job.manifest)


def estimate(
    inputs: Recipe | str | Path | Sequence[str | Path],
    tokenizer: str | Path | None = None,
    *,
    out: str | Path = ".",
    **settings: Unpack[BuildKeywords],
) -> Estimate:
    """Predict time, size and memory of `build` with the same arguments; write nothing.

    Args:
        out: planned folder of the store; its disk is checked for free space.

    Raises:
        PacklineError: any error that would stop the build before its first document.

    >>> estimate("words.txt", "tokenizer.json", eod="</s>").documents
    1
    """
    from packline.jobs.dry_run import estimate_build

    return estimate_build(*make_recipe(inputs, tokenizer, settings), out=out)


@refuse_unknown_names
def open(
    path: str | Path, *, cache: CachePlace = None, cache_bytes: int | str | None = None, verify: bool = False
) -> Store:
    """Open a finished store for reading.

    Args:
        path: folder of the store, or its URI in an object store: `s3://bucket/store`, `gs://`, `az://`.
        cache: folder for what is read of a remote store; None: `$PACKLINE_CACHE`, else in the user's cache.
            False: the memory of this process.
        cache_bytes: its size, such as "100GB"; None: `$PACKLINE_CACHE_BYTES`, else 32 GiB, 1 GiB in memory.
        verify: check every checksum first, which reads the whole store. Otherwise only sizes, indexes and
            formats are checked, in milliseconds whatever the size.

    Raises:
        StoreNotFound: no store there, or its build has not finished.
        CorruptStore: its files disagree; with `verify`, even a single flipped bit.

    >>> open("missing")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: missing does not exist
    """
    from packline.facade import Store
    from packline.store.files import CacheSettings

    store = Store(path, CacheSettings.of(cache, cache_bytes))
    if verify and not (report := store.verify()).ok:
        raise CorruptStore(
            f"{path} is damaged: {report.problems[0]}", hint="packline verify shows all that differs"
        )
    return store


@refuse_unknown_names
def sft(
    inputs: str | Path | ConversationSource | Sequence[str | Path | ConversationSource],
    tokenizer: str | Path,
    *,
    out: str | Path,
    scheme: Scheme = "template",
    chat_template: str | None = None,
    eod: str | int | None = None,
    bos: str | int | None = None,
    max_tokens: int | None = None,
    overflow: Overflow = "reject",
    val_fraction: float = 0.0,
    val_documents: int | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    label: str | None = None,
    field: str | None = None,
    columns: Sequence[str] = (),
    split: Split | None = None,
    workers: int | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
) -> Store:
    """Build a store with a loss mask from conversations, or resume an interrupted build.

    Args:
        inputs: files, folders, globs or URIs of JSONL, JSON arrays or Parquet; or sources with settings.
        tokenizer: a tokenizer.json, a folder with one, a hub id, ...
        out: folder of the store: new, empty, or containing the same build.
        scheme: `template` renders a chat template; `nanochat` writes nanochat's own tokens.
        chat_template: name of a template, such as "qwen3", or its text; None: the tokenizer's own.
        eod: end of document, as a string or an id.
        bos: begin of document.
        max_tokens: maximum tokens per document, boundary tokens included.
        overflow: treatment of longer conversations: `reject` or `truncate`.
        val_fraction: share of the conversations in the split val.
        val_documents: number of conversations in the split val, instead of `val_fraction`.
        test_fraction: share of the conversations in the split test.
        seed: seed of the splits.
        label: label of all inputs given as paths.
        field: field of the conversation, for inputs given as paths.
        columns: fields of the records to carry along, as in a recipe, for inputs given as paths.
        split: split of all inputs given as paths.
        workers: number of processes; 0: run in this process. None: one per usable core, 0 for little text.
        on: where it runs; see `build`.
        on_event: called with every event while the build runs.

    Raises:
        RecipeError: an invalid setting, or a template that marks the assistant's words in no conversation.
        InputError, TokenizerError: unusable inputs or tokenizer; no record is a conversation.
        OutOfSpace: the disk is full; finished units are kept.

    >>> _ = Path("chat.jsonl").write_text('{"prompt": "a", "response": "b"}\\n')
    >>> template = (
    ...     "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} "
    ...     "{% else %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
    ... )
    >>> store = sft(
    ...     "chat.jsonl", "tokenizer.json", out="store", chat_template=template, eod="</s>", workers=0
    ... )
    >>> store.documents[0].tolist(), store.shards[0].loss.tolist()
    ([0, 1, 2], [0, 1, 0])
    """
    from packline.chat.sft import SftRequest, run_sft
    from packline.chat.sources import ConversationSource
    from packline.facade import Store

    given = [inputs] if isinstance(inputs, str | Path | ConversationSource) else list(inputs)
    common = {"label": label, "field": field, "columns": tuple(columns) or None, "split": split}
    common = {name: value for name, value in common.items() if value is not None}
    sources = [one for one in given if isinstance(one, ConversationSource)]
    paths = tuple(str(one) for one in given if not isinstance(one, ConversationSource))
    if paths:
        sources.append(convert({"inputs": paths, **common}, ConversationSource))
    elif common:
        raise RecipeError(f"{min(common)!r} belongs to a source", hint="set it in each ConversationSource")
    request = {
        "sources": sources,
        "tokenizer": str(tokenizer),
        "out": str(out),
        "scheme": scheme,
        "chat_template": chat_template,
        "eod": eod,
        "bos": bos,
        "max_tokens": max_tokens,
        "overflow": overflow,
        "val_fraction": val_fraction,
        "val_documents": val_documents,
        "test_fraction": test_fraction,
        "seed": seed,
        "workers": workers,
    }
    run_sft(convert(request, SftRequest), on_event, on)
    return Store(out)


@refuse_unknown_names
def import_(
    path: str | Path,
    *,
    tokenizer: str | Path,
    out: str | Path,
    from_: str | None = None,
    eod: str | int | None = None,
    bos: str | int | None = None,
    options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
) -> Store:
    """Import another project's dataset into a store, or resume an interrupted import.

    Args:
        path: a file or folder.
        tokenizer: the tokenizer that made the ids: a tokenizer.json, a folder with one, a hub id, ...
        out: folder of the store: new, empty, or containing the same import.
        from_: a name that `packline formats` lists; None: recognised, if unambiguous.
        eod: end of document, as a string or an id; by default from the metadata, or the tokenizer's own.
        bos: begin of document, put before every document if given; required there if the format has it there.
        options: options of the format, by name.
        workers: number of processes; 0: run in this process. None: one per core, if the work is large enough.
        on: where it runs; see `build`.
        on_event: called with every event while the import runs.

    Raises:
        RecipeError, InputError, TokenizerError: an unusable setting, dataset or tokenizer.
        CorruptStore: damage, with its position; no store is published.
        OutOfSpace: the store would not fit on the disk.

    >>> _ = Path("train.bin").write_bytes(bytes([0, 0, 1, 0, 2, 0, 1, 0, 2, 0]))
    >>> store = import_("train.bin", from_="nanogpt", tokenizer="tokenizer.json", out="store", eod="</s>")
    >>> [document.tolist() for document in store.documents]
    [[0, 1, 2], [1, 2]]
    """
    from packline.facade import Store
    from packline.formats.import_ import ImportRequest, run_import

    request = ImportRequest(
        str(path), from_, str(tokenizer), str(out), eod, bos, dict(options or {}), workers
    )
    run_import(request, on_event, on)
    return Store(out)


@refuse_unknown_names
def merge(
    stores: Sequence[str | Path],
    *,
    out: str | Path,
    on_event: Callable[[Event], None] | None = None,
) -> Store:
    """Merge finished stores into one, or resume an interrupted merge.

    The files of the stores are linked, or copied to another file system; no token is read. The result is,
    byte for byte, what building the merged recipe anew gives: the sources of the first store, then of the
    second, and so on. Provenance, ledgers and bad records stay per source. Sizes of files, and checksums of
    manifests and tables, are compared; `Store.verify` compares those of all files.

    Args:
        stores: folders of two or more stores with different sources, and with the same tokenizer, boundary
            tokens, special_tokens, seed, fractions of splits, and max_document_bytes.
        out: folder of the merged store: new, empty, or containing the same merge.
        on_event: called with every event of `packline.jobs.job`.

    Raises:
        StoreError: the stores do not fit together, or one of them changed meanwhile.
        CorruptStore: a file of a store is missing or damaged.
        ResumeMismatch: `out` contains something else.
        OutOfSpace: the disk is full; the same call resumes.

    >>> from packline.testing import make_store
    >>> _ = make_store(Path("one"), [[5, 2]], sources=["books"])
    >>> _ = make_store(Path("two"), [[4]], sources=["web"])
    >>> merged = merge(["one", "two"], out="both")
    >>> [len(document) for document in merged.documents], list(merged.manifest.sources)
    ([5, 2, 4], ['books', 'web'])
    """
    from packline.facade import Store
    from packline.jobs.merging import run_merge

    run_merge(stores, out, on_event=on_event)
    return Store(out)


def export(
    source: str | Path | Store | Loader | Recipe | Sequence[str | Path],
    *,
    out: str | Path,
    to: str,
    tokenizer: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    link: Link = "auto",
    workers: int | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
    **settings: Unpack[ExportKeywords],
) -> Exported:
    """Export a store, or rows of a store or run, to the layout of another project; or resume an export.

    Args:
        source: a store or its folder, a run file (`.toml`) or a `Loader`; or arguments of `build`: inputs
            with a tokenizer, or a recipe. Their store is built next to the output, at `OUT.store`, and kept.
        out: output folder: new, empty, or containing the same export.
        to: name of the format; `packline formats` lists them.
        tokenizer: tokenizer for text inputs.
        options: options of the format, by name.
        link: how files of the store are reused where the output has the same bytes: `hard` links,
            `reflink` or `copy`; `auto` takes the first that works.
        workers: number of processes; None: one per usable core, 0: run in this process.
        on: where it runs; see `build`.
        on_event: called with every event while the export runs.
        **settings: documents or rows to export, such as `split`, `labels`, `seq_len`, `packing`,
            `batch_size`, `seed`, `stage`; see `packline.settings.RowKeywords`. For text, how to build its
            store; see `packline.settings.TextKeywords`.

    Raises:
        RecipeError: invalid settings, or ids too large for the format.
        StoreError: a damaged store, or an output folder with other contents.
        OutOfSpace: not enough disk space. Finished parts are kept.

    >>> exported = export(store.path, out="data", to="nanogpt", workers=0)
    >>> Path("data/train.bin").read_bytes() == store.documents[0].tobytes()
    True
    """
    from packline.formats.choice import make_choice, with_weights, without_where
    from packline.formats.export import run_export
    from packline.formats.row_view import RowView
    from packline.jobs.build_job import run_build
    from packline.loading.loader import Loader
    from packline.packing.options import ExportChoice
    from packline.recipe import Recipe
    from packline.storage.places import store_beside
    from packline.store.reader import StoreReader

    choice, rest = make_choice(dict(settings))
    view: str | Path | RowView
    if isinstance(source, Loader):
        view = RowView.of_loader(source, choice.stage)
    elif isinstance(source, StoreReader):
        view = str(source.place)
    elif isinstance(source, str | Path) and tokenizer is None and not is_recipe(source):
        view = source
    else:
        view = store_beside(out)
        if not isinstance(source, Recipe) and not is_toml(str(source)):
            choice, rest["where"] = without_where(choice)
        recipe, running = make_recipe(source, tokenizer, {**rest, "workers": workers})
        run_build(recipe, view, running, None, on=on)
        rest = {}
        if isinstance(source, str | Path) and is_recipe(source):
            options = with_weights(to, options, source)
    if rest:
        raise unknown_name(f"no setting {min(rest)!r}", min(rest), ExportChoice.__struct_fields__)
    return run_export(
        view,
        to=to,
        out=out,
        options=options,
        choice=choice,
        link=link,
        workers=workers,
        on=on,
        on_event=on_event,
    )


def write_rows(
    source: str | Path | Store | Loader,
    *,
    out: str | Path,
    options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on: On = "local",
    on_event: Callable[[Event], None] | None = None,
    **settings: Unpack[RowKeywords],
) -> BakedRows:
    """Write rows in training order as native shards, and open them: of several splits, those of train.

    Args:
        source: a store or its folder, a run file or a `Loader`.
        out: folder for the rows.
        options: `file_rows`: rows per file.
        workers: number of processes; None: one per usable core, 0: run in this process.
        on: where it runs; see `build`.
        on_event: called with every event while rows are written.
        **settings: rows and their order: `seq_len`, `packing`, ...; see `packline.settings.RowKeywords`.

    Raises:
        PacklineError: see `export`.

    >>> rows = write_rows(store, out="rows", seq_len=5, in_order=True, workers=0)
    >>> len(rows), rows.read([1], ["tokens"])["tokens"].tolist()
    (5, [[0, 0, 1, 0, 0]])
    """
    from packline.formats.baked import BakedRows

    exported = export(
        source,
        out=out,
        to="baked",
        options=options,
        workers=workers,
        on=on,
        on_event=on_event,
        **settings,
    )
    return BakedRows(Path(out, *exported.folders[:1]))
