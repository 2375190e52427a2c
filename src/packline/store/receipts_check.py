"""Check the receipts and rejects of a store: whole, none missing, and summing up to the manifest.

    receipts/ ──┬── ledgers balance, and add up to those of the manifest
                ├── shards and rejects are those that the manifest lists
                ├── units of a source are numbered without a gap, for a stream as many as its receipt declares
                └── the parts of each input that units read cover it once, with its checksum

    rejects/    ──  UNIT.jsonl   offset, bytes, reason, records of each bad record
                    UNIT.raw     the records themselves, concatenated: entry i ends where entry i + 1 begins

Memory is that of the receipts, a few hundred bytes per unit. Rejects take one pass over the entries in blocks
of 1 MiB, decoded in native code; their raw bytes are not read. Shards are compared with the ledgers in
`verify`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from packline.recipe import is_limited
from packline.store.files import FileEntry, StoreFiles
from packline.store.ledger import Ledger, source_names, total, totals_by_source
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


class ReceiptsCheck:
    """Receipts of a store, and the problems found in them."""

    def __init__(self, files: StoreFiles, manifest: Manifest, findings: Findings) -> None:
        self.by_unit: dict[str, Receipt] = {}
        """Receipts by name of the unit, in the order of their documents."""
        self.streams: dict[str, StreamReceipt] = {}
        self.complete = True
        """False if one cannot be read: then sums over the others are meaningless."""
        self._files, self._manifest, self._findings = files, manifest, findings
        self._names = source_names(manifest.recipe)
        self._slugs = source_slugs(self._names)
        self._limited = is_limited(manifest.recipe)

    def check_together(self) -> None:
        """Check what concerns all receipts, once all of them are read."""
        self._check_sums()
        self._check_units_without_gap()
        self._check_inputs()

    def read(self, slice: Slice = WHOLE) -> None:
        """Read receipts and check that each is whole and its ledger balances.

        Args:
            slice: only those of its units; slice 0 reads all, as it checks them together.
        """
        for listed in units_of(self._manifest, slice if slice[0] else WHOLE):
            if listed.receipt is not None and not self._take(listed.receipt):
                self.complete = False
        self.by_unit = dict(sorted(self.by_unit.items(), key=lambda item: self._place(item[0])))

    def _take(self, entry: FileEntry) -> bool:
        """Read and check a receipt; False if it cannot be relied on."""
        findings, name = self._findings, Path(entry.name).stem
        if not check_file(self._files, entry, findings):
            return False
        try:
            data = self._files.local(entry).read_bytes()
            if (stream := name.removesuffix(STREAM)) != name:
                self.streams[stream] = msgspec.json.decode(data, type=StreamReceipt)
                return True
            receipt = msgspec.json.decode(data, type=Receipt)
        except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
            findings.add(entry.name, f"not a receipt: {error}")
            return False
        findings.compare(entry.name, "unit", name, receipt.unit)
        source = self._place(name)[0]
        if source < 0:
            findings.add(entry.name, "name", "a source of the recipe and the number of a unit", name)
            return False
        if not findings.compare(entry.name, "source", self._names[source], receipt.source):
            return False
        self.by_unit[name] = receipt
        for problem in receipt.ledger.imbalance():
            findings.add(entry.name, f"the ledger does not balance: {problem}")
        if not receipt.complete and not self._limited:
            findings.add(entry.name, "the unit was ended by a limit, and the recipe has none")
        return True

    def _place(self, name: str) -> tuple[int, int, int]:
        """Place of a unit among all: its source, number and slice; source -1 for what is no unit."""
        unit = parse_unit(name)
        if unit is None or unit.slug not in self._slugs:
            return -1, 0, 0
        return self._slugs.index(unit.slug), *unit.place

    def _check_sums(self) -> None:
        """Check that the manifest is the sum of the receipts."""
        manifest, findings = self._manifest, self._findings
        for problem in manifest.ledger.imbalance():
            findings.add(MANIFEST, f"the ledger does not balance: {problem}")
        findings.compare(MANIFEST, "sources", self._names, list(manifest.sources))
        _compare_ledgers(
            findings, MANIFEST, manifest.ledger, total(manifest.sources.values()), "of all sources"
        )
        if not self.complete:
            return  # reported already; the sums of the others would only repeat it
        receipts = self.by_unit.values()
        sums = totals_by_source(self._names, ((receipt.source, receipt.ledger) for receipt in receipts))
        for name, ledger in sums.items():
            said = manifest.sources.get(name, Ledger())
            _compare_ledgers(findings, MANIFEST, said, ledger, f"of source {name} in receipts/")
        # Sources may alternate; the shards of each are in the order of its units.
        shards = [shard for receipt in receipts for shard in receipt.shards]
        listed = sorted(manifest.shards, key=lambda shard: self._place(shard.name.partition("-")[2])[0])
        if shards != listed:
            differing = sorted({one.name for one in listed} ^ {one.name for one in shards}) or [
                one.name for one, other in zip(shards, listed, strict=True) if one != other
            ]
            findings.add(SHARDS, "shards are not those of the receipts", "the same", differing[0])
        for unit in manifest.units:
            receipt = self.by_unit.get(unit.unit)
            if receipt is not None:
                name = f"rejects of unit {unit.unit} are those of its receipt"
                findings.compare(UNITS, name, True, unit.rejects == receipt.rejects)
                findings.compare(UNITS, f"source of unit {unit.unit}", receipt.source, unit.source)

    def _check_units_without_gap(self) -> None:
        """Check that no unit is missing: units are numbered, and a stream's receipt declares their number."""
        if not self.complete:
            return
        findings = self._findings
        slices: dict[str, list[int]] = {name: [] for name in self.streams}
        for unit in map(parse_unit, self.by_unit):
            assert unit is not None
            slices.setdefault(unit.planned, []).extend([] if unit.slice is None else [unit.slice])
        planned: dict[str, list[int]] = {slug: [] for slug in self._slugs}
        for unit in map(parse_unit, slices):
            if unit is None or unit.slug not in planned:
                findings.add(RECEIPTS, "name of a stream", "a source of the recipe and a number", str(unit))
                return
            planned[unit.slug].append(unit.number)
        for slug, numbers in planned.items():
            expected = list(range(len(numbers)))
            findings.compare(RECEIPTS, f"units of {slug} without a gap", expected, sorted(numbers))
        for name, found in slices.items():
            stream = self.streams.get(name)
            count = stream.units if stream is not None and not self._limited else len(found)
            findings.compare(RECEIPTS, f"units of stream {name}", list(range(count)), sorted(found))

    def _check_inputs(self) -> None:
        """Check that units read all of each input, once, with the checksum in the manifest."""
        if not self.complete:
            return
        findings = self._findings
        pieces = self.pieces()
        for entry in self._manifest.inputs:
            read = pieces.pop((entry.source, entry.name), [])
            parts = [piece.checksum for piece in read]
            whole = join_checksums(parts)
            findings.compare(MANIFEST, f"checksum of input {entry.name}", whole, entry.checksum)
            if self._limited:
                continue
            if not parts:
                findings.add(MANIFEST, f"input {entry.name}", "read by some unit", "by none")
            end = 0
            spans = [piece for piece in read if piece.stop != WHOLE_STREAM]
            for piece in spans:
                findings.compare(
                    RECEIPTS, f"units of input {entry.name}: the next begins at", end, piece.start
                )
                end = piece.stop
            if spans and entry.format != "parquet":
                findings.compare(RECEIPTS, f"units of input {entry.name}: bytes", entry.bytes, end)
        for source, name in pieces:
            findings.add(RECEIPTS, f"input {name} of source {source}", "one that the manifest lists", "none")

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


def _compare_ledgers(findings: Findings, name: str, said: Ledger, found: Ledger, of: str) -> None:
    for field in Ledger.__struct_fields__:
        findings.compare(name, f"{field}: the sum {of}", getattr(found, field), getattr(said, field))


BLOCK_BYTES = 1 << 20


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
            while lines := file.readlines(BLOCK_BYTES):
                entries = decoder.decode_lines(b"".join(lines))
                count = len(entries)
                offsets = np.fromiter((entry.offset for entry in entries), np.int64, count)
                sizes = np.fromiter((entry.bytes for entry in entries), np.int64, count)
                expected = np.concatenate([[end], (offsets + sizes)[:-1]])
                if len(wrong := np.flatnonzero(offsets != expected)):
                    at = int(wrong[0])
                    place = f"offset of {entries[at].file} at {entries[at].position}"
                    findings.add(name, place, int(expected[at]), int(offsets[at]))
                    return None
                end = int(offsets[-1] + sizes[-1])
                for entry in entries:
                    reasons[entry.reason] += entry.records
    except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
        findings.add(name, f"not entries of rejects: {error}")
        return None
    findings.compare(name, "bytes of all records together", raw_bytes, end)
    return dict(sorted(reasons.items()))
