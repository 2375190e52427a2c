"""Sum receipts to a store's manifest, in one place for builds, imports and checks.

    receipts, in the order of documents ──> shards, rejects, ledgers by source and in total
    checksums of an input's pieces      ──> one checksum of the whole input

Does not read or write files, or decide which receipts count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from packline.encoders.boundary import Boundary
from packline.encoders.parity import RoundTrip
from packline.encoders.tokenizer import Tokenizer
from packline.fingerprint import hash_bytes
from packline.ragged import dtype_for
from packline.recipe import Recipe
from packline.store.ledger import source_names, total, totals_by_source
from packline.store.manifest import (
    FORMAT_VERSION,
    FileEntry,
    ImportEntry,
    InputEntry,
    Manifest,
    Receipt,
    TokenizerEntry,
)
from packline.version import __version__


def sum_of_receipts(
    receipts: Sequence[Receipt],
    *,
    recipe: Recipe,
    tokenizer: Tokenizer,
    boundary: Boundary,
    round_trip: RoundTrip,
    inputs: Iterable[InputEntry],
    receipt_files: Iterable[FileEntry],
    tokenizer_files: Iterable[FileEntry],
    imported: ImportEntry | msgspec.UnsetType = msgspec.UNSET,
    val_share: float | msgspec.UnsetType = msgspec.UNSET,
) -> Manifest:
    """Manifest of a store whose units have these receipts.

    Args:
        receipts: receipts of all units, in the order of their documents.
        inputs: inputs with their checksums: see `join_checksums`.
    """
    return Manifest(
        format_version=FORMAT_VERSION,
        packline=__version__,
        recipe=recipe,
        tokenizer=TokenizerEntry(
            name=tokenizer.name,
            kind=tokenizer.kind,
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eod_id=boundary.eod_id,
            eod=boundary.eod,
            bos_id=boundary.bos_id,
            bos=boundary.bos,
            round_trip=round_trip,
        ),
        dtype=dtype_for(tokenizer.vocab_size).name,
        inputs=tuple(inputs),
        shards=tuple(shard for receipt in receipts for shard in receipt.shards),
        rejects=tuple(entry for receipt in receipts for entry in receipt.rejects),
        receipts=tuple(receipt_files),
        tokenizer_files=tuple(tokenizer_files),
        ledger=total(receipt.ledger for receipt in receipts),
        sources=totals_by_source(
            source_names(recipe), ((receipt.source, receipt.ledger) for receipt in receipts)
        ),
        imported=imported,
        val_share=val_share,
    )


def join_checksums(checksums: Sequence[str]) -> str:
    """One checksum of a file that was read in pieces; empty for a file that a limit left unread.

    >>> join_checksums([]), join_checksums(["ab"]), len(join_checksums(["ab", "cd"]))
    ('', 'ab', 32)
    """
    return "".join(checksums) if len(checksums) < 2 else hash_bytes("".join(checksums).encode())
