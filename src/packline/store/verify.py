"""Verify a store from its own files: whole, consistent with each other, and with nothing lost.

All problems are collected. Every byte is read once, about 2 GB/s per core, by a thread per core; memory is
bounded. A store that was built wrong throughout, with matching checksums, can be detected only by comparison
with the inputs: `deep` compares a part of them (`reencode_audit`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from packline.encoders.special_tokens import control_ids, resolve_boundary
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore, PacklineError, RecipeError, refuse_unknown_names
from packline.ragged import dtype_for
from packline.recipe import parse_columns
from packline.store.files import StoreFiles, store_files
from packline.store.kept_tokenizer import load_kept_tokenizer
from packline.store.ledger import Ledger, source_names
from packline.store.manifest import MANIFEST, Manifest, Receipt, splits_of
from packline.store.manifest_check import read_manifest, read_manifest_file
from packline.store.receipts_check import check_receipts, check_rejects, read_receipts
from packline.store.report import Findings, OnProgress, Report
from packline.store.shard_check import ShardOrigin, TokenRules, check_file, check_shard
from packline.store.tables import INPUTS, RECEIPTS, REJECTS, SHARDS, TOKENIZER, UNITS
from packline.store.walk import WHOLE, Slice, StoreUnit, check_units, units_of


def check_kept_tokenizer(store: StoreFiles, manifest: Manifest, findings: Findings) -> Tokenizer | None:
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
    tokenizer = check_kept_tokenizer(files, manifest, findings)
    receipts = read_receipts(files, manifest, findings, slice)
    if slice[0] == 0:
        check_receipts(manifest, receipts, findings)
    check = _unit_check(files, manifest, tokenizer, receipts.by_unit)
    readable = set(chain.from_iterable(check_units(files, manifest, check, findings, slice)))
    if slice[0] == 0:
        check_strays(files, manifest, findings)
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
) -> Callable[[StoreUnit, Findings], list[str]]:
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

    def check(unit: StoreUnit, findings: Findings) -> list[str]:
        """Check a unit; names of its shards whose documents can be read."""
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
        return list(whole)

    return check


def check_strays(files: StoreFiles, manifest: Manifest, findings: Findings) -> None:
    """Report files that are named like the store's but not listed."""
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
