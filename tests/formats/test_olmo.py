"""OLMo's files: a reader that was written from the rules of dolma and OLMo-core is the judge.

Tokens are a map of the whole file, for there is no header; documents are the first two numbers of each line,
split at commas; masks are a list of paths of its own.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.engines import bring_back, documents_of, files_of, refuse, write
from tests.formats.steps import expected, flat, read_all
from tests.formats.stores import CASES, INPUT, RECORD_BYTES, Case, make_store

from packline.errors import InputError
from packline.formats.olmo import FORMAT

Documents = list[list[int]]


def load_olmo(paths: list[Path], dtype: str, masks: list[Path] | None = None) -> tuple[Documents, list[int]]:
    """Documents of `.npy` files by their lines, and all values of the masks."""
    documents: Documents = []
    for path in paths:
        tokens = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
        with gzip.open(path.with_name(path.name.replace(".npy", ".csv.gz")), "rt") as lines:
            for line in lines:
                start, end, *_ = line.split(",")
                assert 0 <= int(start) <= int(end) <= len(tokens)
                documents.append(tokens[int(start) : int(end)].tolist())
    loss: list[int] = []
    for path, tokens_path in zip(masks or [], paths, strict=True) if masks is not None else ():
        mask = np.memmap(path, np.bool_, "r")
        assert len(mask) == tokens_path.stat().st_size // np.dtype(dtype).itemsize
        loss += mask.astype(int).tolist()
    return documents, loss


def load_split(out: Path, case: Case, split: str) -> tuple[Documents, list[int]]:
    folder = split if case.val else ""
    paths = sorted((out / folder).glob("part-0-*.npy"))
    masks = sorted((out / "masks" / folder).glob("*.npy")) if case.loss is not None else None
    return load_olmo(paths, "<u2" if case.vocab_size <= 65_536 else "<u4", masks)


def rows_of(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("edges", ["eod", "bos", "none"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reader_sees_the_documents_and_masks(tmp_path: Path, case: Case, edges: str) -> None:
    store = case.make(tmp_path / "store")
    done = write(store, "olmo", tmp_path / "out", {"edges": edges})
    for split, documents in expected(case, edges).items():  # type: ignore[arg-type]
        found, loss = load_split(tmp_path / "out", case, split)
        assert found == documents
        if case.loss is not None and edges == "eod":
            before = case.bos_id is not None
            assert loss == [value for mask in case.loss for value in mask[before:]]
    assert "provenance" not in {lost.what for lost in done.lost}


def test_lines_say_where_documents_came_from_and_never_when(tmp_path: Path) -> None:
    case = CASES["shards"]
    store = case.make(tmp_path / "store")
    write(store, "olmo", tmp_path / "out", {"prefix": "web"})
    number = 0
    for path in sorted((tmp_path / "out").glob("web-*.csv.gz")):
        assert path.with_name(path.name.replace(".csv.gz", ".npy")).exists()
        head = path.read_bytes()[:10]
        assert head[:4] == b"\x1f\x8b\x08\x00" and head[4:8] == bytes(4)  # no name, no time
        assert b"\r\n" in gzip.decompress(path.read_bytes())
        begin = 0
        for start, end, name, source, place in rows_of(path):
            assert (int(start), int(end)) == (begin, begin + len(case.stored[number]))
            assert (name, source, int(place)) == (f"d{number}", INPUT, number * RECORD_BYTES)
            begin, number = int(end), number + 1
    assert number == len(case.stored)
    write(store, "olmo", tmp_path / "twice", {"prefix": "web"})
    assert files_of(tmp_path / "twice") == files_of(tmp_path / "out")


def test_an_id_with_commas_quotes_and_line_breaks_stays_on_its_line() -> None:
    import pyarrow as pa

    from packline.formats.olmo import _lines

    ids = ['a,"b"', "one\ntwo\r\nthree", None, "ünï"]
    origins = pa.table({"id": ids, "file": ["x,y.jsonl"] * 4, "position": [0, 5, 9, 11]})
    data = _lines(np.array([0, 3, 3, 8]), np.array([3, 3, 8, 9]), origins).decode()
    assert data.count("\n") == 4
    assert [line.split(",")[:2] for line in data.splitlines()] == [
        ["0", "3"],
        ["3", "3"],
        ["3", "8"],
        ["8", "9"],
    ]
    assert list(csv.reader(io.StringIO(data)))[1][2:] == ["one two three", "x,y.jsonl", "5"]


# --------------------------------------------------------------------------------- as dolma writes them


def write_dolma(folder: Path, files: list[Documents], dtype: str, *, columns: int = 5) -> None:
    """Files as dolma's writer leaves them, or with lines as OLMo-core makes them anew."""
    folder.mkdir(parents=True)
    digits = math.ceil(math.log10(len(files) + 1))
    for group, documents in enumerate(files):
        name = f"part-{group:0{digits}d}-00000"
        tokens = np.memmap(folder / f"{name}.npy", dtype, "w+", shape=(len(flat(documents)),))
        tokens[:] = flat(documents)
        tokens.flush()
        with gzip.open(folder / f"{name}.csv.gz", "wt", newline="") as file:
            place = 0
            for number, document in enumerate(documents):
                row: list[Any] = [
                    place,
                    place + len(document),
                    f"id {number}, of {group}",
                    "s3://x/a.gz",
                    number,
                ]
                if columns == 2:
                    file.write(f"{row[0]},{row[1]}\n")
                else:
                    csv.writer(file).writerow(row)
                place += len(document)


@pytest.mark.parametrize("columns", [2, 5])
@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<u8"])
def test_what_dolma_wrote_is_imported(tmp_path: Path, dtype: str, columns: int) -> None:
    case = CASES["shards"]
    store = case.make(tmp_path / "store")
    stored = case.stored
    files = [stored[start : start + 4] for start in range(0, len(stored), 4)]
    write_dolma(tmp_path / "made", files, dtype, columns=columns)
    assert FORMAT.recognises(tmp_path / "made") and (tmp_path / "made/part-09-00000.npy").exists()
    back = bring_back(tmp_path / "made", "olmo", store, tmp_path / "back")
    assert documents_of(back) == {"train": stored}
    origin = back.provenance(5)
    assert origin.id == (None if columns == 2 else "id 1, of 1") and origin.file == "part-01-00000.npy"
    assert origin.position == len(stored[4]) * np.dtype(dtype).itemsize


def test_a_vocabulary_of_bytes_is_read_too(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5, 6]], vocab_size=300, eod_id=0)
    write_dolma(tmp_path / "made", [[[200, 255, 0], [9, 0]]], "u1")
    back = bring_back(tmp_path / "made", "olmo", store, tmp_path / "back", {"dtype": "uint8"})
    assert documents_of(back) == {"train": [[200, 255, 0], [9, 0]]}


def test_without_lines_documents_are_found_by_their_ends(tmp_path: Path) -> None:
    case = CASES["wide"]
    store = case.make(tmp_path / "store")
    write_dolma(tmp_path / "made", [case.stored], "<u4")
    (tmp_path / "made/part-0-00000.csv.gz").unlink()
    with pytest.raises(InputError, match=r"expected \.csv\.gz next to \.npy files, to know how wide"):
        read_all("olmo", tmp_path / "made")
    ways: list[dict[str, Any]] = [{"dtype": "uint32"}, {"vocab_size": case.vocab_size}]
    for number, options in enumerate(ways):
        back = bring_back(tmp_path / "made", "olmo", store, tmp_path / f"back{number}", options)
        assert documents_of(back) == {"train": case.stored}


def test_numpys_own_files_and_others_are_not_recognised(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5, dtype="<u2"))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,5\n"))
    assert not FORMAT.recognises(tmp_path) and not FORMAT.recognises(tmp_path / "a.npy")
    assert read_all("olmo", tmp_path).problems == [
        "a.npy: a header: expected none, in a .npy of OLMo's, found NumPy's"
    ]
    with pytest.raises(InputError, match=r"expected OLMo's \.npy files, found nothing"):
        read_all("olmo", tmp_path / "missing")


NAME = "part-0-00000"


def test_a_file_that_was_cut_off_and_says_nothing_of_its_width_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5, 6, 7], [8]], vocab_size=300, eod_id=0)
    write_dolma(tmp_path / "made", [[[5, 6, 7, 0], [8, 0]]], "<u2")
    path = tmp_path / "made" / f"{NAME}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    words = f"{NAME}.npy: size in bytes: expected 2 or 4 for each of 6 tokens, found 11"
    assert read_all("olmo", tmp_path / "made").problems == [words]
    refuse(tmp_path / "made", "olmo", store, tmp_path / "back", f"{NAME}.npy: size in bytes")
