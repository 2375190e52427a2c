"""Finish of a build: the manifest as a pure function of the plan and the receipts.

    .packline/plan.zst, receipts/, tokenizer/  ──>  tables, manifest.json

No input is read, so any process may do it, any number of times, also two at once: all write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from packline.encoders.parity import RoundTrip
from packline.errors import StoreError
from packline.jobs.begun import BegunBuild, Unit
from packline.jobs.folder import StoreFolder
from packline.jobs.identity import record_etags
from packline.jobs.limits import in_order
from packline.jobs.receipts import CommittedReceipts
from packline.recipe import is_limited
from packline.store.ledger import source_names
from packline.store.manifest import Manifest, Receipt, StreamReceipt, assemble, join_checksums
from packline.store.tables import TOKENIZER, InputEntry, Picked


def missing_units(begun: BegunBuild, committed: CommittedReceipts) -> int:
    """Number of planned units and streams that are not committed."""
    missing = 0
    for unit in begun.units:
        if isinstance(unit, Unit):
            missing += unit.name not in committed.receipts
        else:
            slices = committed.streams[unit.name].units if unit.name in committed.streams else 1
            missing += any(unit.unit_name(number) not in committed.receipts for number in range(slices))
            missing += unit.name not in committed.streams
    return missing


def make_manifest(
    folder: StoreFolder,
    begun: BegunBuild,
    committed: CommittedReceipts,
    round_trip: RoundTrip,
    val_share: float | msgspec.UnsetType = msgspec.UNSET,
) -> Manifest:
    """Manifest of the store whose units are committed.

    Raises:
        StoreError: units are missing.
    """
    ordered = Picked(committed.receipts, in_order(begun, committed.receipts, committed.streams))
    if not is_limited(begun.recipe) and (missing := missing_units(begun, committed)):
        raise StoreError(
            f"{folder.place}: {missing:,} of {len(begun.units):,} units are not committed",
            hint="run the build again to finish them",
        )
    return assemble(
        ordered,
        recipe=begun.recipe,
        tokenizer=msgspec.structs.replace(begun.tokenizer, round_trip=round_trip),
        dtype=begun.dtype,
        inputs=_with_checksums(begun, ordered, committed.streams.values()),
        receipt_files=committed.entries(ordered.keys),
        tokenizer_files=[folder.entry(name) for name in folder.storage.list(TOKENIZER)],
        streams=committed.streams,
        imported=() if begun.imported is None else (begun.imported,),
        val_share=val_share,
    )


def publish_store(folder: StoreFolder, manifest: Manifest, begun: BegunBuild) -> None:
    """Write the tables and the manifest, then delete what they do not name, where that may be."""
    record_etags(manifest, source_names(begun.recipe), begun.files)
    folder.publish(manifest)
    folder.drop_unlisted(manifest)


def _with_checksums(
    begun: BegunBuild, receipts: Iterable[Receipt], streams: Iterable[StreamReceipt]
) -> Iterable[InputEntry]:
    """Inputs, with the checksums of the pieces that units have read."""
    names = source_names(begun.recipe)
    numbers = {(names[file.source], file.name): number for number, file in enumerate(begun.files)}
    checksums: dict[int, list[str]] = {}
    for receipt in receipts:
        for piece in receipt.inputs:
            checksums.setdefault(numbers[receipt.source, piece.file], []).append(piece.checksum)
    for stream in streams:
        checksums.setdefault(numbers[stream.source, stream.file], []).append(stream.checksum)
    for number, entry in enumerate(begun.inputs()):
        yield msgspec.structs.replace(entry, checksum=join_checksums(checksums.get(number, [])))
