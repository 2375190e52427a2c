"""Forager's files: a reader that was written from its rules is the judge.

The index is read whole; sample `i` is `num_bytes` bytes from `byte_offset` on of the file that line
`file_index` names, as tokens of a dtype that the user has to know.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.formats.damages import Damage, change, cut, flip
from tests.formats.engines import bring_back, documents_of, refuse, write
from tests.formats.steps import expected, flat, read_all
from tests.formats.stores import CASES, Case, make_store

from packline.errors import InputError, RecipeError
from packline.formats.forager import FORMAT


class TokensDataset:
    """What a trainer has of Forager: `data[i]`, tokens of sample i."""

    def __init__(self, base: Path, dtype: str) -> None:
        lines = (base / "index/file_location.txt").read_text().splitlines()
        self._files = [base / line for line in lines]
        self._places = np.fromfile(base / "index/sample_locations.bin", "<u8").reshape(-1, 3)
        self._dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> np.ndarray:
        number, offset, size = self._places[index].tolist()
        with self._files[number].open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        assert len(data) == size
        return np.frombuffer(data, self._dtype)

    def all(self) -> list[list[int]]:
        return [self[number].tolist() for number in range(len(self))]


def dtype_of(case: Case) -> str:
    return "<u2" if case.vocab_size <= 65_535 else "<u4"


def bases(out: Path, case: Case) -> dict[str, Path]:
    """The data set of each split."""
    return {"train": out / "train", "val": out / "val"} if case.val else {"train": out}


@pytest.mark.parametrize("edges", ["eod", "bos", "none"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reader_sees_the_documents(tmp_path: Path, case: Case, edges: str) -> None:
    done = write(case.make(tmp_path / "store"), "forager", tmp_path / "out", {"edges": edges})
    for split, documents in expected(case, edges).items():  # type: ignore[arg-type]
        assert TokensDataset(bases(tmp_path / "out", case)[split], dtype_of(case)).all() == documents
    assert {"provenance"} <= {lost.what for lost in done.lost}
    assert ("loss mask" in {lost.what for lost in done.lost}) == (case.loss is not None)


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_windows_go_over_all_documents_and_the_rest_is_said_to_be_lost(
    tmp_path: Path, case: Case, size: int
) -> None:
    options = {"sample_size": size, "shard_tokens": 400}
    store = case.make(tmp_path / "store")
    streams = {split: flat(documents) for split, documents in expected(case, "eod").items()}
    if sum(len(stream) // size for stream in streams.values()) == 0:
        with pytest.raises(RecipeError, match=f"expected at least sample_size tokens, {size}, found"):
            write(store, "forager", tmp_path / "out", options)
        return
    done = write(store, "forager", tmp_path / "out", options)
    for split, stream in streams.items():
        data = TokensDataset(bases(tmp_path / "out", case)[split], dtype_of(case))
        whole = [stream[start : start + size] for start in range(0, len(stream) - size + 1, size)]
        assert data.all() == whole
    tails = {split: len(stream) % size for split, stream in streams.items() if len(stream) % size}
    found = {lost.why.rpartition(" ")[2]: lost.count for lost in done.lost if lost.what == "tail"}
    assert found == tails
    back = bring_back(tmp_path / "out", "forager", store, tmp_path / "back")
    for split, stream in streams.items():
        kept = stream[: len(stream) - len(stream) % size]
        if kept:
            before = [] if case.bos_id is None else [case.bos_id]
            documents = documents_of(back)[split]
            original = expected(case, "both" if before else "eod")[split]
            # All whole documents as they were; the one that the end of the data cuts is given an end.
            assert documents[:-1] == original[: len(documents) - 1]
            assert flat([one[len(before) :] for one in documents])[: len(kept)] == kept


# ------------------------------------------------------------------------------- as Forager writes them


def write_forager(
    base: Path, files: dict[str, list[list[int]]], dtype: str, *, absolute: bool = False
) -> None:
    """Files as Forager's indexer leaves them: one for each input, samples in its order."""
    (base / "tokenized-samples").mkdir(parents=True)
    (base / "index").mkdir()
    places: list[tuple[int, int, int]] = []
    with (base / "index/file_location.txt").open("a") as lines:
        for number, (stem, samples) in enumerate(files.items()):
            path = base / "tokenized-samples" / f"{stem}-tokenized-samples.bin"
            lines.write(f"{path if absolute else path.relative_to(base)}\n")
            with path.open("wb") as file:
                for sample in samples:
                    data = np.array(sample, dtype).tobytes()
                    places.append((number, file.tell(), len(data)))
                    file.write(data)
    np.array(places, "<u8").tofile(base / "index/sample_locations.bin")


FILES = {"web": [[5, 6], [7], [8, 9, 10]], "books": [[11, 12]], "code": [[13], [14, 15]]}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_what_forager_wrote_is_imported(tmp_path: Path, dtype: str, absolute: bool) -> None:
    """Documents, which Forager leaves without an end where samples are of their own length."""
    store = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    write_forager(tmp_path / "made", FILES, dtype, absolute=absolute)
    if absolute:  # it may have been moved since
        (tmp_path / "made").rename(tmp_path / "moved")
    path = tmp_path / ("moved" if absolute else "made")
    assert FORMAT.recognises(path)
    back = bring_back(path, "forager", store, tmp_path / "back", {"dtype": dtype, "edges": "none"})
    assert documents_of(back) == {"train": [[*one, 0] for samples in FILES.values() for one in samples]}
    assert back.provenance(1).file == "tokenized-samples/web-tokenized-samples.bin"


def test_windows_that_forager_wrote_are_imported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    stream = [5, 6, 0, 7, 0, 0, 8, 9, 10, 11, 0, 12]
    whole = [stream[start : start + 3] for start in range(0, 12, 3)]
    write_forager(tmp_path / "made", {"a": whole[:1], "b": whole[1:]}, "<u2")
    options = {"dtype": "uint16", "sample_size": 3}
    back = bring_back(tmp_path / "made", "forager", store, tmp_path / "back", options)
    assert documents_of(back) == {"train": [[5, 6, 0], [7, 0], [0], [8, 9, 10, 11, 0], [12, 0]]}


def test_nothing_says_how_wide_tokens_are_but_the_vocabulary(tmp_path: Path) -> None:
    write_forager(tmp_path / "made", FILES, "<u4")
    with pytest.raises(InputError, match="expected a dtype, which Forager does not record"):
        read_all("forager", tmp_path / "made")
    found = read_all("forager", tmp_path / "made", {"vocab_size": 70_000})
    assert found.documents["train"][0] == [5, 6] and found.reader.dtype == np.dtype("<u4")
    with pytest.raises(InputError, match=r"expected Forager's index/sample_locations\.bin"):
        read_all("forager", tmp_path / "made/index")


# ---------------------------------------------------------------------------------------------- damage

INDEX = "index/sample_locations.bin"
WEB = "tokenized-samples/web-tokenized-samples.bin"


DAMAGED: list[tuple[Damage, str]] = [
    (cut(WEB, -1), f"{WEB}: size in bytes, a multiple of 2"),
    (cut(WEB, 4), f"{WEB}: tokens, by the last of its samples"),
    (cut(INDEX, -1), f"{INDEX}: size in bytes, a multiple of 24"),
    (cut(INDEX, -24), "code-tokenized-samples.bin: tokens, by the last of its samples"),
    (
        change(INDEX, 32, b"\6"),
        f"{INDEX}: sample 1: expected in file 0 to 2, byte 4, a multiple of 2",
    ),
    (
        change(INDEX, 64, b"\5"),
        f"{INDEX}: sample 2: expected in file 0 to 2, byte 6, a multiple of 2",
    ),
    (change(INDEX, 96, b"\0"), f"{INDEX}: sample 4: expected in file 1 to 2"),
    (change(INDEX, 120, b"\x09"), f"{INDEX}: sample 5: expected in file 2 to 2"),
    (flip("index/file_location.txt"), "index/file_location.txt: file of line 1: expected a file"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGED, ids=range(len(DAMAGED)))
def test_damage_is_refused_with_its_place(tmp_path: Path, damage: Damage, words: str) -> None:
    store = make_store(tmp_path / "store", [[5]], vocab_size=300, eod_id=0)
    write_forager(tmp_path / "made", FILES, "<u2")
    damage(tmp_path / "made")
    options = {"dtype": "uint16", "edges": "none"}
    refuse(tmp_path / "made", "forager", store, tmp_path / "back", words, options)
