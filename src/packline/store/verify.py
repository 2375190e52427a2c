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
detected only by comparison with the inputs, and `deep` compares a part of them.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from packline.encoders.special_tokens import control_ids, resolve_boundary
from packline.errors import CorruptStore, PacklineError, refuse_unknown_names
from packline.ragged import dtype_for
from packline.recipe import parse_columns
from packline.storage.requests import in_threads
from packline.store.files import list_folder
from packline.store.kept_tokenizer import load_kept_tokenizer
from packline.store.ledger import Ledger, source_names
from packline.store.manifest import MANIFEST, Manifest, splits_of
from packline.store.manifest_check import read_manifest, read_manifest_file
from packline.store.paths import StorePath, fresh_path, store_path
from packline.store.receipts_check import ReceiptsCheck, check_rejects
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import ShardCounts, ShardOrigin, TokenRules, check_file, check_shard
from packline.store.tables import RECEIPTS, REJECTS, TOKENIZER, ShardEntry


def check_kept_tokenizer(folder: StorePath, manifest: Manifest, findings: Findings) -> tuple[int, ...] | None:
    """Check the tokenizer kept with a store; its control ids, or None if it cannot be read."""
    entry = manifest.tokenizer
    whole = [check_file(folder, file, findings) for file in manifest.tokenizer_files]
    name = f"{TOKENIZER}/tokenizer.json"
    files = {file.name: file for file in manifest.tokenizer_files}
    if name not in files:
        findings.add(MANIFEST, "tokenizer_files", name, "not among them")
        return None
    if not all(whole):
        return None
    try:
        tokenizer = load_kept_tokenizer(folder, manifest.tokenizer_files)
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
def verify(path: str | StorePath, *, deep: bool = False, on_progress: OnProgress | None = None) -> Report:
    """Check a finished store from its files alone.

    Args:
        path: folder of the store, or its URI.
        deep: also read the inputs again, if they can be found, and compare a spread of documents of every
            shard with the reference tokenizer, id by id.
        on_progress: called with the number of bytes read and the total bytes of the store.

    Returns:
        A report with every problem; `report.ok` if there are none.

    Raises:
        StoreNotFound: there is no finished store.
        StoreError: it is of another format, and was not checked.

    >>> verify("nowhere")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: nowhere does not exist
    """
    started = time.perf_counter()
    folder = store_path(path)
    if not isinstance(folder, Path):  # as it is there, not as it is in the cache
        folder = fresh_path(folder)
    findings = Findings()
    manifest = _read_manifest(folder, findings)
    if manifest is None:
        return findings.report(None, time.perf_counter() - started)
    findings.expect(manifest.store_bytes, on_progress)
    verification = _Verification(folder, manifest, findings)
    verification.run()
    deep_report = None
    if deep and verification.control_ids is not None:
        from packline.store.reencode_audit import reencode_audit

        deep_report = reencode_audit(
            folder,
            manifest,
            load_kept_tokenizer(folder, manifest.tokenizer_files),
            verification.readable,
            verification.receipts.pieces(),
            findings,
        )
    return findings.report(deep_report, time.perf_counter() - started)


def _read_manifest(folder: StorePath, findings: Findings) -> Manifest | None:
    """Manifest and tables; None, with the problems, if they cannot be read."""
    try:
        listed = read_manifest_file(folder)
    except CorruptStore as error:
        findings.add(MANIFEST, str(error))
        return None
    whole = [check_file(folder, table, findings) for table in listed.tables]
    if not all(whole):
        return None
    try:
        return read_manifest(folder)
    except CorruptStore as error:
        named = (table.name for table in listed.tables if str(folder / table.name) in str(error))
        findings.add(next(named, MANIFEST), str(error))
        return None


class _Verification:
    """State of one verification."""

    def __init__(self, folder: StorePath, manifest: Manifest, findings: Findings) -> None:
        self.control_ids: tuple[int, ...] | None = None
        """Ids that no text can become; None if the tokenizer cannot be read."""
        self.readable: set[str] = set()
        """Shards whose documents can be read."""
        self._folder, self._manifest, self._findings = folder, manifest, findings
        self._names = source_names(manifest.recipe)
        self.receipts = ReceiptsCheck(folder, manifest, findings)

    def run(self) -> None:
        """Run all checks."""
        self.control_ids = check_kept_tokenizer(self._folder, self._manifest, self._findings)
        self.receipts.run()
        self._check_units()
        self._check_strays()

    def _check_units(self) -> None:
        """Check every unit's shards and rejects, and the ledger of its receipt."""
        manifest, findings = self._manifest, self._findings
        entry = manifest.tokenizer
        control = self.control_ids or ()
        if manifest.recipe.special_tokens == "parse":
            control = ()
        rules = TokenRules(
            np.dtype(manifest.dtype).newbyteorder("<"),
            entry.vocab_size,
            entry.eod_id,
            entry.bos_id,
            tuple(number for number in control if 0 <= number < entry.vocab_size),
        )
        # Imported documents may be in any split, may be empty, and may have control tokens anywhere.
        imported_rules = replace(rules, control_ids=(), least_text_bytes=0)
        imported, splits = manifest.imported_sources, splits_of(manifest.recipe)
        files: dict[str, set[str]] = {name: set() for name in self._names}
        for source, name in zip(manifest.inputs.names("source"), manifest.inputs.names("name"), strict=True):
            files[source].add(name)
        origins = [
            ShardOrigin(
                name, source.label, frozenset(files[name]), tuple(parse_columns(source.columns or (), name))
            )
            for name, source in zip(self._names, manifest.recipe.sources, strict=True)
        ]

        def check(item: tuple[str, ShardEntry]) -> tuple[str, str, ShardCounts, Findings]:
            """Check one shard: its unit, its name, its counts, and separate findings."""
            source, shard = item
            unit, own = shard.name.partition("-")[2], Findings()
            if shard.split not in splits and source not in imported:
                own.add(MANIFEST, f"split of shard {shard.name}", " or ".join(splits), shard.split)
            receipt = self.receipts.by_unit.get(unit)
            origin = None if receipt is None else origins[self._names.index(receipt.source)]
            rules_here = imported_rules if source in imported else rules
            return unit, shard.name, check_shard(self._folder, shard, rules_here, origin, own), own

        counts: dict[str, list[ShardCounts]] = {}
        shards = zip(manifest.shards.names("source"), manifest.shards, strict=True)
        # One file of a remote store is brought at a time, so that few are kept.
        results = in_threads(check, shards) if isinstance(self._folder, Path) else map(check, shards)
        for unit, name, found, own in results:
            findings.include(own)
            counts.setdefault(unit, []).append(found)
            if found.complete:
                self.readable.add(name)
        rejected = self._check_rejects()
        for unit, receipt in self.receipts.by_unit.items():
            name = f"{RECEIPTS}/{unit}.json"
            counted = counts.get(unit, [])
            if len(counted) == len(receipt.shards) and all(shard.complete for shard in counted):
                _compare_counts(findings, name, receipt.ledger, counted)
            if (reasons := rejected.get(unit, {})) is not None:
                findings.compare(name, "rejected, as counted in rejects/", reasons, receipt.ledger.rejected)

    def _check_rejects(self) -> dict[str, dict[str, int] | None]:
        """Bad records by reason of each unit; None for a unit whose rejects are damaged."""
        files = {entry.name: entry for unit in self._manifest.units for entry in unit.rejects}
        whole = {name: check_file(self._folder, entry, self._findings) for name, entry in files.items()}
        rejected: dict[str, dict[str, int] | None] = {}
        for unit in sorted({Path(name).stem for name in files}):
            raw, lines = f"{REJECTS}/{unit}.raw", f"{REJECTS}/{unit}.jsonl"
            if whole.get(raw) and whole.get(lines):
                rejected[unit] = check_rejects(self._folder / lines, lines, files[raw].bytes, self._findings)
            else:
                rejected[unit] = None
        return rejected

    def _check_strays(self) -> None:
        """Report files that are named like the store's but not listed."""
        known = {entry.name for entry in self._manifest.files()}
        for place in ("", RECEIPTS, REJECTS, TOKENIZER):
            for name in list_folder(self._folder, place):
                inner = name.rpartition("/")[2]
                if name not in known and (place or SHARD_FILE.fullmatch(inner)):
                    self._findings.add(
                        name, "a stray file", "nothing", "a file that the manifest does not name"
                    )


def _compare_counts(findings: Findings, name: str, ledger: Ledger, shards: list[ShardCounts]) -> None:
    """Compare a unit's ledger with the counts from its shards."""
    counted = {field: sum(getattr(shard, field) for shard in shards) for field in COUNTED[:-1]}
    counted["text_tokens"] = counted["tokens"] - counted["eod_tokens"] - counted["bos_tokens"]
    for field in COUNTED:
        findings.compare(name, f"{field}, as counted in its shards", counted[field], getattr(ledger, field))
    if ledger.mask:
        trained = sum(shard.trained_tokens for shard in shards)
        what = "trained tokens, as counted in its shards"
        findings.compare(name, what, trained, ledger.mask.trained_tokens)
