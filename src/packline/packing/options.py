"""The settings of rows and of a loader, each declared once.

Run files, exports, the command line, the web viewer and `follow` are made from these structs; the typed
keywords of Python are held to them by a test. `Selection`, `Rows` and `Schedule` check the values against a
store.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from packline.conversion import convert
from packline.errors import RecipeError
from packline.recipe import Natural, Positive, Seed
from packline.where.conditions import canonical_where

Packing: TypeAlias = Literal["concat", "best_fit", "pad"]
SplitChoice: TypeAlias = Literal["train", "val", "test", "all"]
Overflow: TypeAlias = Literal["truncate", "split", "drop"]
Field: TypeAlias = Literal["tokens", "targets", "position_ids", "segment_ids", "loss_mask"]
Keys: TypeAlias = Literal["packline", "huggingface"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)
OrderName: TypeAlias = Literal["global", "blocks"]
"""Order of rows: all of a source shuffled, or blocks of them within windows."""
OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)


class DocumentFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Documents of a store, and their order; `Store.rows` explains them.

    >>> DocumentFilter(labels=["web", "code", "web"]).canonical().labels
    ('code', 'web')
    """

    split: str = "train"
    labels: str | tuple[str, ...] | None = None
    sources: str | tuple[str, ...] | None = None
    min_tokens: Natural | None = None
    max_tokens: Positive | None = None
    where: str | None = None
    """Only documents that meet a condition on their columns: `score >= 3 and language in ['de', 'en']`."""
    unique: bool | str | tuple[str, ...] = False
    """True: only the first of equal texts. Folders of other stores: also no text that one of them has."""
    exclude: str | tuple[str, ...] | None = None
    shuffle_documents: Seed | None = None
    """Seed for a shuffle of the documents before they are packed; None keeps the stored order."""

    def canonical(self) -> DocumentFilter:
        """The same choice in one form: equal choices of documents are equal values."""
        return DocumentFilter(
            split=self.split,
            labels=_names(self.labels),
            sources=_names(self.sources),
            min_tokens=self.min_tokens if self.min_tokens is not None and self.min_tokens > 1 else None,
            max_tokens=self.max_tokens,
            where=None if self.where is None else canonical_where(self.where),
            unique=(self.unique if isinstance(self.unique, bool) else _names(self.unique)) or False,
            exclude=_names(self.exclude) or None,
            shuffle_documents=self.shuffle_documents,
        )


class RowOptions(DocumentFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Documents of a store, and how they fill rows."""

    packing: Packing = "concat"
    min_tail_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """For concat: smallest share of a row for which the last row is kept, padded."""
    pack_window: Positive | None = None
    overflow: Overflow = "truncate"
    boundary_loss: bool = False
    pad_id: Natural | None = None


class LoaderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Batches of rows, and their order: the table `[loader]` of a run file; `Loader` explains them."""

    batch_size: Positive | None = None
    """Rows per global batch, over all ranks; required, unless every stage has its own."""
    batch_tokens: Positive | None = None
    """The same in tokens, in place of `batch_size`: row lengths must divide it."""
    seed: Seed = 0
    shuffle: bool = True
    order: OrderName = "global"
    block_rows: Positive | None = None
    window_blocks: Positive | None = None
    fields: tuple[Field, ...] | None = None
    keys: Keys = "packline"
    prefetch: Natural = 2
    plans: str | None = None


def _unset(kind: type, *names: str) -> list[tuple[str, Any, None]]:
    types = get_type_hints(kind, include_extras=True)
    return [(name, types[name] | None, None) for name in names]


OF_DOCUMENTS = DocumentFilter.__struct_fields__
OF_ROWS = [name for name in RowOptions.__struct_fields__ if name not in OF_DOCUMENTS]


CHOICE: Any = msgspec.defstruct(
    "CHOICE",
    [
        *_unset(RowOptions, *OF_DOCUMENTS),
        ("seq_len", int | None, None),
        *_unset(RowOptions, *OF_ROWS),
        *_unset(LoaderOptions, "seed"),
        ("in_order", bool | None, None),
        *_unset(LoaderOptions, "order", "block_rows", "window_blocks"),
        ("epochs", int | None, None),
        *_unset(LoaderOptions, "batch_size"),
        ("stage", int | None, None),
        ("keep_untrained", bool | None, None),
    ],
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
)


class ExportChoice(CHOICE):  # type: ignore[misc]
    """Documents or rows of a source to export, and their order: settings of rows and of a loader, and

    in_order        rows in packed order, whatever the format
    epochs          passes over the rows
    stage           stage of a run file
    keep_untrained  also write rows without a trained token

    None: the default; of `split` all, of rows each in its own folder; of `seed` packed order, or what the
    format takes (`formats.choice.with_order`).
    """


DEFAULTS = RowOptions()

Options = TypeVar("Options", DocumentFilter, RowOptions, LoaderOptions)


def check_options(options: Options) -> Options:
    """Refuse values that no store can have; return the options, with the values of Python's own types.

    >>> check_options(RowOptions(packing="bestfit"))
    Traceback (most recent call last):
    packline.errors.RecipeError: packing is 'bestfit': expected best_fit, concat or pad
    """
    given = {name: _plain(getattr(options, name)) for name in options.__struct_fields__}
    options = convert(given, type(options))
    if isinstance(options, DocumentFilter):
        least, most = options.min_tokens, options.max_tokens
        if least is not None and most is not None and most < least:
            raise RecipeError(f"max_tokens is {most}: expected at least min_tokens, {least}")
    return options


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def _names(names: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(sorted(set(names)))
