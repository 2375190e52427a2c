"""Check one shard from its files: whole, consistent with each other, and with valid documents.

One pass over the tokens in blocks of 1 MiB, hashed and checked while they are in the cache: 2 to 3 GB/s.
Memory is a few blocks, and a few numbers per document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from packline.errors import CorruptStore
from packline.fingerprint import Hasher
from packline.ragged import offsets_of
from packline.recipe import ColumnType
from packline.store.files import FileEntry, StoreFiles, reading
from packline.store.ledger import Ledger, MaskCounts
from packline.store.provenance import ProvenanceFile
from packline.store.report import Findings
from packline.store.shard import BlockSums, Index, block_ranges, count_blocks, split_sums
from packline.store.tables import ShardEntry

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Rules for the tokens of every document of a store."""

    dtype: np.dtype
    vocab_size: int
    eod_id: int
    bos_id: int | None
    control_ids: tuple[int, ...] = ()
    """Ids that text never becomes: allowed only at the edges of a document."""
    least_text_bytes: int = 1
    """Smallest text of a document, in bytes; 0 for imported documents, which may be their end alone."""

    @property
    def edges(self) -> int:
        """Boundary tokens per document."""
        return 1 if self.bos_id is None else 2


@dataclass(frozen=True, slots=True)
class ShardOrigin:
    """Allowed values of provenance in a shard."""

    source: str
    label: str | None
    files: Set[str]
    columns: tuple[tuple[str, ColumnType | None], ...] = ()
    """Name of each carried column, and its type if the recipe declares it."""


def check_file(
    files: StoreFiles,
    entry: FileEntry,
    findings: Findings,
    look: Callable[[memoryview], None] | None = None,
    sums: np.ndarray | None = None,
) -> bool:
    """Check a file's size and checksum, in one pass; return True if it matches the manifest."""
    findings.files += 1
    found_sums = BlockSums()
    try:
        with open(files.local(entry), "rb") as file:
            size = file.seek(0, 2)
            if not findings.compare(entry.name, "size in bytes", entry.bytes, size):
                return False
            file.seek(0)
            hasher, block = Hasher(), memoryview(bytearray(min(BLOCK_BYTES, max(size, 1))))
            done = 0
            while done < size:
                if not (held := file.readinto(block)):
                    findings.add(entry.name, "it shrank while it was read", entry.bytes, done)
                    return False
                hasher.update(block[:held])
                if sums is not None:
                    found_sums.update(block[:held])
                if look is not None:
                    look(block[:held])
                done += held
                findings.read(held)
    except CorruptStore as error:
        if isinstance(error.__cause__, FileNotFoundError):
            findings.add(entry.name, "the file is missing", f"{entry.bytes:,} bytes", "nothing")
        else:
            findings.add(entry.name, _without_path(error, files.path(entry.name)))
        return False
    except OSError as error:
        findings.add(entry.name, f"the file cannot be read: {error.strerror or error}")
        return False
    found = str(hasher.hexdigest())
    where = ""
    if sums is not None and len(wrong := np.flatnonzero(found_sums.finish() != sums)):
        where = block_ranges(wrong)
    if found == entry.checksum and where:
        what = f"checksums in its .sums, byte range {where}"
        findings.add(entry.name, what, "those of the file", "others")
    place = f" (damaged in byte range {where})" if where else ""
    return findings.compare(entry.name, f"checksum{place}", entry.checksum, found)


def _without_path(error: CorruptStore, path: str) -> str:
    """Message of an error without the file, which a finding names itself."""
    return str(error).removeprefix(f"cannot read {path}: ").removeprefix(f"{path}: ")


def check_shard(
    files: StoreFiles, entry: ShardEntry, rules: TokenRules, origin: ShardOrigin | None, findings: Findings
) -> Ledger | None:
    """Check a shard and count its contents; None if a file is missing or damaged.

    Args:
        origin: expected provenance; None if it is not known.
    """
    counts = Ledger()
    tokens_file, index_file, documents_file, *loss_file, sums_file = entry.files
    token_sums, index_sums, document_sums, *loss_sums = _read_sums(files, sums_file, entry, findings)
    whole = check_file(files, index_file, findings, sums=index_sums)
    index = _open_index(files, index_file, entry, rules, findings)
    scan = _TokenScan(tokens_file.name, index, rules, findings, counts)
    findings.compare(tokens_file.name, "bytes", entry.tokens * rules.dtype.itemsize, tokens_file.bytes)
    whole &= check_file(files, tokens_file, findings, scan.take, token_sums)
    if check_file(files, documents_file, findings, sums=document_sums):
        # Only files with the right checksum are passed to a parser.
        _check_documents(
            files, entry, documents_file, index, origin, rules.least_text_bytes, findings, counts
        )
    else:
        whole = False
    for file, file_sums in zip(loss_file, loss_sums, strict=True):
        findings.compare(file.name, "bytes, one a token", entry.tokens, file.bytes)
        counts.mask = MaskCounts()
        whole &= _check_loss(files, file, file_sums, counts.mask, findings)
    counts.text_tokens = counts.tokens - counts.eod_tokens - counts.bos_tokens
    findings.documents += counts.documents
    findings.tokens += counts.tokens
    return counts if whole and index is not None else None


def _read_sums(
    files: StoreFiles, file: FileEntry, entry: ShardEntry, findings: Findings
) -> Sequence[np.ndarray | None]:
    """Checksums of the blocks of each other file of the shard; None for each if they are damaged."""
    sizes = [other.bytes for other in entry.files if other is not file]
    if not check_file(files, file, findings):
        return [None] * len(sizes)
    found = split_sums(np.fromfile(files.local(file), np.uint8), sizes)
    if found is not None:
        return found
    expected = 8 * sum(map(count_blocks, sizes))
    findings.compare(file.name, "bytes, 8 for each block of the other files", expected, file.bytes)
    return [None] * len(sizes)


def _open_index(
    files: StoreFiles, file: FileEntry, entry: ShardEntry, rules: TokenRules, findings: Findings
) -> Index | None:
    """Index of the shard, if it can be relied on to find documents."""
    name, path = file.name, files.path(file.name)
    try:
        data = files.map(file)
    except CorruptStore:
        return None  # reported already
    try:
        index = Index(path, data)
    except CorruptStore as error:
        findings.add(name, f"not a whole index: {str(error).removeprefix(path)}")
        return None
    good = findings.compare(name, "dtype", rules.dtype.name, index.dtype.name)
    good &= findings.compare(name, "documents", entry.documents, len(index))
    if not good:
        return None
    lengths = index.lengths.astype(np.int64)
    if int(lengths.min(initial=rules.edges)) < rules.edges:
        at = int(lengths.argmin())
        findings.add(name, f"length of document {at}", f"at least {rules.edges}", int(lengths[at]))
        return None
    begins = offsets_of(lengths)
    for what, expected, found in (
        ("offset of document {}", begins[:-1] * rules.dtype.itemsize, index.offsets),
        ("document_indices[{}]", np.arange(len(index) + 1), index.document_indices),
    ):
        if len(wrong := np.flatnonzero(expected != found)):
            at = int(wrong[0])
            findings.add(name, what.format(at), int(expected[at]), int(found[at]))
            return None
    return index if findings.compare(name, "tokens", entry.tokens, int(begins[-1])) else None


def _check_loss(
    files: StoreFiles, file: FileEntry, sums: np.ndarray | None, counts: MaskCounts, findings: Findings
) -> bool:
    """Check that every byte of a `.loss` is 0 or 1, and count the others."""
    start = 0

    def look(block: memoryview) -> None:
        nonlocal start
        values = np.frombuffer(block, np.uint8)
        counts.trained_tokens += int(np.count_nonzero(values))
        if int(values.max(initial=0)) > 1:
            at = int(np.argmax(values > 1))
            findings.add(file.name, f"byte {start + at}", "0 or 1", int(values[at]))
        start += len(values)

    return check_file(files, file, findings, look, sums)


class _TokenScan:
    """Check the tokens of the blocks of a `.bin`, in order.

    Args:
        index: None if documents cannot be found: then only ids are checked.
    """

    def __init__(
        self, name: str, index: Index | None, rules: TokenRules, findings: Findings, counts: Ledger
    ) -> None:
        self._name, self._rules, self._findings, self._counts = name, rules, findings, counts
        self._has_index = index is not None
        self._begins = offsets_of([] if index is None else index.lengths)
        self._start = 0
        """Tokens before this block."""
        limits = [-1, *sorted(rules.control_ids), rules.vocab_size]
        runs = ((before + 1, after) for before, after in pairwise(limits))
        self._ordinary = max(runs, key=lambda run: run[1] - run[0])
        """First and end of the longest run of ids that are not control ids: mostly all others."""

    def take(self, block: memoryview) -> None:
        """Check one block of whole tokens."""
        rules, counts = self._rules, self._counts
        if len(block) % rules.dtype.itemsize:
            return  # its size contradicts the count of tokens, which was reported
        tokens = np.frombuffer(block, rules.dtype)
        # As unsigned numbers, so that a negative id is a large one.
        ids = tokens.view(f"u{rules.dtype.itemsize}")
        edges = [self._start, self._start + len(tokens)]
        starts, ends = self._begins[:-1], self._begins[1:]
        firsts = starts[slice(*starts.searchsorted(edges))] - self._start
        lasts = ends[slice(*ends.searchsorted(edges, "right"))] - 1 - self._start
        counts.tokens += len(tokens)
        counts.documents += len(lasts)
        places = lasts if rules.bos_id is None else np.concatenate([firsts, lasts])
        ordinary = self._are_ordinary(ids, places)
        valid = ordinary or self._check_ids(ids)
        what = "documents without EOD at their end"
        counts.eod_tokens += self._expect(tokens, lasts, rules.eod_id, what)
        if rules.bos_id is not None:
            what = "documents without BOS at their start"
            counts.bos_tokens += self._expect(tokens, firsts, rules.bos_id, what)
        if self._has_index and valid and not ordinary:
            inside = np.isin(tokens, rules.control_ids)
            inside[places] = False
            self._report(np.flatnonzero(inside), tokens, "control tokens inside documents", "none")
        self._start += len(tokens)

    def _are_ordinary(self, ids: np.ndarray, places: np.ndarray) -> bool:
        """True if no id needs a closer look: those at the edges are valid, all others in the longest run.

        The edges hold other ids meanwhile, so that two reductions are enough, which make no array.
        """
        first, end = self._ordinary
        held = ids[places]
        ids[places] = first
        ordinary = int(ids.max()) < end and (first == 0 or int(ids.min()) >= first)
        ids[places] = held
        return ordinary and int(held.max(initial=0)) < self._rules.vocab_size

    def _check_ids(self, ids: np.ndarray) -> bool:
        outside = np.flatnonzero(ids >= self._rules.vocab_size)
        self._report(outside, ids, "ids outside the vocabulary", f"below {self._rules.vocab_size}")
        return not len(outside)

    def _expect(self, tokens: np.ndarray, places: np.ndarray, wanted: int, what: str) -> int:
        """Number of these places that hold the token; a problem unless all do."""
        right = tokens[places] == wanted
        self._report(places[~right], tokens, what, wanted)
        return int(np.count_nonzero(right))

    def _report(self, wrong: np.ndarray, tokens: np.ndarray, what: str, expected: object) -> None:
        if not len(wrong):
            return
        at = self._start + int(wrong[0])
        place = f"token {at:,}"
        if self._has_index:
            place += f" (document {int(self._begins.searchsorted(at, 'right')) - 1:,})"
        what = f"{len(wrong):,} {what}, the first at {place}"
        self._findings.add(self._name, what, expected, int(tokens[wrong[0]]))


def _check_documents(
    files: StoreFiles,
    entry: ShardEntry,
    file: FileEntry,
    index: Index | None,
    origin: ShardOrigin | None,
    least_text_bytes: int,
    findings: Findings,
    counts: Ledger,
) -> None:
    """Check provenance: one row per document, of the right source, with the lengths of the index."""
    name, path = file.name, files.path(file.name)
    try:
        provenance = ProvenanceFile(path, entry, file, files.map(file))
        if origin is not None:
            declared = dict(origin.columns)
            present = tuple((one, kind if declared.get(one) else None) for one, kind in provenance.carried)
            findings.compare(name, "carried columns", origin.columns, present)
        for group, (row, table) in enumerate(provenance.groups()):
            counts.text_bytes += int(table["text_bytes"].to_numpy().sum())
            lowest = {"text_bytes": least_text_bytes, "position": 0, "tokens": 1}
            for column, least in lowest.items():
                if len(table) and (found := int(table[column].to_numpy().min())) < least:
                    findings.add(name, f"{column} in row group {group}", f"at least {least}", found)
            if 0 < (known := len(table) - table["hash"].null_count) < len(table):
                findings.add(name, f"documents with a hash in row group {group}", "all or none", known)
            if index is not None:
                tokens, lengths = table["tokens"].to_numpy(), index.lengths[row : row + len(table)]
                if len(wrong := np.flatnonzero(tokens != lengths)):
                    at = int(wrong[0])
                    what = f"tokens of document {row + at:,} ({len(wrong):,} differ from the index)"
                    findings.add(name, what, int(lengths[at]), int(tokens[at]))
            if origin is not None:
                with reading(path):
                    said = {one: set(table[one].unique().to_pylist()) for one in ("source", "label", "file")}
                findings.compare(name, "source", {origin.source}, said["source"])
                findings.compare(name, "label", {origin.label}, said["label"])
                if strange := said["file"] - origin.files:
                    findings.add(name, "files", "inputs of the source", min(map(str, strange)))
    except CorruptStore as error:
        findings.add(name, f"not readable as provenance: {_without_path(error, path)}")
