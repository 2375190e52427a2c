"""Damage that only a format's own headers and indexes show, without packline.json: told with its place."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.damages import Damage, change, cut, flip, more, remove, rewritten, written
from tests.formats.engines import check_of
from tests.formats.stores import CASES, Case, random_documents

from packline.facade import Store
from packline.formats.check import check_dataset
from packline.formats.export import run_export
from packline.formats.export_folder import RECORD
from packline.formats.format import get_format
from packline.packing.options import ExportChoice

BODIES = ((5, 6, 7), (8,), (), (9, 10))
SMALL = Case("small", BODIES, 300, 0, loss=tuple((1,) * (len(body) + 1) for body in BODIES))
"""10 tokens in 4 documents with their ends."""
LINES = Case("lines", random_documents(12, 300, longest=7, seed=4), 300, 0)
"""A row of 8 tokens for each document."""
PADDED = ExportChoice(seq_len=8, packing="pad", in_order=True)

MADE: dict[str, tuple[Case, dict[str, Any], ExportChoice]] = {
    "megatron": (SMALL, {}, ExportChoice()),
    "llmc": (SMALL, {"shard_tokens": 5}, ExportChoice()),
    "datatrove": (SMALL, {}, ExportChoice()),
    "olmo": (SMALL, {}, ExportChoice()),
    "stacks": (CASES["bos_loss"], {"shard_size": 50}, ExportChoice()),
    "npz": (CASES["plain"], {}, ExportChoice(seq_len=16, batch_size=3)),
    "pt": (CASES["plain"], {}, ExportChoice(seq_len=16)),
    "litdata": (LINES, {"shard_bytes": 4 * 36}, PADDED),
    "mds": (LINES, {"fields": ["tokens"], "size_limit": 350}, PADDED),
}

# ------------------------------------------------------------------------------------------- tables by format

BIN, IDX = "train-000000.bin", "train-000000.idx"
# Lengths begin at 34, bytes at 50, documents at 82.
MEGATRON: list[tuple[Damage, str]] = [
    (cut(BIN, 18), "train-000000.bin: size in bytes: expected 20, found 18"),
    (cut(IDX, 20), "train-000000.idx: first bytes"),
    (change(IDX, 0, b"X"), "train-000000.idx: first bytes"),
    (change(IDX, 9, b"\2"), "train-000000.idx: version: expected 1, found 2"),
    (change(IDX, 17, b"\6"), "dtype code: expected an integer's: 1 to 5, or 8, found 6"),
    (change(IDX, 17, b"\4"), "byte where sequence 1 begins: expected 16, found 8"),
    (more(IDX, b"\0" * 4), "size in bytes: expected 122, found 126"),  # multimodal data
    (change(IDX, 38, struct.pack("<i", -2)), "tokens of sequence 1: expected none or more, found -2"),
    (change(IDX, 46, b"\4"), "train-000000.bin: size in bytes: expected 22, found 20"),
    (change(IDX, 58, b"\7"), "byte where sequence 1 begins: expected 8, found 7"),
    (change(IDX, 82, b"\1"), "first sequence of all: expected [0], found [1]"),
    (change(IDX, 90, b"\3"), "end of document 2: expected at least 3, found 2"),
    (change(IDX, 114, b"\5"), "sequences, by the end of the last document: expected 4, found 5"),
    (remove(BIN), "found no such file"),
]

SHARD = "fineweb_train_000000.bin"
KNOWN = f"{SHARD}: magic number and version, tokens: expected 20240520 and 1 or 20240801 and 7, none or more"
LLMC: list[tuple[Damage, str]] = [
    (change(SHARD, 0, struct.pack("<i", 1234)), f"{KNOWN}, found (1234, 1, 5)"),
    (change(SHARD, 4, b"\7"), f"{KNOWN}, found (20240520, 7, 5)"),
    (change(SHARD, 8, struct.pack("<i", -5)), f"{KNOWN}, found (20240520, 1, -5)"),
    (change(SHARD, 8, b"\6"), f"{SHARD}: size in bytes: expected 1,036, found 1,034"),
    (
        change(SHARD, 0, struct.pack("<2i", 20240801, 7)),
        "size in bytes: expected 1,044, found 1,034",
    ),
    (cut(SHARD, 700), f"{SHARD}: bytes of the header: expected 1,024, found 700"),
]

DS = "00000_unshuffled.ds"
DATATROVE: list[tuple[Damage, str]] = [
    (cut(DS, -1), f"{DS}: size in bytes, a multiple of 2"),
    (cut(f"{DS}.index", -1), f"{DS}.index: size in bytes, a multiple of 8"),
    (change(f"{DS}.index", 8, bytes(8)), "end of document 1: expected at least 4, found 0"),
    (cut(f"{DS}.loss", -1), f"{DS}.loss: bytes, one per token"),
    (
        rewritten(f"{DS}.metadata", lambda data: data.replace(b"|2", b"|3")),
        f"{DS}.metadata: bytes of a token: expected 2 or 4, found 3",
    ),
    (written(f"{DS}.metadata", b"x|2\n1\n1.00 T"), f"{DS}: tokens, by its .metadata: expected 1"),
    (
        lambda folder: (folder / "00001_unshuffled.ds").write_bytes(bytes(2)),
        "00001_unshuffled.ds.index: no such file, where other files have one",
    ),
]

NPY, CSV, MASK = "part-0-00000.npy", "part-0-00000.csv.gz", "masks/part-0-00000.npy"


def lines(content: bytes) -> Damage:
    return written(CSV, gzip.compress(content))


OLMO: list[tuple[Damage, str]] = [
    (cut(NPY, -1), f"{NPY}: size in bytes, a multiple of 2"),
    (cut(NPY, 10), f"{NPY}: tokens, by the last of its lines: expected 10, found 5"),
    (cut(CSV, -1), f"{CSV}: damaged gzip"),
    (flip(CSV), f"{CSV}: damaged gzip"),
    (lines(b"0,3\r\n4,8\r\n"), f"{CSV}: start of document 1: expected 3, found 4"),
    (lines(b"0,3\r\n3,2\r\n2,10\r\n"), "end of document 1: expected at least 3, found 2"),
    (lines(b"0,3\r\nx,8\r\n"), f"{CSV}: expected lines of start,end"),
    (lines(b"0\r\n3\r\n"), f"{CSV}: expected two numbers"),
    (lines(b""), "by the end of the last document"),
    (cut(MASK, -1), f"{MASK}: bytes, one per token"),
    (written(MASK, b"\2" * 10), f"{MASK}: loss of token 0: expected 0 or 1, found 2"),
]

SFT, SFT_MASK = "sft_train_000000.bin", "sft_train_000000_mask.bin"
STACKS: list[tuple[Damage, str]] = [
    (change(SFT, 0, b"\5\0\0\0"), f"{SFT}: magic number and version: expected (20240520, 1), found (5, 1"),
    (change(SFT_MASK, 4, b"\7"), f"{SFT_MASK}: magic number and version"),
    (change(SFT, 8, b"1"), f"{SFT}: size in bytes: expected 1,122, found 1,124"),
    (cut(SFT_MASK, 1000), f"{SFT_MASK}: bytes of the header: expected 1,024, found 1,000"),
    (remove(SFT_MASK), f"{SFT}: its mask: expected {SFT_MASK}, found nothing"),
    (change(SFT_MASK, 1024 + 6, b"\2"), "loss of token 3: expected 0 or 1, found 2"),
    (cut("config.json", 1), "config.json: not JSON"),
]

BATCH = "tokenized_batch_0002.npz"


def arrays(**changes: Callable[[np.ndarray], np.ndarray | None]) -> Damage:
    """Other arrays in a batch; None leaves one out."""

    def damage(folder: Path) -> None:
        with np.load(folder / BATCH) as batch:
            found = {key: batch[key].copy() for key in batch.files}
        made = {key: make(found[key]) for key, make in changes.items()}
        np.savez(folder / BATCH, **{key: one for key, one in (found | made).items() if one is not None})

    return damage


NPZ: list[tuple[Damage, str]] = [
    (cut(BATCH, -50), f"{BATCH}: File is not a zip file"),
    (
        arrays(input_tensor=lambda one: one.astype(np.int64)),
        f"{BATCH}: dtype, as of the first file: expected int32, found int64",
    ),
    (arrays(input_tensor=lambda one: one.astype(np.float32)), "of integers, found"),
    (arrays(target_tensor=lambda one: one[:, 1:]), "target_tensor of shape (3, 16)"),
    (arrays(input_tensor=lambda one: None), f"{BATCH}: no array"),
    (arrays(input_tensor=lambda one: one.astype(object)), f"{BATCH}: input_tensor: expected 384 bytes of "),
    (arrays(lengths=lambda one: one[1:]), "lengths of shape (3,), found (2,)"),
    (remove(BATCH), "tokenized_batch_0003.npz: number of the batch: expected 2, found 3"),
]


def index(name: str, make: Callable[[Any], Any]) -> Damage:
    """A JSON file with a change."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        make(content)
        (folder / name).write_text(json.dumps(content))

    return damage


PT: list[tuple[Damage, str]] = [
    (cut("chunk_000001.pt", -30), "chunk_000001.pt: size in bytes, as of the first file: expected"),
    (written("chunk_000000.pt", b"PK\3\4"), "chunk_000000.pt: File is not a zip file"),
    (remove("chunk_000001.pt"), "chunk_000002.pt: number of the file: expected 1, found 2"),
    (index("metadata.json", lambda said: said.update(num_chunks=3)), "num_chunks: expected 51, found 3"),
    (index("metadata.json", lambda said: said.update(chunk_size=17)), "chunk_size: expected 16, found 17"),
    (written("metadata.json", b"{"), "metadata.json: not JSON"),
]

CHUNK = "chunk-0-1.bin"
LITDATA: list[tuple[Damage, str]] = [
    (cut(CHUNK, -3), f"{CHUNK}: size in bytes: expected 168, found 165"),
    (change(CHUNK, 0, b"\5"), f"{CHUNK}: records: expected 4, found 5"),
    (change(CHUNK, 12, b"\x10\x27"), f"{CHUNK}: end of record 2: expected 10000 or more, found"),
    (change(CHUNK, 4, b"\x14"), f"{CHUNK}: first and last offset: expected 24 or more and 168, found 20"),
    (remove(CHUNK), f"{CHUNK}: a file that index.json names: expected there, found missing"),
    (index("index.json", lambda one: one["chunks"][2].update(dim=35)), "bytes, by its items and tokens"),
    (index("index.json", lambda one: one["chunks"][2].update(filename="../a")), "at `$.chunks[2].filename`"),
    (index("index.json", lambda one: one["chunks"].append(7)), "index.json: Expected `object`, got `int`"),
]

MDS_FILE = "shard.00001.mds"
MDS: list[tuple[Damage, str]] = [
    (cut(MDS_FILE, -3), f"{MDS_FILE}: size in bytes: expected 328, found 325"),
    (change(MDS_FILE, 0, b"\5"), f"{MDS_FILE}: records: expected 4, found 5"),
    (
        change(MDS_FILE, 4, b"\x14\0"),
        "first and last offset: expected 24 or more and 328, found 20",
    ),
    *[(change(MDS_FILE, at, b"\x0a\0"), f"{MDS_FILE}: end of record ") for at in (8, 16)],
    (rewritten(MDS_FILE, lambda data: data.replace(b'"tokens"', b'"tokans"')), f"{MDS_FILE}: columns"),
    (
        rewritten(MDS_FILE, lambda data: data.replace(b'{"column', b'x"column')),
        f"{MDS_FILE}: settings before the first record",
    ),
    (remove(MDS_FILE), f"{MDS_FILE}: a file that index.json names: expected there"),
    (index("index.json", lambda one: one["shards"][1].update(samples=5)), "records: expected 5, found 4"),
    (index("index.json", lambda one: one["shards"][1].update(samples="4")), "at `$.shards[1].samples`"),
    (
        index("index.json", lambda one: one["shards"][1]["raw_data"].update(basename="../a.mds")),
        "at `$.shards[1].raw_data.basename`",
    ),
    (written("index.json", b'{"shards": 3}'), "index.json: Expected `array`, got `int`"),
]

TABLES = {
    "megatron": MEGATRON, "llmc": LLMC, "datatrove": DATATROVE, "olmo": OLMO, "stacks": STACKS, "npz": NPZ,
    "pt": PT, "litdata": LITDATA, "mds": MDS,
}  # fmt: skip


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Store]]]:
    """Exports without their records, which would tell damage before the layout does; not to be changed."""

    class Made(dict[str, tuple[Path, Store]]):
        def __missing__(self, name: str) -> tuple[Path, Store]:
            folder = tmp_path_factory.mktemp(name)
            case, options, choice = MADE[name]
            store, out = case.make(folder / "store"), folder / "out"
            run_export(store.path, to=name, out=out, options=options, choice=choice, link="copy", workers=0)
            (out / RECORD).unlink()
            assert problems(name, out, store) == []
            self[name] = out, store
            return self[name]

    yield Made()


def problems(name: str, path: Path, store: Store) -> list[str]:
    if get_format(name).kind == "documents":
        return check_of(path, name, store)
    return [str(problem) for problem in check_dataset(path, name).problems]


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, table in TABLES.items() for number in range(len(table))]
)
def test_damage_is_told_with_its_place(
    exports: dict[str, tuple[Path, Store]], tmp_path: Path, name: str, number: int
) -> None:
    whole, store = exports[name]
    shutil.copytree(whole, tmp_path / "out")
    damage, words = TABLES[name][number]
    damage(tmp_path / "out")
    found = problems(name, tmp_path / "out", store)
    assert any(words in one for one in found), found
