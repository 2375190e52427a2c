"""Check receipts and rejects: the manifest is their sum, no unit is missing, and each input was read once.

Memory is that of the receipts, a few hundred bytes per unit. Raw bytes of rejects are not read.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from packline.recipe import is_limited
from packline.store.files import StoreFiles
from packline.store.ledger import Ledger, source_names, totals_by_source
from packline.store.manifest import (
    MANIFEST,
    WHOLE_STREAM,
    InputPiece,
    Manifest,
    Receipt,
    StreamReceipt,
    join_checksums,
)
from packline.store.naming import STREAM, parse_unit, source_slugs
from packline.store.report import Findings
from packline.store.shard_check import check_file
from packline.store.tables import RECEIPTS, SHARDS, UNITS
from packline.store.walk import WHOLE, Slice, units_of
from packline.store.writer import RejectEntry


class Receipts(NamedTuple):
    """Receipts of a store that were read."""

    by_unit: dict[str, Receipt]
    streams: dict[str, StreamReceipt]
    complete: bool
    """False if one cannot be read: then sums over the others are meaningless."""

    def pieces(self) -> dict[tuple[str, str], list[InputPiece]]:
        """Pieces of each input file that units read, by the names of its source and of the file."""
        taken: dict[tuple[str, str], list[InputPiece]] = {}
        for receipt in self.by_unit.values():
            for piece in receipt.inputs:
                taken.setdefault((receipt.source, piece.file), []).append(piece)
        for stream in self.streams.values():
            whole = InputPiece(stream.file, 0, WHOLE_STREAM, stream.checksum)
            taken.setdefault((stream.source, stream.file), []).append(whole)
        return taken


def read_receipts(
    files: StoreFiles, manifest: Manifest, findings: Findings, slice: Slice = WHOLE
) -> Receipts:
    """Read receipts, and check that each is whole, is where it belongs, and has a ledger that balances."""
    names, limited = source_names(manifest.recipe), is_limited(manifest.recipe)
    slugs = source_slugs(names)
    places: dict[str, tuple[int, int, int]] = {}
    receipts: dict[str, Receipt] = {}
    streams: dict[str, StreamReceipt] = {}
    listed = 0
    for unit in units_of(manifest, slice if slice[0] else WHOLE):
        if (entry := unit.receipt) is None:
            continue
        listed += 1
        data, where = bytearray(), entry.name
        if not check_file(files, entry, findings, data.extend):
            continue
        try:
            if unit.name.endswith(STREAM):
                streams[unit.name.removesuffix(STREAM)] = msgspec.json.decode(data, type=StreamReceipt)
                continue
            receipt = msgspec.json.decode(data, type=Receipt)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            findings.add(where, f"not a receipt: {error}")
            continue
        findings.compare(where, "unit", unit.name, receipt.unit)
        parsed = parse_unit(unit.name)
        if parsed is None or parsed.slug not in slugs:
            findings.add(where, "name", "a source of the recipe and the number of a unit", unit.name)
            continue
        source = slugs.index(parsed.slug)
        if not findings.compare(where, "source", names[source], receipt.source):
            continue
        receipts[unit.name], places[unit.name] = receipt, (source, *parsed.place)
        for problem in receipt.ledger.imbalance():
            findings.add(where, f"the ledger does not balance: {problem}")
        if not receipt.complete and not limited:
            findings.add(where, "the unit was ended by a limit, and the recipe has none")
    ordered = {name: receipts[name] for name in sorted(receipts, key=places.__getitem__)}
    return Receipts(ordered, streams, len(receipts) + len(streams) == listed)


def check_receipts(manifest: Manifest, receipts: Receipts, findings: Findings) -> None:
    """Check what concerns all receipts: their sums, their numbers, and the inputs that they have read."""
    for problem in manifest.ledger.imbalance():
        findings.add(MANIFEST, f"the ledger does not balance: {problem}")
    names = source_names(manifest.recipe)
    findings.compare(MANIFEST, "sources", names, list(manifest.sources))
    _compare_ledgers(findings, manifest.ledger, sum(manifest.sources.values(), Ledger()), "of all sources")
    if receipts.complete:  # otherwise reported already; the sums of the others would only repeat it
        _check_sums(manifest, names, receipts.by_unit, findings)
        _check_units_without_gap(manifest, names, receipts, findings)
        _check_inputs(manifest, receipts.pieces(), findings)


def _check_sums(
    manifest: Manifest, names: list[str], receipts: dict[str, Receipt], findings: Findings
) -> None:
    """Check that the manifest and its tables are the sum of the receipts."""
    sums = totals_by_source(names, ((one.source, one.ledger) for one in receipts.values()))
    for name, ledger in sums.items():
        said = manifest.sources.get(name, Ledger())
        _compare_ledgers(findings, said, ledger, f"of source {name} in receipts/")
    # Sources may alternate; the shards of each are in the order of its units.
    shards = [shard for receipt in receipts.values() for shard in receipt.shards]
    sources = manifest.shards.names("source")
    pairs = sorted(zip(map(names.index, sources), manifest.shards, strict=True), key=itemgetter(0))
    listed = [shard for _, shard in pairs]
    if shards != listed:
        differing = sorted({one.name for one in listed} ^ {one.name for one in shards}) or [
            one.name for one, other in zip(shards, listed, strict=True) if one != other
        ]
        findings.add(SHARDS, "shards are not those of the receipts", "the same", differing[0])
    for unit in manifest.units:
        if (receipt := receipts.get(unit.unit)) is not None:
            name = f"rejects of unit {unit.unit} are those of its receipt"
            findings.compare(UNITS, name, True, unit.rejects == receipt.rejects)
            findings.compare(UNITS, f"source of unit {unit.unit}", receipt.source, unit.source)


def _check_units_without_gap(
    manifest: Manifest, names: list[str], receipts: Receipts, findings: Findings
) -> None:
    """Check that no unit is missing: units are numbered, and a stream's receipt declares their number."""
    slices: dict[str, list[int]] = {name: [] for name in receipts.streams}
    for unit in map(parse_unit, receipts.by_unit):
        assert unit is not None
        slices.setdefault(unit.planned, []).extend([] if unit.slice is None else [unit.slice])
    planned: dict[str, list[int]] = {slug: [] for slug in source_slugs(names)}
    for unit in map(parse_unit, slices):
        if unit is None or unit.slug not in planned:
            findings.add(RECEIPTS, "name of a stream", "a source of the recipe and a number", str(unit))
            return
        planned[unit.slug].append(unit.number)
    for slug, numbers in planned.items():
        expected = list(range(len(numbers)))
        findings.compare(RECEIPTS, f"units of {slug} without a gap", expected, sorted(numbers))
    for name, found in slices.items():
        stream = receipts.streams.get(name)
        count = len(found) if stream is None or is_limited(manifest.recipe) else stream.units
        findings.compare(RECEIPTS, f"units of stream {name}", list(range(count)), sorted(found))


def _check_inputs(
    manifest: Manifest, pieces: dict[tuple[str, str], list[InputPiece]], findings: Findings
) -> None:
    """Check that units read all of each input, once, with the checksum in the manifest."""
    for entry in manifest.inputs:
        read = pieces.pop((entry.source, entry.name), [])
        whole = join_checksums([piece.checksum for piece in read])
        findings.compare(MANIFEST, f"checksum of input {entry.name}", whole, entry.checksum)
        if is_limited(manifest.recipe):
            continue
        if not read:
            findings.add(MANIFEST, f"input {entry.name}", "read by some unit", "by none")
        end = 0
        spans = [piece for piece in read if piece.stop != WHOLE_STREAM]
        for piece in spans:
            findings.compare(RECEIPTS, f"units of input {entry.name}: the next begins at", end, piece.start)
            end = piece.stop
        if spans and entry.format != "parquet":
            findings.compare(RECEIPTS, f"units of input {entry.name}: bytes", entry.bytes, end)
    for source, name in pieces:
        findings.add(RECEIPTS, f"input {name} of source {source}", "one that the manifest lists", "none")


def _compare_ledgers(findings: Findings, said: Ledger, found: Ledger, of: str) -> None:
    for field in Ledger.__struct_fields__:
        findings.compare(MANIFEST, f"{field}: the sum {of}", getattr(found, field), getattr(said, field))


def check_rejects(path: Path, name: str, raw_bytes: int, findings: Findings) -> dict[str, int] | None:
    """Check a unit's entries against the size of its raw file.

    Returns:
        Records by reason, in order of the reasons; None if the entries cannot be read.
    """
    decoder = msgspec.json.Decoder(RejectEntry)
    reasons: Counter[str] = Counter()
    end = 0
    try:
        with open(path, "rb") as file:
            for entry in map(decoder.decode, file):
                place = f"offset of {entry.file} at {entry.position}"
                if not findings.compare(name, place, end, entry.offset):
                    return None
                end += entry.bytes
                reasons[entry.reason] += entry.records
    except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
        findings.add(name, f"not entries of rejects: {error}")
        return None
    findings.compare(name, "bytes of all records together", raw_bytes, end)
    return dict(sorted(reasons.items()))
