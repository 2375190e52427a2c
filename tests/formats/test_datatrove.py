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
    damage,
    documents_of,
    files_of,
    loss_of,
    refuse,
    write,
)
from tests.formats.peers import run_peer
from tests.formats.steps import expected, flat, read_all
from tests.formats.stores import CASES, EOD, Case, make_store, random_documents, write_tokenizer
from tests.store.stores import with_rows

from packline.api import import_
from packline.errors import InputError, RecipeError
from packline.facade import Store
from packline.formats.datatrove import FORMAT, humanised
from packline.testing import write_manifest

MODULES = ("datatrove", "torch", "humanize")
SEQ_LEN = 6

READ = """
import json
from pathlib import Path
from datatrove.utils.dataset import DatatroveFolderDataset
answer = {}
for folder, size in json.loads(arguments[0]):
    data = DatatroveFolderDataset(folder, int(arguments[1]), filename_pattern="*.ds", token_size=size,
                                  recursive=False, return_positions=True)
    items = [data[number] for number in range(len(data))]
    answer[folder] = [[item["input_ids"].tolist(), item["positions"].tolist()] for item in items]
"""

WRITE = """
import json
import numpy as np
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
for folder, name, size, documents, loss in json.loads(open(arguments[0]).read()):
    file = TokenizedFile(folder, name, save_loss_metadata=loss is not None, token_size=size,
                         tokenizer_name_or_path="tokenizer.json", save_final_metadata=True)
    for number, tokens in enumerate(documents):
        file.write(tokens, None if loss is None else np.array(loss[number], dtype=float))
    file.close()
answer = True
"""

TOKENIZE = """
import json
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer
folder, tokenizer, texts, settings = json.loads(open(arguments[0]).read())
step = DocumentTokenizer(folder, tokenizer, eos_token=arguments[1], seed=1, **settings)
list(step.run((Document(text, str(n)) for n, text in enumerate(texts)), rank=0, world_size=1) or ())
answer = True
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


def test_datatroves_data_set_reads_the_same_tokens_and_positions(tmp_path: Path) -> None:
    asked = []
    for name, case in CASES.items():
        write(case.make(tmp_path / f"{name}.store"), "datatrove", tmp_path / name)
        for folder in folders(tmp_path / name, case).values():
            if any(path.stat().st_size > SEQ_LEN * size_of(case) for path in folder.glob("*.ds")):
                asked.append((str(folder), size_of(case)))
    found = run_peer(READ, json.dumps(asked), SEQ_LEN, modules=MODULES)
    assert len(asked) >= len(CASES) - 1
    for name, case in CASES.items():
        for split, folder in folders(tmp_path / name, case).items():
            if str(folder) in found:
                documents = expected(case, "eod")[split]
                assert found[str(folder)] == windows(split_files(folder, documents)), name


def test_ours_are_the_bytes_that_datatrove_writes_and_theirs_are_read(tmp_path: Path) -> None:
    made: list[Any] = []
    for name, case in CASES.items():
        for split, folder in folders(tmp_path / "theirs" / name, case).items():
            folder.mkdir(parents=True)
            members = [n for n in range(len(case.documents)) if (n in case.val) == (split == "val")]
            documents = [expected(case, "eod")[split][place] for place in range(len(members))]
            before = case.bos_id is not None
            loss = None if case.loss is None else [case.loss[n][before:] for n in members]
            made.append((str(folder), "00000_unshuffled.ds", size_of(case), documents, loss))
    (tmp_path / "made.json").write_text(json.dumps(made))
    run_peer(WRITE, tmp_path / "made.json", modules=MODULES)
    for name, case in CASES.items():
        store = case.make(tmp_path / f"{name}.store")
        theirs = tmp_path / "theirs" / name
        if case.shards == 1:  # a file a split, as theirs
            write(store, "datatrove", tmp_path / name)
            assert files_of(tmp_path / name) == files_of(theirs), name
        back = bring_back(theirs, "datatrove", store, tmp_path / f"{name}.back")
        assert documents_of(back) == documents_of(store), name
        if case.bos_id is None:
            assert loss_of(back) == loss_of(store), name


@pytest.mark.parametrize("shuffled", [False, True])
def test_what_datatroves_tokenizer_made_is_imported(tmp_path: Path, shuffled: bool) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", 300, 0)
    texts = ["hello there", "a", *(f"document number {n} " * n for n in range(2, 30))]
    settings: dict[str, Any] = {"shuffle_documents": shuffled}
    if shuffled:
        settings["max_tokens_per_file"] = 2000
    (tmp_path / "job.json").write_text(json.dumps((str(tmp_path / "made"), str(tokenizer), texts, settings)))
    run_peer(TOKENIZE, tmp_path / "job.json", EOD, modules=MODULES)
    names = {path.name for path in (tmp_path / "made").glob("*.ds")}
    assert ("00000_unshuffled.ds" in names) != shuffled and (len(names) > 1) == shuffled
    store = import_(
        tmp_path / "made", from_="datatrove", tokenizer=tokenizer, out=tmp_path / "store", workers=0
    )
    assert store.verify().ok and store.verify(deep=True).ok
    found = [store.text(number) for number in range(len(store.documents))]
    assert sorted(found) == sorted(texts) and (found == texts) != shuffled
    assert store.manifest.ledger.text_bytes == sum(len(text.encode()) for text in texts)


def test_counts_for_people_are_datatroves() -> None:
    counts = [0, 1, 9, 10, 99, 100, 999, 1000, 1234, 9994, 9995, 9996, 99_949, 99_951, 123_456, 999_499,
              999_500, 999_999, 10**6, 12_345_678, 999_999_999, 10**9, 10**12 - 1, 3 * 10**12, 10**15,
              *np.random.default_rng(0).integers(1, 10**13, 300).tolist()]  # fmt: skip
    code = """
import humanize, json
answer = [humanize.metric(count, unit="T") for count in json.loads(arguments[0])]
"""
    assert run_peer(code, json.dumps(counts), modules=("humanize",)) == [humanised(n) for n in counts]


def test_tokens_and_mask_are_the_stores_own_files(tmp_path: Path) -> None:
    store = CASES["loss"].make(tmp_path / "store")
    write(store, "datatrove", tmp_path / "out", {"step": "mine", "first_rank": 7})
    endings = (".ds", ".ds.index", ".ds.loss", ".ds.metadata")
    assert set(files_of(tmp_path / "out")) == {f"00007_mine{ending}" for ending in endings}
    for ending, own in ((".ds", ".bin"), (".ds.loss", ".loss")):
        assert (tmp_path / f"out/00007_mine{ending}").samefile(store.path / f"train-made-000000{own}")


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


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    store = CASES["wide"].make(tmp_path / "store")
    for options, words in (
        ({"first_rank": 99_999, "edges": "none", "shard_tokens": 10}, "numbers of files from 0 to 99,999"),
        ({"step": "a/b"}, "step that can be in a name"),
    ):
        with pytest.raises(RecipeError, match=words):
            write(store, "datatrove", tmp_path / "out", options)
        assert not (tmp_path / "out").exists()


def test_without_an_index_documents_are_found_by_their_ends(tmp_path: Path) -> None:
    case = CASES["shards"]
    store = case.make(tmp_path / "store")
    write(store, "datatrove", tmp_path / "out")
    for path in (tmp_path / "out").glob("*.index"):
        path.unlink()
    (tmp_path / "out/packline.json").unlink()
    back = bring_back(tmp_path / "out", "datatrove", store, tmp_path / "back")
    assert documents_of(back) == documents_of(store)
    for path in (tmp_path / "out").glob("*.metadata"):
        path.unlink()
    back = bring_back(tmp_path / "out", "datatrove", store, tmp_path / "wide", {"dtype": "uint16"})
    assert documents_of(back) == documents_of(store)


def test_the_width_is_told_by_the_index_where_there_is_no_metadata(tmp_path: Path) -> None:
    for name in ("plain", "wide"):
        store = CASES[name].make(tmp_path / f"{name}.store")
        write(store, "datatrove", tmp_path / name, {"metadata": False})
        (tmp_path / name / "packline.json").unlink()
        found = read_all("datatrove", tmp_path / name)
        assert found.problems == [] and found.documents == expected(CASES[name], "eod")


def test_a_file_may_be_named_and_is_recognised(tmp_path: Path) -> None:
    case = CASES["splits"]
    write(case.make(tmp_path / "store"), "datatrove", tmp_path / "out")
    path = tmp_path / "out/val/00001_unshuffled.ds"
    assert FORMAT.recognises(path) and FORMAT.recognises(tmp_path / "out") and not FORMAT.recognises(tmp_path)
    assert read_all("datatrove", path).documents == {"train": [case.stored[20]]}
    assert read_all("datatrove", tmp_path / "out").documents == expected(case, "eod")
    with pytest.raises(InputError, match=r"expected datatrove's \.ds files, found none"):
        read_all("datatrove", tmp_path / "store")


NAME = "00000_unshuffled.ds"
DAMAGED = [
    (NAME, "cut", f"{NAME}: size in bytes, a multiple of 2"),
    (f"{NAME}.index", "cut", f"{NAME}.index: size in bytes, a multiple of 8"),
    (f"{NAME}.index", "flip", "end of document"),
    (f"{NAME}.loss", "cut", f"{NAME}.loss: bytes, one per token"),
    (f"{NAME}.loss", "longer", f"{NAME}.loss: bytes, one per token"),
    (f"{NAME}.metadata", "two", f"{NAME}.metadata: bytes of a token: expected 2 or 4, found 3"),
    (f"{NAME}.metadata", "count", f"{NAME}: tokens, by its .metadata: expected 1"),
]


@pytest.mark.parametrize(("name", "how", "words"), DAMAGED)
def test_damage_is_refused_with_its_place(tmp_path: Path, name: str, how: str, words: str) -> None:
    documents = random_documents(20, 300, longest=9)
    documents = ((5, 6, 7), *documents)
    loss = tuple(tuple([1] * (len(one) + 1)) for one in documents)
    store = make_store(tmp_path / "store", documents, vocab_size=300, eod_id=0, loss=loss)
    write(store, "datatrove", tmp_path / "out", link="copy")
    (tmp_path / "out/packline.json").unlink()
    path = tmp_path / "out" / name
    if how == "two":
        path.write_text(path.read_text().replace("|2", "|3"))
    elif how == "count":
        path.write_text("x|2\n1\n1.00 T")
    elif name.endswith(".index") and how == "flip":
        ends = np.fromfile(path, "<u8")
        ends[3] = ends[2] - 1
        ends.tofile(path)
    else:
        damage(path, how)
    refuse(tmp_path / "out", "datatrove", store, tmp_path / "back", words)


def test_contents_that_are_wrong_are_refused_with_their_place(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5, 6, 7], [8], [9, 9]], vocab_size=300, eod_id=0)
    write(store, "datatrove", tmp_path / "out", link="copy")
    (tmp_path / "out" / "packline.json").unlink()  # which would tell it before the layout does
    path = tmp_path / "out" / NAME
    tokens = np.fromfile(path, "<u2")
    for place, value, words in ((5, 299, "no boundary token at the end"), (1, 300, "found 300")):
        changed = tokens.copy()
        changed[place] = value
        changed.tofile(path)
        refuse(tmp_path / "out", "datatrove", store, tmp_path / f"back{place}", words)


def test_a_missing_index_is_refused(tmp_path: Path) -> None:
    store = CASES["shards"].make(tmp_path / "store")
    write(store, "datatrove", tmp_path / "out")
    (tmp_path / "out" / "packline.json").unlink()  # which would tell it before the layout does
    (tmp_path / "out/00002_unshuffled.ds.index").unlink()
    words = "00002_unshuffled.ds.index: no such file, where other files have one"
    refuse(tmp_path / "out", "datatrove", store, tmp_path / "back", words)
