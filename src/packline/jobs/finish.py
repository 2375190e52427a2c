"""Finish of a build: the manifest as a pure function of the plan and the receipts.

    .packline/plan.zst, receipts/, tokenizer/  ──>  tables, manifest.json

No input is read, so any process may do it, any number of times, also two at once: all write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from packline.encoders.parity import RoundTrip
from packline.errors import StoreError
from packline.jobs.document_order import DocumentOrder, units_left
from packline.jobs.folder import StoreFolder
from packline.jobs.identity import record_etags
from packline.jobs.limits import limit_reached
from packline.jobs.plan import Plan
from packline.jobs.receipts import CommittedReceipts
from packline.store.ledger import source_names
from packline.store.manifest import Manifest, Receipt, StreamReceipt, assemble, join_checksums
from packline.store.tables import TOKENIZER, InputEntry, Picked


def make_manifest(
    folder: StoreFolder,
    plan: Plan,
    committed: CommittedReceipts,
    round_trip: RoundTrip,
    val_share: float | msgspec.UnsetType = msgspec.UNSET,
) -> Manifest:
    """Manifest of the store whose units are committed.

    Raises:
        StoreError: units are missing.
    """
    order = DocumentOrder(plan.units, committed.receipts, committed.streams)
    ordered = Picked(committed.receipts, list(order.advance()))
    if order.unit is not None and not limit_reached(plan.recipe, ordered):
        left = len(units_left(plan.units, committed.receipts, committed.streams))
        raise StoreError(
            f"{folder.place}: {left:,} of {len(plan.units):,} units are not committed",
            hint="run the build again to finish them",
        )
    return assemble(
        ordered,
        recipe=plan.recipe,
        tokenizer=msgspec.structs.replace(plan.tokenizer, round_trip=round_trip),
        dtype=plan.dtype,
        inputs=_with_checksums(plan, ordered, committed.streams.values()),
        receipt_files=committed.entries(ordered.keys),
        tokenizer_files=[folder.entry(name) for name in folder.storage.list(TOKENIZER)],
        streams=committed.streams,
        imported=() if plan.imported is None else (plan.imported,),
        val_share=val_share,
    )


def publish_store(folder: StoreFolder, manifest: Manifest, plan: Plan) -> None:
    """Write the tables and the manifest, then delete what they do not name, where that may be."""
    record_etags(manifest, source_names(plan.recipe), plan.files)
    folder.publish(manifest)
    folder.drop_unlisted(manifest)


def _with_checksums(
    plan: Plan, receipts: Iterable[Receipt], streams: Iterable[StreamReceipt]
) -> Iterable[InputEntry]:
    """Inputs, with the checksums of the pieces that units have read."""
    names = source_names(plan.recipe)
    numbers = {(names[file.source], file.name): number for number, file in enumerate(plan.files)}
    checksums: dict[int, list[str]] = {}
    for receipt in receipts:
        for piece in receipt.inputs:
            checksums.setdefault(numbers[receipt.source, piece.file], []).append(piece.checksum)
    for stream in streams:
        checksums.setdefault(numbers[stream.source, stream.file], []).append(stream.checksum)
    for number, entry in enumerate(plan.inputs()):
        yield msgspec.structs.replace(entry, checksum=join_checksums(checksums.get(number, [])))
