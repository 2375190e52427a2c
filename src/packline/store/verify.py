"""Prove a store from its own files: that they are whole, agree with each other, and that nothing is lost.

    manifest ── names ──> every file: size, checksum; no stray ones
        │                    └─ shards: tokens, index, provenance (shard_check), rejects
        ├── is the sum of ── receipts: units without a gap, ledgers that balance
        │                    └─ each equal to what is counted in its unit's shards and rejects
        └── agrees with ──── tokenizer: fingerprint, vocabulary, EOD, BOS, dtype

All problems are collected; none of them stops the others from being found. `deep` goes on to the inputs
and the reference tokenizer (`rereading`). Cost: every byte is read once, about 1 GB/s; memory is bounded.

What it does not do: repair anything, or tell a store that was built wrong throughout, by one who also
wrote matching checksums, from a right one; that takes the inputs, and `deep` takes a part of them.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.boundary import resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import CorruptStore, PacklineError
from packline.fingerprint import hash_bytes
from packline.recipe import SPLITS, Recipe, Split
from packline.store.index import CODES, dtype_for
from packline.store.ledger import Ledger, source_names, total
from packline.store.manifest import (
    MANIFEST,
    RECEIPTS,
    REJECTS,
    TOKENIZER,
    FileEntry,
    InputPiece,
    Manifest,
    Receipt,
    StreamReceipt,
    read_manifest,
)
from packline.store.rejects_check import check_rejects
from packline.store.report import DeepReport, Findings, OnProgress, Problem, Report
from packline.store.shard_check import ShardCounts, ShardOrigin, TokenRules, check_file, check_shard

__all__ = ["DeepReport", "Problem", "Report", "verify"]

SHARD_FILE = re.compile(r"(train|val|test)-.*|.*\.(bin|idx|docs\.parquet|loss)")
UNIT_NAME = re.compile(r"(\d{6,})(?:-(\d{6,}))?")
COUNTED = ("documents", "tokens", "text_bytes", "eod_tokens", "bos_tokens", "text_tokens")
"""Of a ledger: what can be counted again from shards."""


def verify(path: str | Path, *, deep: bool = False, on_progress: OnProgress | None = None) -> Report:
    """Check a finished store from its files alone.

    Args:
        path: the folder of the store.
        deep: also read the inputs again, where they can be found, and compare a spread of documents of
            every shard with the reference tokenizer, id by id.
        on_progress: is called with the bytes that were read and all bytes of the store.

    Returns:
        A report with every problem; `report.ok` if there are none.

    Raises:
        StoreNotFound: there is no finished store.

    >>> verify("nowhere")
    Traceback (most recent call last):
    packline.errors.StoreNotFound: nowhere does not exist
    """
    started = time.perf_counter()
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
    except CorruptStore as error:
        findings = Findings()
        findings.add(MANIFEST, str(error))
        return findings.report(None, time.perf_counter() - started)
    findings = Findings(sum(entry.bytes for entry in _all_files(manifest)), on_progress)
    verification = _Verification(folder, manifest, findings)
    verification.run()
    deep_report = None
    if deep and verification.tokenizer is not None:
        from packline.store.rereading import reread

        deep_report = reread(
            folder,
            manifest,
            verification.tokenizer,
            verification.readable,
            verification.pieces(),
            findings,
        )
    return findings.report(deep_report, time.perf_counter() - started)


def _all_files(manifest: Manifest) -> list[FileEntry]:
    shards = [entry for shard in manifest.shards for entry in shard.files]
    return [*shards, *manifest.rejects, *manifest.receipts, *manifest.tokenizer_files]


class _Verification:
    """The state of one verification."""

    def __init__(self, folder: Path, manifest: Manifest, findings: Findings) -> None:
        self.tokenizer: Tokenizer | None = None
        self.readable: set[str] = set()
        """Shards whose documents can be read."""
        self._folder, self._manifest, self._findings = folder, manifest, findings
        self._names = source_names(manifest.recipe)
        recipe = manifest.recipe
        self._limited = recipe.limit_documents is not None or recipe.limit_tokens is not None
        self._receipts: dict[str, Receipt] = {}
        self._streams: dict[str, StreamReceipt] = {}
        self._all_receipts = True

    def run(self) -> None:
        self._check_tokenizer()
        self._check_receipts()
        self._check_sums()
        self._check_units_without_gap()
        self._check_inputs()
        self._check_units()
        self._check_strays()

    def _check_tokenizer(self) -> None:
        """The tokenizer that is kept with the store, and what the manifest says of it."""
        manifest, findings, entry = self._manifest, self._findings, self._manifest.tokenizer
        whole = [check_file(self._folder, file, findings) for file in manifest.tokenizer_files]
        name = f"{TOKENIZER}/tokenizer.json"
        if name not in [file.name for file in manifest.tokenizer_files]:
            findings.add(MANIFEST, "tokenizer_files", name, "not among them")
            return
        if not all(whole):
            return
        try:
            tokenizer = load_tokenizer(str(self._folder / name))
            boundary = resolve_boundary(tokenizer, entry.eod, entry.bos)
        except PacklineError as error:
            findings.add(name, str(error))
            return
        self.tokenizer = tokenizer
        findings.compare(name, "fingerprint", entry.fingerprint, tokenizer.fingerprint)
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

    def _check_receipts(self) -> None:
        findings = self._findings
        for entry in self._manifest.receipts:
            if not check_file(self._folder, entry, findings):
                self._all_receipts = False
                continue
            stem = Path(entry.name).stem
            try:
                data = (self._folder / entry.name).read_bytes()
                if stem.startswith("stream-"):
                    name = stem.removeprefix("stream-")
                    self._streams[name] = msgspec.json.decode(data, type=StreamReceipt)
                    continue
                receipt = msgspec.json.decode(data, type=Receipt)
            except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
                findings.add(entry.name, f"not a receipt: {error}")
                self._all_receipts = False
                continue
            findings.compare(entry.name, "unit", stem, receipt.unit)
            if not findings.compare(entry.name, "source", True, 0 <= receipt.source < len(self._names)):
                self._all_receipts = False
                continue
            self._receipts[stem] = receipt
            for problem in receipt.ledger.imbalance():
                findings.add(entry.name, f"the ledger does not balance: {problem}")
            if not receipt.complete and not self._limited:
                findings.add(entry.name, "the unit was ended by a limit, and the recipe has none")
        self._receipts = dict(sorted(self._receipts.items()))

    def _check_sums(self) -> None:
        """The manifest is the sum of the receipts."""
        manifest, findings = self._manifest, self._findings
        for problem in manifest.ledger.imbalance():
            findings.add(MANIFEST, f"the ledger does not balance: {problem}")
        findings.compare(MANIFEST, "sources", self._names, list(manifest.sources))
        _compare_ledgers(
            findings, MANIFEST, manifest.ledger, total(manifest.sources.values()), "of all sources"
        )
        if not self._all_receipts:
            return  # said already; the sums of the others would only repeat it
        receipts = self._receipts.values()
        for number, name in enumerate(self._names):
            ledger = total(receipt.ledger for receipt in receipts if receipt.source == number)
            said = manifest.sources.get(name, Ledger())
            _compare_ledgers(findings, MANIFEST, said, ledger, f"of source {name} in receipts/")
        shards = tuple(shard for receipt in receipts for shard in receipt.shards)
        if shards != manifest.shards:
            listed, named = {shard.name for shard in manifest.shards}, {shard.name for shard in shards}
            differing = sorted(listed ^ named) or [
                one.name for one, other in zip(shards, manifest.shards, strict=True) if one != other
            ]
            findings.add(MANIFEST, "shards are not those of the receipts", "the same", differing[0])
        rejects = tuple(entry for receipt in receipts for entry in receipt.rejects)
        findings.compare(MANIFEST, "rejects are those of the receipts", True, rejects == manifest.rejects)

    def _check_units_without_gap(self) -> None:
        """Units are numbered, and a stream says how many it made, so one that is lost is missed."""
        if not self._all_receipts:
            return
        findings = self._findings
        numbers: dict[str, list[int]] = {name: [] for name in self._streams}
        for unit in self._receipts:
            match = UNIT_NAME.fullmatch(unit)
            if match is None:
                findings.add(f"{RECEIPTS}/{unit}.json", "name", "the number of a unit", unit)
                return
            numbers.setdefault(match[1], []).extend([int(match[2])] if match[2] else [])
        work = [f"{number:06d}" for number in range(len(numbers))]
        findings.compare(RECEIPTS, "units without a gap", work, sorted(numbers))
        for name, found in numbers.items():
            stream = self._streams.get(name)
            count = stream.units if stream is not None and not self._limited else len(found)
            findings.compare(RECEIPTS, f"units of stream {name}", list(range(count)), sorted(found))

    def _check_inputs(self) -> None:
        """What units took of each input: all of it, once, with the checksum that the manifest gives."""
        if not self._all_receipts:
            return
        findings = self._findings
        pieces: dict[int, list[tuple[int, int]]] = {}
        checksums: dict[int, list[str]] = {}
        for receipt in self._receipts.values():
            for piece in receipt.inputs:
                pieces.setdefault(piece.file, []).append((piece.start, piece.stop))
                checksums.setdefault(piece.file, []).append(piece.checksum)
        for stream in self._streams.values():
            checksums.setdefault(stream.file, []).append(stream.checksum)
        for number, entry in enumerate(self._manifest.inputs):
            parts = checksums.get(number, [])
            joined = hash_bytes("".join(parts).encode()) if len(parts) > 1 else "".join(parts)
            findings.compare(MANIFEST, f"checksum of input {entry.name}", joined, entry.checksum)
            if self._limited:
                continue
            if not parts:
                findings.add(MANIFEST, f"input {entry.name}", "read by some unit", "by none")
            end = 0
            for start, stop in pieces.get(number, []):
                findings.compare(RECEIPTS, f"units of input {entry.name}: the next begins at", end, start)
                end = stop
            if number in pieces and entry.format != "parquet":
                findings.compare(RECEIPTS, f"units of input {entry.name}: bytes", entry.bytes, end)

    def pieces(self) -> dict[int, list[InputPiece]]:
        """What units took of each input file, by its number."""
        from packline.store.rereading import WHOLE_STREAM

        taken: dict[int, list[InputPiece]] = {}
        for receipt in self._receipts.values():
            for piece in receipt.inputs:
                taken.setdefault(piece.file, []).append(piece)
        for stream in self._streams.values():
            whole = InputPiece(stream.file, 0, WHOLE_STREAM, stream.checksum)
            taken.setdefault(stream.file, []).append(whole)
        return taken

    def _check_units(self) -> None:
        """Every unit's shards and rejects, and the ledger of its receipt."""
        manifest, findings = self._manifest, self._findings
        entry = manifest.tokenizer
        control = _control_ids(self.tokenizer) if self.tokenizer is not None else ()
        if manifest.recipe.special_tokens == "parse" or manifest.imported:
            control = ()  # who made the ids may have put them anywhere
        if manifest.dtype not in CODES:
            findings.add(MANIFEST, "dtype", " or ".join(CODES), manifest.dtype)
            return
        rules = TokenRules(
            np.dtype(manifest.dtype).newbyteorder("<"),
            entry.vocab_size,
            entry.eod_id,
            entry.bos_id,
            tuple(number for number in control if 0 <= number < entry.vocab_size),
            0 if manifest.imported else 1,
        )
        splits = SPLITS if manifest.imported else splits_of(manifest.recipe)
        files: list[set[str]] = [set() for _ in self._names]
        for given in manifest.inputs:
            if 0 <= given.source < len(files):
                files[given.source].add(given.name)
        counts: dict[str, list[ShardCounts]] = {}
        for shard in manifest.shards:
            split, _, unit = shard.name.partition("-")
            findings.compare(MANIFEST, f"split of shard {shard.name}", split, shard.split)
            if split not in splits:
                findings.add(MANIFEST, f"split of shard {shard.name}", " or ".join(splits), split)
            receipt, origin = self._receipts.get(unit), None
            if receipt is not None:
                number = receipt.source
                label = manifest.recipe.sources[number].label
                origin = ShardOrigin(self._names[number], label, frozenset(files[number]))
            found = check_shard(self._folder, shard, rules, origin, findings)
            counts.setdefault(unit, []).append(found)
            if found.complete:
                self.readable.add(shard.name)
        rejected = self._check_rejects()
        for unit, receipt in self._receipts.items():
            name = f"{RECEIPTS}/{unit}.json"
            shards = counts.get(unit, [])
            if len(shards) == len(receipt.shards) and all(shard.complete for shard in shards):
                _compare_counts(findings, name, receipt.ledger, shards)
            if (reasons := rejected.get(unit, {})) is not None:
                findings.compare(name, "rejected, as counted in rejects/", reasons, receipt.ledger.rejected)

    def _check_rejects(self) -> dict[str, dict[str, int] | None]:
        """Bad records by reason of each unit; None for a unit whose rejects are damaged."""
        files = {entry.name: entry for entry in self._manifest.rejects}
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
        """Files that look like the store's and that it does not know."""
        known = {entry.name for entry in _all_files(self._manifest)}
        for place in ("", RECEIPTS, REJECTS, TOKENIZER):
            folder = self._folder / place
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                name = f"{place}/{path.name}" if place else path.name
                if name not in known and (place or SHARD_FILE.fullmatch(path.name)):
                    self._findings.add(
                        name, "a stray file", "nothing", "a file that the manifest does not name"
                    )


def splits_of(recipe: Recipe) -> list[Split]:
    """The splits that a recipe's documents can be in.

    >>> from packline.recipe import Source
    >>> splits_of(Recipe(sources=(Source(inputs=("a",)),), tokenizer="t", test_fraction=0.1))
    ['train', 'test']
    """
    there: set[Split] = {source.split or "train" for source in recipe.sources}
    if any(source.split is msgspec.UNSET for source in recipe.sources):
        there |= {"val"} if recipe.val_fraction else set()
        there |= {"test"} if recipe.test_fraction else set()
    return [split for split in SPLITS if split in there]


def _compare_counts(findings: Findings, name: str, ledger: Ledger, shards: list[ShardCounts]) -> None:
    """A unit's ledger and what was counted in its shards."""
    counted = {field: sum(getattr(shard, field) for shard in shards) for field in COUNTED[:-1]}
    counted["text_tokens"] = counted["tokens"] - counted["eod_tokens"] - counted["bos_tokens"]
    for field in COUNTED:
        findings.compare(name, f"{field}, as counted in its shards", counted[field], getattr(ledger, field))
    if ledger.mask:
        trained = sum(shard.trained_tokens for shard in shards)
        what = "trained tokens, as counted in its shards"
        findings.compare(name, what, trained, ledger.mask.trained_tokens)


def _compare_ledgers(findings: Findings, name: str, said: Ledger, found: Ledger, of: str) -> None:
    for field in Ledger.__struct_fields__:
        findings.compare(name, f"{field}: the sum {of}", getattr(found, field), getattr(said, field))


def _control_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of special tokens that no text can become.

    A model without an id for every byte says <unk> of what it does not know, so that one is left out.
    """
    contents = msgspec.json.decode(tokenizer.json)
    model, control = contents["model"], dict(tokenizer.special_tokens)
    unknown = model.get("unk_token")
    if model.get("type") == "Unigram" and model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    if unknown is not None and not _knows_all_bytes(model):
        control.pop(unknown, None)
    return tuple(sorted(set(control.values())))


def _knows_all_bytes(model: dict[str, object]) -> bool:
    """Whether a BPE has tokens for single bytes: as `<0x0A>`, or by the usual letters for bytes."""
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or "merges" not in model:
        return False
    if model.get("byte_fallback") is True:
        return True
    from tokenizers import pre_tokenizers

    return all(letter in vocab for letter in pre_tokenizers.ByteLevel.alphabet())
