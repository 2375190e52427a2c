"""Contents of a store, or of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import refuse_unknown_names
from packline.recipe import Recipe
from packline.store.ledger import Ledger
from packline.store.manifest import ImportEntry, TokenizerEntry
from packline.store.provenance import Provenance
from packline.store.reader import StoreReader
from packline.toml import kind_of
from packline.viewing.columns import count_columns
from packline.viewing.store_counts import DocumentLengths, Group, group_shards, measure_lengths

if TYPE_CHECKING:
    from packline.loading.run_summary import RunUse

CHARACTERS = 1000
"""Maximum characters of a document's text."""
MARGIN = 8
"""Characters at the end of a truncated text that may change with the next token."""
UNKNOWN = "\ufffd"


class FirstDocument(Provenance, frozen=True):
    """Origin of a document, and the beginning of its text."""

    text: str = ""


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a store."""

    store: str
    documents: int
    tokens: int
    text_bytes: int
    store_bytes: int
    dtype: str
    shards: int
    tokenizer: TokenizerEntry
    recipe: Recipe
    imported: tuple[ImportEntry, ...] | None
    groups: list[Group]
    """Totals by split, source and label."""
    lengths: DocumentLengths
    columns: list[dict[str, Any]]
    """Summaries of the columns that the documents carry."""
    ledger: Ledger
    sources: dict[str, Ledger]
    first_documents: list[FirstDocument]


@refuse_unknown_names
def info(path: str | Path, *, documents: int = 3) -> StoreInfo | RunUse:
    """Contents of a store, or what a run reads, as `packline info --json` prints it.

    Args:
        path: folder or URI of a finished store, or a run file (`.toml`).
        documents: number of first documents.

    Raises:
        StoreNotFound: there is no store.
        CorruptStore: it is damaged.
        RecipeError: not a run file.

    >>> contents = info(store.path)
    >>> contents.documents, contents.lengths.longest, contents.first_documents[0].file
    (1, 25, 'words.txt')
    """
    if kind_of(path) == "run file":
        from packline.loading.run_summary import summarize_run

        return summarize_run(path)
    store = StoreReader(path)
    manifest = store.manifest
    return StoreInfo(
        store=str(store.place),
        documents=manifest.documents,
        tokens=manifest.tokens,
        text_bytes=manifest.ledger.text_bytes,
        store_bytes=manifest.store_bytes,
        dtype=manifest.dtype,
        shards=len(manifest.shards),
        tokenizer=manifest.tokenizer,
        recipe=manifest.recipe,
        imported=manifest.imported or None,
        groups=group_shards(store),
        lengths=measure_lengths(store),
        columns=[one.as_json() for one in count_columns(store)],
        ledger=manifest.ledger,
        sources=manifest.sources,
        first_documents=[
            FirstDocument(
                **msgspec.structs.asdict(store.provenance(number)), text=first_characters(store, number)
            )
            for number in range(min(max(documents, 0), len(store.documents)))
        ],
    )


def first_characters(store: StoreReader, number: int) -> str:
    """First characters of a document's text, decoding little more than needed.

    A cut may fall within a character, and some decoders then also lose what precedes it, so more tokens are
    taken until the characters are complete or no tokens are left.
    """
    start = 0 if store.manifest.tokenizer.bos_id is None else 1
    tokens, taken = store.documents[number][start:-1], CHARACTERS
    while True:
        text = str(store.tokenizer.decode(tokens[:taken].tolist(), skip_special_tokens=False))
        found = text[:CHARACTERS]
        if taken >= len(tokens) or (len(text) > CHARACTERS + MARGIN and UNKNOWN not in found):
            return found
        taken *= 4
