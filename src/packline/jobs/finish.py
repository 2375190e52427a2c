"""Finish of a build: the manifest as a pure function of the plan and the receipts.

    .packline/plan.zst, receipts/, tokenizer/  ──>  tables, manifest.json

No input is read, so any process may do it, any number of times, also two at once: all write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from packline.encoders.reference import Reference, RoundTrip
from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer
from packline.errors import StoreError, StoreNotFound
from packline.jobs.begun import BegunBuild, Unit, read_begun
from packline.jobs.folder import TOKENIZER_FILE, StoreFolder
from packline.jobs.identity import record_etags
from packline.jobs.limits import in_order, read_share
from packline.jobs.receipts import CommittedReceipts
from packline.recipe import is_limited
from packline.store.ledger import source_names
from packline.store.manifest import Manifest, Receipt, StreamReceipt, assemble, join_checksums, refuse_empty
from packline.store.tables import TOKENIZER, InputEntry, Picked
from packline.toml import refuse_toml


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


def finalize_store(place: str) -> Manifest:
    """Publish the store at a place, all units of which are committed; any number of times, by anyone.

    The inputs are not needed.

    Raises:
        StoreNotFound: no build has begun there.
        StoreError: units are missing, or a limit applies to the whole build, which only the build can do.
        NoDocuments: the store is complete, and empty.
    """
    folder = StoreFolder(place)
    folder.shared, folder.drives = True, False
    if not folder.exists():
        refuse_toml(place, "the folder of a build")
        raise StoreNotFound(f"no build has begun in {place}", hint="packline build begins one")
    with folder:
        if (manifest := folder.finished()) is None:
            begun = read_begun(folder.storage)
            if begun is None:
                raise StoreError(f"{place} has no plan of a build", hint="run the build again")
            if is_limited(begun.recipe):
                raise StoreError(
                    f"{place}: a limit of documents or tokens needs the build itself to be applied",
                    hint="run the build again; it publishes the store",
                )
            manifest = make_manifest(
                folder, begun, folder.read_receipts(), _round_trip(folder, begun), read_share(folder)
            )
            publish_store(folder, manifest, begun)
        folder.clean()
    refuse_empty(place, manifest)
    return manifest


def _round_trip(folder: StoreFolder, begun: BegunBuild) -> RoundTrip:
    """Exactness of decoding by the tokenizer of the store: a function of its bytes."""
    entry = begun.tokenizer
    text = folder.storage.read(TOKENIZER_FILE).decode()
    tokenizer = Tokenizer(
        name=entry.name, kind="huggingface", json=text, vocab_size=entry.vocab_size, special_tokens={}
    )
    parse = begun.recipe.special_tokens == "parse"
    return Reference(text if parse else without_special_tokens(tokenizer)).round_trip


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
