"""Verify a store from its own files: whole, consistent with each other, and with nothing lost.

All problems are collected. Every byte is read once, about 2 GB/s per core, by a thread per core; memory is
bounded. A store that was built wrong throughout, with matching checksums, can be detected only by comparison
with the inputs: `deep` compares a part of them (`reencode_audit`).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from packline.encoders.special_tokens import control_ids, resolve_boundary
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore, PacklineError, RecipeError, refuse_unknown_names
from packline.ragged import dtype_for
from packline.recipe import is_limited, parse_columns
from packline.storage.requests import in_threads
from packline.store.files import StoreFiles, store_files
from packline.store.ledger import Ledger, source_names, totals_by_source
from packline.store.manifest import (
    MANIFEST,
    WHOLE,
    WHOLE_STREAM,
    InputPiece,
    Manifest,
    Receipt,
    Slice,
    StoreUnit,
    StreamReceipt,
    join_checksums,
    load_kept_tokenizer,
    splits_of,
    units_of,
)
from packline.store.manifest_check import read_manifest, read_manifest_file
from packline.store.naming import STREAM, parse_unit, source_slugs
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import ShardOrigin, TokenRules, check_file, check_shard
from packline.store.tables import INPUTS, RECEIPTS, REJECTS, SHARDS, TOKENIZER, UNITS
from packline.store.writer import RejectEntry


def _check_kept_tokenizer(store: StoreFiles, manifest: Manifest, findings: Findings) -> Tokenizer | None:
    """Check the tokenizer kept with a store, and load it; None if it cannot be read."""
    entry = manifest.tokenizer
    whole = [check_file(store, file, findings) for file in manifest.tokenizer_files]
    name = f"{TOKENIZER}/tokenizer.json"
    if name not in {file.name for file in manifest.tokenizer_files}:
        findings.add(MANIFEST, "tokenizer_files", name, "not among them")
        return None
    if not all(whole):
        return None
    try:
        tokenizer = load_kept_tokenizer(store, manifest.tokenizer_files)
        boundary = resolve_boundary(tokenizer, entry.eod, entry.bos)
        fingerprint = tokenizer.fingerprint
        control_ids(tokenizer)
    except PacklineError as error:
        findings.add(name, str(error))
        return None
    findings.compare(name, "fingerprint", entry.fingerprint, fingerprint)
    findings.compare(name, "vocabulary", entry.vocab_size, tokenizer.vocab_size)
    findings.compare(name, f"id of EOD {entry.eod}", entry.eod_id, boundary.eod_id)
    findings.compare(name, f"id of BOS {entry.bos}", entry.bos_id, boundary.bos_id)
    findings.compare(MANIFEST, "dtype", dtype_for(tokenizer.vocab_size).name, manifest.dtype)
    for role in ("eod", "bos"):
        asked, token = getattr(manifest.recipe, role), getattr(entry, role)
        if asked is not None and asked not in (token, getattr(entry, f"{role}_id")):
            findings.add(MANIFEST, f"{role} of the recipe and of the tokenizer", asked, token)
    return tokenizer


SHARD_FILE = re.compile(r"(train|val|test)-.*|.*\.(bin|idx|docs\.parquet|loss|sums)")
COUNTED = ("documents", "tokens", "text_bytes", "eod_tokens", "bos_tokens", "text_tokens")


@refuse_unknown_names
def verify(
    path: str | Path | StoreFiles,
    *,
    deep: bool = False,
    slice: Slice = WHOLE,
    on_progress: OnProgress | None = None,
) -> Report:
    """Check a finished store from its files alone.

    Args:
        path: folder of the store, or its URI.
        deep: also read the inputs again, if they can be found, and compare a spread of documents of every
            shard with the reference tokenizer, id by id.
        slice: `(i, n)`: check only slice i of n, from 0, so that n machines share the work. Each checks the
            manifest, the tokenizer, and every n-th unit; slice 0 also what concerns all of them: their
            receipts together, and stray files. The store is whole if no slice has a problem.
        on_progress: called with the number of bytes read and the total bytes of the store, or of the slice.

    Returns:
        A report with every problem; `report.ok` if there are none.

    Raises:
        StoreNotFound: there is no finished store.
        StoreError: it is of another format, and was not checked.
        RecipeError: there is no such slice.

    >>> verify("nowhere")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: nowhere does not exist
    """
    if not 0 <= slice[0] < slice[1]:
        raise RecipeError(f"the slice is {slice}: expected (i, n), with i from 0 to n-1")
    started = time.perf_counter()
    files = store_files(path).fresh()  # as it is there, not as it is in the cache
    findings, deep_report = Findings(slice), None
    manifest = None
    try:
        whole = [check_file(files, table, findings) for table in read_manifest_file(files).tables]
        if all(whole):
            manifest = read_manifest(files)
    except CorruptStore as error:
        named = (name for name in (SHARDS, INPUTS, UNITS) if files.path(name) in str(error))
        findings.add(next(named, MANIFEST), str(error))
    if manifest is None:
        return findings.report(None, time.perf_counter() - started)
    findings.expect(_bytes_of(manifest, slice), on_progress)
    tokenizer = _check_kept_tokenizer(files, manifest, findings)
    receipts = read_receipts(files, manifest, findings, slice)
    if slice[0] == 0:
        check_receipts(manifest, receipts, findings)
    check = _unit_check(files, manifest, tokenizer, receipts.by_unit)
    units = units_of(manifest, slice)
    readable: set[str] = set()
    # One file of a remote store is brought at a time, so that few are kept.
    for whole_shards, own in in_threads(check, units) if files.is_local else map(check, units):
        findings.include(own)
        readable |= whole_shards
    if slice[0] == 0:
        _check_strays(files, manifest, findings)
    if deep and tokenizer is not None:
        from packline.store.reencode_audit import reencode_audit

        deep_report = reencode_audit(files, manifest, tokenizer, readable, receipts.pieces(), findings)
    return findings.report(deep_report, time.perf_counter() - started)


def _bytes_of(manifest: Manifest, slice: Slice) -> int:
    """Bytes that the check of a slice reads, but for the manifest."""
    if slice == WHOLE:
        return manifest.store_bytes
    read = sum(file.bytes for file in (*manifest.tokenizer_files, *manifest.tables))
    read += 0 if slice[0] else manifest.units.bytes_by_file()["receipt"]
    for unit in units_of(manifest, slice):
        read += sum(file.bytes for file in unit.files)
        read += unit.receipt.bytes if slice[0] and unit.receipt is not None else 0
    return read


def _unit_check(
    files: StoreFiles, manifest: Manifest, tokenizer: Tokenizer | None, receipts: dict[str, Receipt]
) -> Callable[[StoreUnit], tuple[set[str], Findings]]:
    """Check of one unit: its shards and rejects, and both with the ledger of its receipt."""
    entry, recipe = manifest.tokenizer, manifest.recipe
    imported, splits = manifest.imported_sources, splits_of(recipe)
    control = () if tokenizer is None or recipe.special_tokens == "parse" else control_ids(tokenizer)
    dtype, size = np.dtype(manifest.dtype).newbyteorder("<"), entry.vocab_size
    control = tuple(number for number in control if 0 <= number < size)
    rules = TokenRules(dtype, size, entry.eod_id, entry.bos_id, control)
    # Imported documents may be in any split, may be empty, and may have control tokens anywhere.
    imported_rules = replace(rules, control_ids=(), least_text_bytes=0)
    inputs: dict[str, set[str]] = {name: set() for name in source_names(recipe)}
    for source, name in zip(manifest.inputs.names("source"), manifest.inputs.names("name"), strict=True):
        inputs[source].add(name)
    origins = {
        name: ShardOrigin(name, one.label, inputs[name], tuple(parse_columns(one.columns or (), name)))
        for name, one in zip(inputs, recipe.sources, strict=True)
    }

    def check(unit: StoreUnit) -> tuple[set[str], Findings]:
        """Check a unit: names of its shards whose documents can be read, and what was found."""
        findings = Findings()
        receipt, is_imported = receipts.get(unit.name), unit.source in imported
        origin = None if receipt is None else origins[receipt.source]
        whole: dict[str, Ledger] = {}
        for shard in unit.shards:
            if shard.split not in splits and not is_imported:
                findings.add(MANIFEST, f"split of shard {shard.name}", " or ".join(splits), shard.split)
            found = check_shard(files, shard, imported_rules if is_imported else rules, origin, findings)
            if found is not None:
                whole[shard.name] = found
        sound = [check_file(files, file, findings) for file in unit.rejects]
        rejected = None if sound else dict[str, int]()
        if sound == [True, True]:
            raw, lines = unit.rejects
            rejected = check_rejects(files.local(lines), lines.name, raw.bytes, findings)
        if receipt is not None:
            name = f"{RECEIPTS}/{unit.name}.json"
            if len(whole) == len(unit.shards) == len(receipt.shards):
                _compare_counts(findings, name, receipt.ledger, sum(whole.values(), Ledger()))
            if rejected is not None:
                what = "rejected, as counted in rejects/"
                findings.compare(name, what, rejected, receipt.ledger.rejected)
        return {*whole}, findings

    return check


def _check_strays(files: StoreFiles, manifest: Manifest, findings: Findings) -> None:
    known = {entry.name for entry in manifest.files()}
    for place in ("", RECEIPTS, REJECTS, TOKENIZER):
        for name in files.names_in(place):
            inner = name.rpartition("/")[2]
            if name not in known and (place or SHARD_FILE.fullmatch(inner)):
                findings.add(name, "a stray file", "nothing", "a file that the manifest does not name")


def _compare_counts(findings: Findings, name: str, ledger: Ledger, counted: Ledger) -> None:
    for field in COUNTED:
        expected, found = getattr(counted, field), getattr(ledger, field)
        findings.compare(name, f"{field}, as counted in its shards", expected, found)
    if ledger.mask:
        trained = counted.mask.trained_tokens if counted.mask else 0
        what = "trained tokens, as counted in its shards"
        findings.compare(name, what, trained, ledger.mask.trained_tokens)


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
