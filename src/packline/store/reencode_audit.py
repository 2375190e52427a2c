"""Compare a store with its inputs and the reference tokenizer: a sample of documents, not a proof.

They are spread evenly over each shard, the same every time, about `TEXT_BYTES` in all, since the reference
encodes 1 to 2 MB/s. Inputs that are missing or have changed are not a fault of the store: they are noted, and
if the tokenizer is lossless, ids are decoded and encoded again instead. An imported store has no text; then
only the bytes of texts are counted again, from the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from packline.encoders.parity import UNSURE_TOKENS, Reference, text_beginning
from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.token_bytes import TextBytes
from packline.encoders.tokenizer import Tokenizer
from packline.errors import PacklineError, TokenizerError
from packline.fingerprint import Hasher, hash_text, split_of
from packline.recipe import Source, placed
from packline.sources.fields import find_files
from packline.sources.files import InputFile
from packline.sources.jsonl import BOM
from packline.sources.reader import Span, can_be_cut, piece_checksum, read_span, stream_checksum
from packline.store.files import StoreFiles
from packline.store.ledger import source_names
from packline.store.manifest import WHOLE_STREAM, InputPiece, Manifest
from packline.store.provenance import Provenance
from packline.store.report import DeepReport, Findings
from packline.store.shard import Shard

TEXT_BYTES = 2 << 20
"""Bytes of text to encode again, over all shards."""
LEAST_A_SHARD = 4 << 10
LONGEST_TEXT = 256 << 10
"""Bytes of text encoded of one document; a longer one is encoded up to here."""
LARGEST = 16 << 20
"""Bytes of text of the largest document that is compared."""
LARGEST_RECORD = 4 * LARGEST
"""Bytes of the largest record that is read on the way to one."""
MOST_A_SHARD = 64


class _Picked(NamedTuple):
    """A document of the sample."""

    shard: str
    number: int
    ids: np.ndarray
    """Ids without boundary tokens."""
    provenance: Provenance

    @property
    def place(self) -> str:
        """Place of the document, for messages."""
        return f"document {self.number:,} ({self.provenance.file} at {self.provenance.position:,})"


def reencode_audit(
    files: StoreFiles,
    manifest: Manifest,
    tokenizer: Tokenizer,
    readable: set[str],
    pieces: dict[tuple[str, str], list[InputPiece]],
    findings: Findings,
) -> DeepReport:
    """Compare a sample of documents with the reference tokenizer.

    Args:
        tokenizer: the tokenizer kept with the store.
        readable: names of the shards that are whole.
        pieces: pieces of each input file that units read, by its source and name; a stream as one up to
            `WHOLE_STREAM`.
    """
    parse, name = manifest.recipe.special_tokens == "parse", "tokenizer/tokenizer.json"
    try:
        reference = Reference(tokenizer.json if parse else without_special_tokens(tokenizer))
    except TokenizerError as error:
        findings.add(name, str(error))
        return DeepReport(0, 0, 0, 0, ["no document was compared: the tokenizer is not one to compare with"])
    findings.compare(name, "round trip", manifest.tokenizer.round_trip, reference.round_trip)
    audit = _Audit(manifest, reference, findings)
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    budget = min(max(TEXT_BYTES // max(len(readable), 1), LEAST_A_SHARD), LONGEST_TEXT * 4)
    for entry in manifest.shards:
        if entry.name in readable:
            audit.pick(Shard(files, entry, dtype, manifest.tokenizer.vocab_size), budget)
    if manifest.imported:
        audit.count_bytes(TextBytes(msgspec.structs.replace(tokenizer, kind=manifest.tokenizer.kind)))
    if manifest.imported_sources != set(manifest.sources):
        audit.compare(files.place, pieces, min(budget, LONGEST_TEXT))
    counts = audit.counts
    for what, note in NOTES.items():
        if counts[what]:
            audit.notes.append(note.format(counts[what]))
    return DeepReport(
        counts["documents"], counts["text_bytes"], counts["decoded"], len(audit.shards), audit.notes
    )


NOTES = {
    "undecoded": "{:,} documents do not decode exactly to their text, with ids equal to the reference's: "
    "the tokenizer does not keep every character",
    "unsure": "{:,} documents decode to other text than was encoded, or have other ids than the reference "
    "gives what they decode to: without the text it is unknown whether the tokenizer does not keep every "
    "character, or their ids are wrong",
    "large": f"{{:,}} documents not compared: expected at most {LARGEST / 1e6:,.1f} MB of text",
}


class _Audit:
    """State of one deep verification."""

    def __init__(self, manifest: Manifest, reference: Reference, findings: Findings) -> None:
        self._manifest, self._reference, self._findings = manifest, reference, findings
        self._names = source_names(manifest.recipe)
        self._picked: dict[tuple[str, str], list[_Picked]] = {}
        self._keeps = reference.keeps()
        self.counts: Counter[str] = Counter()
        self.shards: set[str] = set()
        self.notes: list[str] = []

    def pick(self, shard: Shard, budget: int) -> None:
        """Choose documents of a shard, spread evenly, up to about `budget` bytes of text."""
        count = min(len(shard), MOST_A_SHARD)
        spread = np.linspace(0, len(shard) - 1, count).astype(np.int64)
        # The two ends first, then halfway between, and so on: the sample is spread wherever the budget ends.
        for index in spread[spread_indices(count)].tolist():
            provenance = shard.provenance(index)
            if provenance.text_bytes > LARGEST:
                self.counts["large"] += 1
                continue
            ids = shard.document(index)[0 if self._manifest.tokenizer.bos_id is None else 1 : -1]
            picked = self._picked.setdefault((provenance.source, provenance.file), [])
            picked.append(_Picked(shard.entry.name, index, ids, provenance))
            budget -= min(provenance.text_bytes, LONGEST_TEXT, budget)
            if budget <= 0:
                break

    def count_bytes(self, text_bytes: TextBytes) -> None:
        """Compare the bytes of each picked text with its tokens, the only record that an import has."""
        count, imported = 0, self._manifest.imported_sources
        for key in [key for key in self._picked if key[0] in imported]:
            for one in self._picked.pop(key):
                count += 1
                found = int(text_bytes.of(one.ids, np.array([0, len(one.ids)]))[0])
                self._expect(one, "text_bytes", found, one.provenance.text_bytes)
        self.notes.append(
            f"sources that were imported ({', '.join(sorted(imported))}): there is no text to encode again; "
            f"the bytes of {count:,} texts were counted from their tokens"
        )

    def compare(
        self, place: Path | str, pieces: dict[tuple[str, str], list[InputPiece]], longest: int
    ) -> None:
        """Find each picked document's text and compare; of a long one the first `longest` bytes."""
        files = self._inputs(place)
        for key, picked in sorted(self._picked.items(), key=itemgetter(0)):
            if (file := files.get(key)) is None:
                for one in picked:
                    self._compare_with_itself(one)
                continue
            whole, self._findings = self._findings, Findings()
            waiting = {one.provenance.position: one for one in picked}
            try:
                for position, text, id, columns in _read(file, self._manifest, sorted(waiting)):
                    one = waiting.pop(position)
                    if text is None:
                        self.counts["large"] += 1
                    else:
                        self._compare_with_text(one, text, id, columns, longest)
                for one in waiting.values():
                    self._findings.add(f"{one.shard}.docs.parquet", one.place, "a document there", "none")
            except (PacklineError, OSError, EOFError) as error:
                self.notes.append(f"input {file.path} cannot be read again: {error}")
            found, self._findings = self._findings, whole
            if not found.problems or self._is_unchanged(file, pieces.get(key, [])):
                whole.include(found)
            else:
                self._note_change(file, "its bytes are others, its size is the same")

    def _is_unchanged(self, file: InputFile, pieces: list[InputPiece]) -> bool:
        """True if all that units read of a file still has its checksum. Read only where documents differ."""
        source, limit = self._manifest.recipe.sources[file.source], self._manifest.recipe.max_document_bytes
        for piece in pieces:
            if piece.stop == WHOLE_STREAM:
                found = stream_checksum(file, source, limit)
            else:
                found = piece_checksum(file, source, Span(file.index, piece.start, piece.stop), limit)
            if found != piece.checksum:
                return False
        return True

    def _note_change(self, file: InputFile, what: str) -> None:
        self.notes.append(f"input {file.path} has changed: {what}: not compared")

    def _inputs(self, place: Path | str) -> dict[tuple[str, str], InputFile]:
        """Inputs that still exist, by source and name; notes on the others.

        Relative ones are looked for in the working directory, then beside the store.
        """
        recipe, found, problem = self._manifest.recipe, None, ""
        for where in (recipe, *([placed(recipe, place.parent)] if isinstance(place, Path) else ())):
            try:
                found = find_files(where)
                break
            except PacklineError as error:
                problem = problem or str(error)
        if found is None:
            self.notes.append(
                f"inputs were not compared, in the working directory or beside the store: {problem}"
            )
            return {}
        files = {(self._names[file.source], file.name): file for file in found}
        same: dict[tuple[str, str], InputFile] = {}
        for entry in self._manifest.inputs:
            if (file := files.pop((entry.source, entry.name), None)) is None:
                self.notes.append(f"input {entry.name} of source {entry.source} is gone: not compared")
            elif file.size != entry.bytes:
                self._note_change(file, f"expected {entry.bytes:,} bytes, found {file.size:,}")
            elif (file.format, file.compression, file.text) != (entry.format, entry.compression, entry.text):
                self._note_change(file, "its format or fields")
            else:
                same[entry.source, entry.name] = file
        if new := list(files.values()):
            self.notes.append(f"{len(new)} inputs are new since the build, the first {new[0].path}")
        return same

    def _compare_with_text(
        self, one: _Picked, text: str, id: str | None, columns: dict[str, Any], longest: int
    ) -> None:
        """Compare everything that is stored of a document with its text."""
        recipe, stored = self._manifest.recipe, one.provenance
        encoded = text.encode("utf-8")
        self._expect(one, "text_bytes", len(encoded), stored.text_bytes)
        self._expect(one, "hash", hash_text(encoded), stored.hash)
        self._expect(one, "id", id, stored.id)
        for name, value in columns.items():
            self._expect(one, f"column {name!r}", value, stored.columns.get(name))
        given = recipe.sources[self._names.index(stored.source)].split
        val_share = self._manifest.val_share or recipe.val_fraction
        split = given or split_of(encoded, recipe.seed, val_share, recipe.test_fraction or 0.0)
        self._expect(one, "split", split, stored.split)
        part = text_beginning(text, longest)
        found, expected = one.ids.tolist(), self._reference.encode(part)
        if part != text:
            sure = max(len(expected) - UNSURE_TOKENS, 0)
            # The cut may have changed more than nearby tokens, so only the whole text is conclusive.
            expected = found if found[:sure] == expected[:sure] else self._reference.encode(text)
        self._count(one, len(part.encode("utf-8")))
        self._compare_ids(one, expected)
        if part == text:
            self.counts["decoded"] += self._reference.round_trip != "lossy"
            self.counts["undecoded"] += found == expected and not self._reference.gives_back(text, found)

    def _compare_with_itself(self, one: _Picked) -> None:
        """Check without the text: ids decode to the right size, and to the same ids again.

        If the tokenizer does not keep every character, this may fail although the ids are right.
        """
        stored = one.provenance
        if self._reference.round_trip != "exact" or stored.text_bytes > LONGEST_TEXT:
            return
        text = self._reference.decode(one.ids.tolist())
        encoded, expected = text.encode("utf-8"), self._reference.encode(text)
        self._count(one, len(encoded))
        self.counts["decoded"] += 1
        if not self._keeps:
            self.counts["unsure"] += len(encoded) != stored.text_bytes or expected != one.ids.tolist()
            return
        name, what = f"{one.shard}.bin", f"{one.place} decodes to"
        size = len(encoded)
        if self._findings.compare(name, f"{what} another number of bytes", stored.text_bytes, size):
            if stored.hash is not None:
                self._findings.compare(
                    name, f"{what} a text of another hash", stored.hash, hash_text(encoded)
                )
            self._compare_ids(one, expected)

    def _expect(self, one: _Picked, what: str, expected: object, found: object) -> None:
        self._findings.compare(f"{one.shard}.docs.parquet", f"{what} of {one.place}", expected, found)

    def _compare_ids(self, one: _Picked, expected: list[int]) -> None:
        found = one.ids.tolist()
        if found != expected:
            pairs = enumerate(zip_longest(found, expected))
            at = next(place for place, (mine, theirs) in pairs if mine != theirs)
            what = f"{one.place} differs from the reference tokenizer at its token {at:,}"
            self._findings.add(f"{one.shard}.bin", what, expected[at : at + 5], found[at : at + 5])

    def _count(self, one: _Picked, size: int) -> None:
        self.counts["documents"] += 1
        self.counts["text_bytes"] += size
        self.shards.add(one.shard)


def spread_indices(count: int) -> list[int]:
    """Order places 0 to count - 1 so that each one is far from those before it."""
    if count < 3:
        return list(range(count))
    places = [0, count - 1]
    step = count - 1
    while step > 1:
        step = (step + 1) // 2
        places += range(step, count - 1, step)
    return list(dict.fromkeys([*places, *range(count)]))


def _read(
    file: InputFile, manifest: Manifest, positions: list[int]
) -> Iterator[tuple[int, str | None, str | None, dict[str, Any]]]:
    """Texts, ids and carried columns of the documents at these positions of a file, which are in order.

    The text is None if its record is larger than `LARGEST_RECORD`.
    """
    source = manifest.recipe.sources[file.source]
    limit = min(manifest.recipe.max_document_bytes, LARGEST_RECORD)
    for span, wanted in _spans(file, source, positions):
        missing = set(wanted)
        for batch in read_span(file, source, span, limit, Hasher()):
            for index in np.flatnonzero(np.isin(batch.positions, list(missing))).tolist():
                position = int(batch.positions[index])
                missing.discard(position)
                id = batch.ids[index] if batch.ids is not None else None
                columns = batch.columns.slice(index, 1).to_pylist()[0] if batch.columns is not None else {}
                yield position, batch.texts[index], id, columns
            for reject in batch.rejects:
                if reject.reason == "too_large" and reject.position in missing:
                    missing.discard(reject.position)
                    yield reject.position, None, None, {}
            if not missing:
                break


def _spans(file: InputFile, source: Source, positions: list[int]) -> Iterator[tuple[Span, list[int]]]:
    """Smallest spans of the file that contain the documents at these positions."""
    if file.format == "parquet":
        from packline.sources.parquet import open_parquet

        with file.open() as raw:
            metadata = open_parquet(raw, file.path).metadata
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        groups = np.searchsorted(np.cumsum(rows), positions, side="right").tolist()
        for group, inside in groupby(zip(groups, positions, strict=True), itemgetter(0)):
            if group < len(rows):
                yield Span(file.index, group, group + 1), [position for _, position in inside]
    elif not can_be_cut(file, source):
        yield Span(file.index, 0, file.size), positions
    else:
        for position in positions:
            # A record begins after a newline, except for the first, which may follow a byte order mark.
            start = 0 if position <= len(BOM) else position
            yield Span(file.index, start, position + 1), [position]
