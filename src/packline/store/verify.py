"""Verify a store from its own files: whole, consistent with each other, and with nothing lost.

    manifest ── names ──> every file: size, checksum; no stray ones
        │                    └─ shards: tokens, index, provenance (shard_check), rejects
        ├── is the sum of ── receipts: units without a gap, ledgers that balance (receipts_check)
        │                    └─ each equal to what is counted in its unit's shards and rejects
        └── agrees with ──── tokenizer: fingerprint, vocabulary, EOD, BOS, dtype

All problems are collected; none of them hides the others. `deep` continues with the inputs and the reference
tokenizer (`reencode_audit`). Cost: every byte is read once, about 2 GB/s per core, by a thread per core;
memory is bounded.

Limits: does not repair anything. A store that was built wrong throughout, with matching checksums, can be
detected only by comparison with the inputs, and `deep` compares a part of them. A slice of a store checks its
units alone, and what they need: its report says that it is one.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from packline.encoders.special_tokens import control_ids, resolve_boundary
from packline.errors import CorruptStore, PacklineError, RecipeError, refuse_unknown_names
from packline.ragged import dtype_for
from packline.recipe import parse_columns
from packline.store.files import StoreFiles, store_files
from packline.store.kept_tokenizer import load_kept_tokenizer
from packline.store.ledger import Ledger, source_names, total
from packline.store.manifest import MANIFEST, Manifest, Receipt, splits_of
from packline.store.manifest_check import read_manifest, read_manifest_file
from packline.store.receipts_check import ReceiptsCheck, check_rejects
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import ShardOrigin, TokenRules, check_file, check_shard
from packline.store.tables import RECEIPTS, REJECTS, TOKENIZER, UNIT_FILES
from packline.store.walk import WHOLE, Slice, StoreUnit, check_units, units_of


def check_kept_tokenizer(store: StoreFiles, manifest: Manifest, findings: Findings) -> tuple[int, ...] | None:
    """Check the tokenizer kept with a store; its control ids, or None if it cannot be read."""
    entry = manifest.tokenizer
    whole = [check_file(store, file, findings) for file in manifest.tokenizer_files]
    name = f"{TOKENIZER}/tokenizer.json"
    files = {file.name: file for file in manifest.tokenizer_files}
    if name not in files:
        findings.add(MANIFEST, "tokenizer_files", name, "not among them")
        return None
    if not all(whole):
        return None
    try:
        tokenizer = load_kept_tokenizer(store, manifest.tokenizer_files)
        boundary = resolve_boundary(tokenizer, entry.eod, entry.bos)
        fingerprint, control = tokenizer.fingerprint, control_ids(tokenizer)
    except PacklineError as error:
        findings.add(name, str(error))
        return None
    findings.compare(name, "fingerprint", entry.fingerprint, fingerprint)
    findings.compare(name, "vocabulary", entry.vocab_size, tokenizer.vocab_size)
    findings.compare(name, f"id of EOD {entry.eod}", entry.eod_id, boundary.eod_id)
    findings.compare(name, f"id of BOS {entry.bos}", entry.bos_id, boundary.bos_id)
    findings.compare(MANIFEST, "dtype", dtype_for(tokenizer.vocab_size).name, manifest.dtype)
    for role, asked, token, number in (
        ("eod", manifest.recipe.eod, entry.eod, entry.eod_id),
        ("bos", manifest.recipe.bos, entry.bos, entry.bos_id),
    ):
        if asked is not None and asked not in (token, number):
            findings.add(MANIFEST, f"{role} of the recipe and of the tokenizer", asked, token)
    return control


SHARD_FILE = re.compile(r"(train|val|test)-.*|.*\.(bin|idx|docs\.parquet|loss|sums)")
COUNTED = ("documents", "tokens", "text_bytes", "eod_tokens", "bos_tokens", "text_tokens")
"""Fields of a ledger that can be counted again from shards."""


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
    findings = Findings(slice)
    manifest = _read_manifest(files, findings)
    if manifest is None:
        return findings.report(None, time.perf_counter() - started)
    findings.expect(_bytes_of(manifest, slice), on_progress)
    control_ids = check_kept_tokenizer(files, manifest, findings)
    receipts = ReceiptsCheck(files, manifest, findings)
    receipts.read(slice)
    if slice[0] == 0:
        receipts.check_together()
    check = _UnitCheck(files, manifest, control_ids or (), receipts.by_unit)
    readable = set(chain.from_iterable(check_units(files, manifest, check.run, findings, slice)))
    if slice[0] == 0:
        check_strays(files, manifest, findings)
    deep_report = None
    if deep and control_ids is not None:
        from packline.store.reencode_audit import reencode_audit

        tokenizer = load_kept_tokenizer(files, manifest.tokenizer_files)
        deep_report = reencode_audit(files, manifest, tokenizer, readable, receipts.pieces(), findings)
    return findings.report(deep_report, time.perf_counter() - started)


def _bytes_of(manifest: Manifest, slice: Slice) -> int:
    """Bytes that the check of a slice reads, but for the manifest."""
    if slice == WHOLE:
        return manifest.store_bytes
    read = sum(file.bytes for file in (*manifest.tokenizer_files, *manifest.tables))
    for unit in units_of(manifest, slice):
        read += sum(file.bytes for file in unit.files)
        if slice[0] and unit.receipt is not None:
            read += unit.receipt.bytes
    return read if slice[0] else read + manifest.units.bytes_by_file()["receipt"]


def _read_manifest(files: StoreFiles, findings: Findings) -> Manifest | None:
    """Manifest and tables; None, with the problems, if they cannot be read."""
    try:
        listed = read_manifest_file(files)
    except CorruptStore as error:
        findings.add(MANIFEST, str(error))
        return None
    whole = [check_file(files, table, findings) for table in listed.tables]
    if not all(whole):
        return None
    try:
        return read_manifest(files)
    except CorruptStore as error:
        named = (table.name for table in listed.tables if files.path(table.name) in str(error))
        findings.add(next(named, MANIFEST), str(error))
        return None


class _UnitCheck:
    """Check of one unit after another: its shards and rejects, and both with the ledger of its receipt."""

    def __init__(
        self, files: StoreFiles, manifest: Manifest, control: tuple[int, ...], receipts: dict[str, Receipt]
    ) -> None:
        self._files, self._receipts = files, receipts
        self._imported, self._splits = manifest.imported_sources, splits_of(manifest.recipe)
        entry = manifest.tokenizer
        if manifest.recipe.special_tokens == "parse":
            control = ()
        self._rules = TokenRules(
            np.dtype(manifest.dtype).newbyteorder("<"),
            entry.vocab_size,
            entry.eod_id,
            entry.bos_id,
            tuple(number for number in control if 0 <= number < entry.vocab_size),
        )
        # Imported documents may be in any split, may be empty, and may have control tokens anywhere.
        self._imported_rules = replace(self._rules, control_ids=(), least_text_bytes=0)
        names = source_names(manifest.recipe)
        inputs: dict[str, set[str]] = {name: set() for name in names}
        for source, name in zip(manifest.inputs.names("source"), manifest.inputs.names("name"), strict=True):
            inputs[source].add(name)
        self._origins = {
            name: ShardOrigin(
                name, source.label, frozenset(inputs[name]), tuple(parse_columns(source.columns or (), name))
            )
            for name, source in zip(names, manifest.recipe.sources, strict=True)
        }

    def run(self, unit: StoreUnit, findings: Findings) -> list[str]:
        """Check a unit; names of its shards whose documents can be read."""
        receipt, is_imported = self._receipts.get(unit.name), unit.source in self._imported
        origin = None if receipt is None else self._origins[receipt.source]
        rules = self._imported_rules if is_imported else self._rules
        counted = []
        for shard in unit.shards:
            if shard.split not in self._splits and not is_imported:
                expected = " or ".join(self._splits)
                findings.add(MANIFEST, f"split of shard {shard.name}", expected, shard.split)
            counted.append(check_shard(self._files, shard, rules, origin, findings))
        whole = [one for one in counted if one is not None]
        rejected = self._count_rejects(unit, findings)
        if receipt is not None:
            name = f"{RECEIPTS}/{unit.name}.json"
            if len(whole) == len(counted) == len(receipt.shards):
                _compare_counts(findings, name, receipt.ledger, total(whole))
            if rejected is not None:
                what = "rejected, as counted in rejects/"
                findings.compare(name, what, rejected, receipt.ledger.rejected)
        return [shard.name for shard, found in zip(unit.shards, counted, strict=True) if found is not None]

    def _count_rejects(self, unit: StoreUnit, findings: Findings) -> dict[str, int] | None:
        """Bad records by reason; None if the rejects are damaged."""
        whole = [check_file(self._files, entry, findings) for entry in unit.rejects]
        if not unit.rejects:
            return {}
        if not all(whole) or len(whole) != len(UNIT_FILES) - 1:
            return None
        raw, lines = unit.rejects
        return check_rejects(self._files.local(lines), lines.name, raw.bytes, findings)


def check_strays(files: StoreFiles, manifest: Manifest, findings: Findings) -> None:
    """Report files that are named like the store's but not listed."""
    known = {entry.name for entry in manifest.files()}
    for place in ("", RECEIPTS, REJECTS, TOKENIZER):
        for name in files.names_in(place):
            inner = name.rpartition("/")[2]
            if name not in known and (place or SHARD_FILE.fullmatch(inner)):
                findings.add(name, "a stray file", "nothing", "a file that the manifest does not name")


def _compare_counts(findings: Findings, name: str, ledger: Ledger, counted: Ledger) -> None:
    """Compare a unit's ledger with the counts from its shards."""
    for field in COUNTED:
        expected, found = getattr(counted, field), getattr(ledger, field)
        findings.compare(name, f"{field}, as counted in its shards", expected, found)
    if ledger.mask:
        trained = counted.mask.trained_tokens if counted.mask else 0
        what = "trained tokens, as counted in its shards"
        findings.compare(name, what, trained, ledger.mask.trained_tokens)
