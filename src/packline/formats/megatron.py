"""Megatron-LM: pairs of a token file and an index, `PREFIX.bin` and `PREFIX.idx` (MMIDIDX, version 1).

    .bin  tokens of all sequences, back to back, no header

    .idx  0        9 bytes  MMIDIDX\0\0
          9        uint64   version, 1
          17       uint8    dtype: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (6, 7 are floats)
          18       uint64   S, sequences
          26       uint64   N, entries of document_indices, one more than there are documents
          34       int32    [S] tokens of each sequence
          34+4S    int64    [S] byte of the .bin at which each begins
          34+12S   int64    [N] first sequence of each document, then S
          34+12S+8N int8    [S] kinds of input, in multimodal data only

All little-endian. In text a sequence is a document, which has fewer than 2**31 tokens; then the index has 42
+ 20 D bytes. The dtype is uint16 for a vocabulary below 65,500, else int32, as in Megatron's preprocessing.
Each document ends with the end of document, as with its `--append-eod`.

The store's own shards have this layout. So `files = "many"` gives one pair per shard, `train-000000.bin` and
so on, by sharing both files, in constant time; of a store of several sources, with the shard's own name,
`train-SOURCE-000000.bin`. `files = "single"` gives one pair per split as Megatron's preprocessing does,
`PREFIXtrain_text_document.bin` and `.idx`. Next to the pairs is `data_args.json` for
`--per-split-data-args-path`: `{"train": [paths], "valid": [paths], "test": null}`. With weights of sources,
`single` gives a pair for each source, and each path comes after its weight: that of its source, divided among
the pairs of the source by their tokens.

Packline reads documents of several sequences, and any integer dtype. Multimodal data is neither written nor
read. Based on `indexed_dataset.py` of megatron-core, which the tests compare with.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from packline.errors import PacklineError, RecipeError
from packline.formats.document_view import DocumentStream, DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import find_files, first_bytes, split_of_name
from packline.formats.format import DatasetReader, DocumentFormat, Options
from packline.formats.token_files import IndexedReader, TokenFile, check_ends
from packline.formats.types import DatasetFile, Edges, ExportPart, ExportPlan, Facts, Files, Size, WrittenPart
from packline.ragged import UINT16_BELOW
from packline.store.naming import parse_unit, slug_of
from packline.store.report import Findings
from packline.store.shard import CODES, HEADER, MAGIC, index_size
from packline.store.writer import HashedFile

LONGEST = 2**31 - 1
"""Maximum tokens per document, limited by the index's int32."""
ARGUMENTS = {"train": "--train-data-path", "val": "--valid-data-path", "test": "--test-data-path"}
"""Arguments of Megatron's trainer for the pairs of each split."""
KEYS = {"train": "train", "val": "valid", "test": "test"}
"""Keys of splits in `data_args.json`."""
DATA_ARGS = "data_args.json"
"""File for Megatron's `--per-split-data-args-path`."""
MOST_PATHS = 8
"""Maximum number of pairs per split that are listed individually."""
SINGLE = "_text_document"
"""End of the names of pairs in Megatron's preprocessing."""
BLOCK = 1 << 18
"""Number of entries per block when the index is written or checked."""


class MegatronOptions(Options, frozen=True):
    files: Files = "many"
    """many: one pair per shard of the store, sharing its files; single: one pair per split."""
    prefix: str = ""
    """Prefix of file names for `single`, before `train_text_document`."""
    dtype: Literal["auto", "uint16", "int32"] = "auto"
    """auto: uint16 for a vocabulary below 65,500."""
    shard_tokens: Size = 1 << 28
    """Approximate tokens per pair for `many`, where pairs are not the store's shards; documents stay whole.
    """
    root: str = ""
    """Folder that `data_args.json` names before each pair; by default paths are relative to the export."""
    weights: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Weights of sources in the blend, `web=0.7,code=0.3`; default: those of a recipe that is exported."""
    edges: Edges = "eod"
    """Boundary tokens of documents; for a store with begin-of-document tokens, `both` shares its files."""


class Megatron(DocumentFormat):
    name = "megatron"
    title = "Megatron-LM: pairs of .bin and .idx"
    options = MegatronOptions
    limits: ClassVar = {"uint16": UINT16_BELOW - 1, "int32": 2**31}  # by Megatron's rule
    opened = MappingProxyType(
        {"val": "no pair for val: Megatron-LM's --valid-data-path has nothing to name; --split divides train"}
    )

    def recognises(self, path: Path) -> bool:
        folder = path if path.is_dir() else path.parent
        if (folder / "manifest.json").exists() or any(folder.glob("*.rows.parquet")):
            return False  # a store or baked rows: the same pairs, with more files next to them
        return any(
            head == MAGIC and one.with_suffix(".bin").exists()
            for one, head in first_bytes(_index_of(path), (".idx",), len(MAGIC))
        )

    def trainer_lines(self, out: str, record: ExportRecord, options: MegatronOptions) -> tuple[str, ...]:
        pairs = {Path(one.name).stem: one.bytes for one in record.files if one.name.endswith(".bin")}
        lines = []
        if options.root:
            lines.append(f"--per-split-data-args-path {shlex.quote(f'{out}/{DATA_ARGS}')}")
        for split, argument in () if options.root else ARGUMENTS.items():
            begin = f"{options.prefix}{split}_" if options.files == "single" else f"{split}-"
            sizes = {name: size for name, size in pairs.items() if name.startswith(begin)}
            paths = [shlex.quote(f"{out}/{name}") for name in sizes]
            if options.weights:
                paths = _blend(paths, sizes, split, options)
            elif len(paths) > MOST_PATHS:
                paths = [f"$(ls {shlex.quote(out)}/{begin}*.idx | sed 's/.idx$//')"]
            if paths:
                lines.append(f"{argument} {' '.join(paths)}")
        lines.append(f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {shlex.quote(out)}")
        if options.edges in ("eod", "both"):  # Megatron looks for ends
            lines.append("--reset-position-ids --reset-attention-mask --eod-mask-loss")
        return tuple(lines)

    def plan(self, view: DocumentView, options: MegatronOptions) -> ExportPlan:
        dtype = self.dtype_of(view.vocab_size, options)
        parts: list[ExportPart] = []
        shared = 0
        named = bool(options.weights) or len(view.store.manifest.recipe.sources) > 1
        for split in view.splits:
            stream = view.stream(split)
            runs = stream.source_runs()
            _check_weights(options, {source for source, _, _ in runs})
            stored = stream.shards if view.store.dtype == dtype else None
            by_documents = {
                (one.first_document, one.first_document + one.documents): one for one in stored or ()
            }
            if options.files == "many":
                cut = [(one.name, first, last) for (first, last), one in by_documents.items()]
                if not named:
                    runs = [("", 0, stream.documents)]
                    cut = [(f"{split}-{number:06d}", *one[1:]) for number, one in enumerate(cut)]
                cut = cut or _cut(stream, split, runs, options.shard_tokens)
            elif options.weights:
                begin = f"{options.prefix}{split}_"
                cut = [(f"{begin}{slug_of(source)}{SINGLE}", first, last) for source, first, last in runs]
                if len({name for name, _, _ in cut}) < len(cut):
                    raise RecipeError(
                        "megatron: the documents of a source do not lie together", hint="--set files=many"
                    )
            else:
                cut = [(f"{options.prefix}{split}{SINGLE}", 0, stream.documents)]
            for number, (name, first, last) in enumerate(cut):
                shard = by_documents.get((first, last))
                parts.append(ExportPart(name, split, number, first, last, shard.name if shard else ""))
                shared += sum(entry.bytes for entry in shard.entry.files[:2]) if shard else 0
        most = max(sum(part.split == split for part in parts) for split in view.splits)
        ends = f"{most:,} pairs in a split: Megatron-LM drops up to seq_length tokens at the end of each"
        advice = (f"{ends}; --set files=single writes one pair per split",) if most > 1 else ()
        documents = sum(part.stop - part.start for part in parts)
        whole = view.tokens * dtype.itemsize + 20 * documents + index_size(0) * len(parts)
        return ExportPlan(tuple(parts), whole - shared, shared, view.not_preserved(self.name), advice)

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: MegatronOptions) -> Facts:
        stream = view.stream(part.split)
        begin, end = stream.before(part.start), stream.before(part.stop)
        if shard := stream.shard(part.shard):
            for ending in (".bin", ".idx"):
                shard.share(target, f"{part.name}{ending}", ending)
            target.progress(end - begin)
            return {}
        dtype = self.dtype_of(view.vocab_size, options)
        with target.create(f"{part.name}.bin") as tokens:
            stream.write(tokens, begin, end, dtype, target)
        with target.create(f"{part.name}.idx") as index:
            _write_index(index, stream, part.start, part.stop, dtype)
        return {}

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: MegatronOptions
    ) -> None:
        names = {split: [one.part.name for one in written if one.part.split == split] for split in ARGUMENTS}
        paths = {split: [str(PurePosixPath(options.root, name)) for name in names[split]] for split in names}
        for split in view.splits if options.weights else ():
            stream, ours = view.stream(split), (one.part for one in written if one.part.split == split)
            sizes = {part.name: stream.before(part.stop) - stream.before(part.start) for part in ours}
            paths[split] = _blend(paths[split], sizes, split, options)
        content = {key: paths[split] or None for split, key in KEYS.items()}
        with target.create(DATA_ARGS) as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")

    def open(self, path: Path, options: MegatronOptions, findings: Findings) -> DatasetReader:
        indexed: list[tuple[TokenFile, DocumentEnds]] = []
        what = "Megatron's indexes, *.idx next to their *.bin"
        listed, paths = find_files(_index_of(path), ".idx", what)
        files = listed.files
        for one in paths:
            tokens = one.with_suffix(".bin")
            if not tokens.is_file():
                findings.add(one.name, "tokens next to the index", tokens.name, "no such file")
                continue
            number, index = listed.add(tokens), listed.add(one)
            if (ends := open_index(files[index], files[number], findings)) is not None:
                split = split_of_name(one.name)
                source = TokenFile(files, number, ends.dtype, split=split, companions=(index,))
                indexed.append((source, ends))
        return IndexedReader(files, indexed, edges=options.edges, findings=findings)


def _write_index(file: HashedFile, stream: DocumentStream, start: int, stop: int, dtype: np.dtype) -> None:
    """Write the index of documents of a stream, in three passes over their lengths that keep none of them."""
    count = stop - start
    file.write(HEADER.pack(MAGIC, 1, CODES[dtype.name], count, count + 1))
    blocks = [(first, min(first + BLOCK, stop)) for first in range(start, stop, BLOCK)]
    for first, last in blocks:
        lengths = stream.lengths(first, last)
        if int(lengths.max()) > LONGEST:
            at = first + int(lengths.argmax())
            raise PacklineError(
                f"megatron: document {at:,} of the stream has {lengths.max():,} tokens: "
                f"expected at most {LONGEST:,}",
                hint="leave it out with --max-tokens",
            )
        file.write(lengths.astype("<i4"))
    begin = 0
    for first, last in blocks:
        ends = begin + np.cumsum(stream.lengths(first, last)) * dtype.itemsize
        file.write(np.concatenate([[begin], ends[:-1]]).astype("<i8"))
        begin = int(ends[-1])
    for first in range(0, count + 1, BLOCK):
        file.write(np.arange(first, min(first + BLOCK, count + 1), dtype="<i8"))


def _cut(
    stream: DocumentStream, split: str, runs: list[tuple[str, int, int]], shard_tokens: int
) -> list[tuple[str, int, int]]:
    """Names, first documents and ends of pairs of whole documents of one source.

    Each begins with the document that contains a multiple of `shard_tokens` of its run.
    """
    cut, numbers = [], Counter[str]()
    for source, start, stop in runs:
        first, last = stream.before(start), stream.before(stop)
        places = [stream.document_at(token) for token in range(first, max(last, first + 1), shard_tokens)]
        begins = sorted({start, *(place for place in places if start < place < stop)})
        stem = f"{split}-{slug_of(source)}" if source else split
        for begin, end in zip(begins, [*begins[1:], stop], strict=True):
            cut.append((f"{stem}-{numbers[stem]:06d}", begin, end))
            numbers[stem] += 1
    return cut


def _weights_of(options: MegatronOptions) -> dict[str, Fraction]:
    """Weights by the name that each source has in files."""
    weights = {}
    for word in options.weights or ():
        name, _, text = word.rpartition("=")
        try:
            weights[slug_of(name)] = weight = Fraction(text)
        except (ValueError, ZeroDivisionError):
            weight = Fraction(0)
        if not name or weight <= 0:
            raise RecipeError(f"megatron: expected weights as NAME=NUMBER above 0, found {word!r}")
    return weights


def _check_weights(options: MegatronOptions, sources: set[str]) -> None:
    """Refuse weights that do not tell how often each source is read."""
    if not (weights := _weights_of(options)):
        return
    if "" in sources:
        raise RecipeError(
            "megatron: weights are of sources, and --shuffle-documents mixes them",
            hint="leave it out: Megatron-LM shuffles its rows",
        )
    if missing := sorted(source for source in sources if slug_of(source) not in weights):
        raise RecipeError(
            f"megatron: no weight for the source {missing[0]!r}",
            hint="give it one, or export the others alone with --source",
        )


def _blend(paths: list[str], sizes: dict[str, int], split: str, options: MegatronOptions) -> list[str]:
    """Paths after their weights: that of their source, divided among its pairs by their sizes."""
    if options.files == "single":
        begin = f"{options.prefix}{split}_"
        sources = [name.removeprefix(begin).removesuffix(SINGLE) for name in sizes]
    else:
        units = [parse_unit(name.removeprefix(f"{split}-")) for name in sizes]
        sources = [unit.slug if unit else "" for unit in units]
    weights, whole = _weights_of(options), Counter[str]()
    for source, size in zip(sources, sizes.values(), strict=True):
        whole[source] += size
    shares = [
        weights[source] * size / max(whole[source], 1)
        for source, size in zip(sources, sizes.values(), strict=True)
    ]
    return [word for share, path in zip(shares, paths, strict=True) for word in (f"{float(share):.6g}", path)]


def _index_of(path: Path) -> Path:
    """Index for a path: the `.idx` itself, its `.bin`, or the prefix of both; else the path unchanged."""
    if path.is_dir():
        return path
    companions = (
        path.with_suffix(".idx") if path.suffix in (".bin", ".idx") else path.with_name(f"{path.name}.idx")
    )
    return companions if companions.is_file() else path


FORMAT = Megatron()


READ_CODES: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""dtypes by code; 6 and 7 are floats, which cannot be tokens."""


@dataclass(frozen=True)
class DocumentEnds:
    """Ends of documents, in tokens, from a mapped index."""

    dtype: np.dtype
    begins: np.ndarray
    """int64 `[S]`: start of each sequence, in bytes."""
    documents: np.ndarray
    """int64 `[D+1]`: first sequence of each document, then S."""
    tokens: int

    def __len__(self) -> int:
        return len(self.documents) - 1

    def __getitem__(self, key: Any, /) -> Any:
        """End of a document, or of those of a slice: the start of the sequence after its last one."""
        behind = self.documents[1:][key]
        inside = behind < len(self.begins)
        if not len(self.begins):
            return behind * 0
        places = self.begins[np.where(inside, behind, 0)] // self.dtype.itemsize
        ends = np.where(inside, places, self.tokens)
        return int(ends) if ends.ndim == 0 else ends


def open_index(index: DatasetFile, tokens: DatasetFile, findings: Findings) -> DocumentEnds | None:
    """Check a pair by its index, a block at a time; None if it cannot be read."""
    with open(index.path, "rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        findings.add(index.name, "first bytes", str(MAGIC), str(head[: len(MAGIC)]))
        return None
    _, version, code, sequences, entries = HEADER.unpack(head)
    if not findings.compare(index.name, "version", 1, version):
        return None
    if code not in READ_CODES:
        findings.add(index.name, "dtype code", "an integer's: 1 to 5, or 8", code)
        return None
    size = HEADER.size + 12 * sequences + 8 * entries  # more of it in multimodal data: kinds of input
    if not findings.compare(index.name, "size in bytes", size, index.bytes):
        return None
    mapped = np.asarray(np.memmap(index.path, np.uint8, "r"))
    cuts = [HEADER.size, HEADER.size + 4 * sequences, HEADER.size + 12 * sequences]
    lengths, begins = mapped[cuts[0] : cuts[1]].view("<i4"), mapped[cuts[1] : cuts[2]].view("<i8")
    documents = mapped[cuts[2] :].view("<i8")
    dtype = READ_CODES[code]
    whole = _check_sequences(index.name, lengths, begins, dtype, findings)
    if whole is None or not findings.compare(
        index.name, "first sequence of all", [0], documents[:1].tolist()
    ):
        return None
    if not check_ends(index.name, documents, sequences, findings, "sequences"):
        return None
    if not findings.compare(tokens.name, "size in bytes", whole * dtype.itemsize, tokens.bytes):
        return None
    return DocumentEnds(dtype, begins, documents, whole)


def _check_sequences(
    name: str, lengths: np.ndarray, begins: np.ndarray, dtype: np.dtype, findings: Findings
) -> int | None:
    """Check that sequences lie back to back; return their total number of tokens, or None."""
    place = 0
    for start in range(0, len(lengths), BLOCK):
        block = lengths[start : start + BLOCK].astype(np.int64)
        expected = place + np.cumsum(block) - block
        wrong = (block < 0) | (begins[start : start + BLOCK] != expected * dtype.itemsize)
        if wrong.any():
            at = int(np.argmax(wrong))
            if block[at] < 0:
                findings.add(name, f"tokens of sequence {start + at:,}", "none or more", int(block[at]))
            else:
                found, place = int(begins[start + at]), int(expected[at]) * dtype.itemsize
                findings.add(name, f"byte where sequence {start + at:,} begins", place, found)
            return None
        place = int(expected[-1] + block[-1])
    return place
