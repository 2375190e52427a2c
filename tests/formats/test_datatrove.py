"""datatrove's files: its own data sets, its TokenizedFile and its DocumentTokenizer are the judges."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.formats.engines import (
    bring_back,
    documents_of,
    files_of,
    loss_of,
    write,
)
from tests.formats.peers import run_peer
from tests.formats.steps import expected, flat, read_all
from tests.formats.stores import CASES, EOD, Case, write_tokenizer
from tests.store.stores import with_rows

from packline.api import import_
from packline.errors import InputError
from packline.facade import Store
from packline.formats.datatrove import FORMAT, humanised
from packline.testing import write_manifest

MODULES = ("datatrove", "torch", "humanize")
SEQ_LEN = 6

PEER = """
import humanize
import numpy as np
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from datatrove.utils.dataset import DatatroveFolderDataset
written, tokenized, asked, window, counts = json.loads(open(arguments[0]).read())
for folder, name, size, documents, loss in written:
    file = TokenizedFile(folder, name, save_loss_metadata=loss is not None, token_size=size,
                         tokenizer_name_or_path="tokenizer.json", save_final_metadata=True)
    for number, tokens in enumerate(documents):
        file.write(tokens, None if loss is None else np.array(loss[number], dtype=float))
    file.close()
for folder, tokenizer, eos, texts, settings in tokenized:
    step = DocumentTokenizer(folder, tokenizer, eos_token=eos, seed=1, **settings)
    list(step.run((Document(text, str(n)) for n, text in enumerate(texts)), rank=0, world_size=1) or ())
read = {}
for folder, size in asked:
    data = DatatroveFolderDataset(folder, window, filename_pattern="*.ds", token_size=size,
                                  recursive=False, return_positions=True)
    items = [data[number] for number in range(len(data))]
    read[folder] = [[item["input_ids"].tolist(), item["positions"].tolist()] for item in items]
answer = read, [humanize.metric(count, unit="T") for count in counts]
"""


def size_of(case: Case) -> int:
    return 2 if case.vocab_size <= 65_536 else 4


def folders(out: Path, case: Case) -> dict[str, Path]:
    """Where files of each split are."""
    splits = list(expected(case, "eod"))
    return {"train": out} if splits == ["train"] else {split: out / split for split in splits}


def windows(files: list[list[list[int]]]) -> list[list[list[int]]]:
    """Tokens and positions as a trainer gets them: whole windows of each file, positions anew in each."""
    found = []
    for documents in files:
        tokens = flat(documents)
        ends = set(np.cumsum([len(one) for one in documents]).tolist())
        for start in range(0, len(tokens) - SEQ_LEN, SEQ_LEN + 1):
            stop, positions, position = start + SEQ_LEN + 1, [], 0
            for place in range(start, stop):
                position = 0 if place in ends or place == start else position + 1
                positions.append(position)
            found.append([tokens[start:stop], positions])
    return found


def split_files(folder: Path, documents: list[list[int]]) -> list[list[list[int]]]:
    """Documents by file, as their indexes have them."""
    counts = [path.stat().st_size // 8 for path in sorted(folder.glob("*.ds.index"))]
    assert sum(counts) == len(documents)
    starts = np.cumsum([0, *counts]).tolist()
    return [documents[start:stop] for start, stop in pairwise(starts)]


COUNTS = [0, 1, 9, 10, 99, 100, 999, 1000, 1234, 9994, 9995, 9996, 99_949, 99_951, 123_456, 999_499,
          999_500, 999_999, 10**6, 12_345_678, 999_999_999, 10**9, 10**12 - 1, 3 * 10**12, 10**15,
          *np.random.default_rng(0).integers(1, 10**13, 300).tolist()]  # fmt: skip
TEXTS = ["hello there", "a", *(f"document number {n} " * n for n in range(2, 30))]
SHUFFLED: dict[bool, dict[str, Any]] = {
    False: {"shuffle_documents": False},
    True: {"shuffle_documents": True, "max_tokens_per_file": 2000},
}


def test_datatrove_reads_ours_and_writes_the_same_bytes_and_its_own_are_read(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    written: list[Any] = []
    for name, case in CASES.items():
        write(case.make(tmp_path / f"{name}.store"), "datatrove", tmp_path / name)
        for folder in folders(tmp_path / name, case).values():
            if any(path.stat().st_size > SEQ_LEN * size_of(case) for path in folder.glob("*.ds")):
                asked.append((str(folder), size_of(case)))
        for split, folder in folders(tmp_path / "theirs" / name, case).items():
            folder.mkdir(parents=True)
            members = [n for n in range(len(case.documents)) if (n in case.val) == (split == "val")]
            loss = None if case.loss is None else [case.loss[n][case.bos_id is not None :] for n in members]
            documents = expected(case, "eod")[split]
            written.append((str(folder), "00000_unshuffled.ds", size_of(case), documents, loss))
    tokenizer = write_tokenizer(tmp_path / "tokenizer", 300, 0)
    tokenized = [
        (str(tmp_path / f"made {shuffled}"), str(tokenizer), EOD, TEXTS, settings)
        for shuffled, settings in SHUFFLED.items()
    ]
    (tmp_path / "job.json").write_text(json.dumps((written, tokenized, asked, SEQ_LEN, COUNTS)))
    found, counts = run_peer(PEER, tmp_path / "job.json", modules=MODULES)
    assert counts == [humanised(count) for count in COUNTS]
    assert len(asked) >= len(CASES) - 1
    for name, case in CASES.items():
        for split, folder in folders(tmp_path / name, case).items():
            if str(folder) in found:
                documents = expected(case, "eod")[split]
                assert found[str(folder)] == windows(split_files(folder, documents)), name
        store, theirs = Store(tmp_path / f"{name}.store"), tmp_path / "theirs" / name
        if case.shards == 1:  # a file a split, as theirs
            assert files_of(tmp_path / name) == files_of(theirs), name
        back = bring_back(theirs, "datatrove", store, tmp_path / f"{name}.back")
        assert documents_of(back) == documents_of(store), name
        if case.bos_id is None:
            assert loss_of(back) == loss_of(store), name
    for shuffled in SHUFFLED:
        made, out = tmp_path / f"made {shuffled}", tmp_path / f"store {shuffled}"
        names = {path.name for path in made.glob("*.ds")}
        assert ("00000_unshuffled.ds" in names) != shuffled and (len(names) > 1) == shuffled
        store = import_(made, from_="datatrove", tokenizer=tokenizer, out=out, workers=0)
        assert store.verify().ok and store.verify(deep=True).ok
        texts = [store.text(number) for number in range(len(store.documents))]
        assert sorted(texts) == sorted(TEXTS) and (texts == TEXTS) != shuffled
        assert store.manifest.ledger.text_bytes == sum(len(text.encode()) for text in TEXTS)


def test_a_shard_without_a_mask_is_all_trained_on(tmp_path: Path) -> None:
    case = Case("two", CASES["loss"].documents, loss=CASES["loss"].loss, shards=2)
    store = case.make(tmp_path / "store")
    first, second = store.manifest.shards
    kept = tuple(file for file in second.files if not file.name.endswith(".loss"))
    shards = (first, msgspec.structs.replace(second, files=kept))
    (store.path / f"{second.name}.loss").unlink()
    write_manifest(store.path, with_rows(store.manifest, shards=shards))
    loss = [list(mask) for mask in case.loss or ()]
    wanted = flat(loss[: first.documents]) + [1] * second.tokens
    for number, options in enumerate(({}, {"dtype": "uint32"})):
        out = tmp_path / f"out{number}"
        write(Store(store.path), "datatrove", out, options)
        assert b"".join(path.read_bytes() for path in sorted(out.glob("*.loss"))) == bytes(wanted)


def test_a_file_may_be_named_and_is_recognised(tmp_path: Path) -> None:
    case = CASES["splits"]
    write(case.make(tmp_path / "store"), "datatrove", tmp_path / "out")
    path = tmp_path / "out/val/00001_unshuffled.ds"
    assert FORMAT.recognises(path) and FORMAT.recognises(tmp_path / "out") and not FORMAT.recognises(tmp_path)
    assert read_all("datatrove", path).documents == {"train": [case.stored[20]]}
    assert read_all("datatrove", tmp_path / "out").documents == expected(case, "eod")
    with pytest.raises(InputError, match=r"expected datatrove's \.ds files, found none"):
        read_all("datatrove", tmp_path / "store")
