"""litdata and MDS through the engines: an export comes back as the store it was, or nothing does."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.row_steps import contents
from tests.formats.steps import read_all
from tests.formats.stores import CASES, make_store, random_documents, write_tokenizer

from packline.api import import_dataset
from packline.errors import CorruptStore, PacklineError, TokenizerError
from packline.facade import Store
from packline.formats.exporting.rows import RowView
from packline.formats.exporting.run import export
from packline.formats.exporting.source import Choice
from packline.formats.importing.checking import check
from packline.formats.importing.mapped import TokenFile
from packline.formats.shared.records import RecordFile
from packline.formats.shared.separate_rows import SeparateRows
from packline.formats.types import Block, ForeignFile
from packline.store.report import Findings

FORMATS = ("litdata", "mds")
SMALL: dict[str, dict[str, Any]] = {"litdata": {"shard_bytes": 600}, "mds": {"size_limit": 1000}}


def tokenizer_of(store: Store) -> Path:
    return store.path / "tokenizer" / "tokenizer.json"


def exported(store: Store, name: str, out: Path, **choice: Any) -> Path:
    chosen = Choice(**{"seq_len": 16, **choice})
    export(store.path, to=name, out=out, options=SMALL[name], choice=chosen, workers=0)
    return out


def imported(path: Path, tokenizer: Path, out: Path, **more: Any) -> Store:
    return import_dataset(path, tokenizer=tokenizer, out=out, workers=0, **more)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["plain", "wide", "bos", "long", "shards"])
def test_an_export_of_a_stream_comes_back_and_goes_out_again(tmp_path: Path, name: str, case: str) -> None:
    store = CASES[case].make(tmp_path / "store")
    out = exported(store, name, tmp_path / "out", min_tail_fraction=0.0)
    bos = store.manifest.tokenizer.bos
    back = imported(out, tokenizer_of(store), tmp_path / "back", format=name, bos=bos)
    assert [one.tolist() for one in back.documents] == [one.tolist() for one in store.documents]
    assert back.verify(deep=True).problems == []
    again = exported(back, name, tmp_path / "again", min_tail_fraction=0.0)
    one, other = contents(out), contents(again)
    one.pop("packline.json"), other.pop("packline.json")  # it names the store's checksum
    assert one == other


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_another_packing_come_back_row_by_row(tmp_path: Path, name: str) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    out = exported(store, name, tmp_path / "out", packing="pad", overflow="split")
    back = imported(out, tokenizer_of(store), tmp_path / "back", format=name)
    expected = []
    for document in store.documents:
        pieces = [document[start : start + 16].tolist() for start in range(0, len(document), 16)]
        expected += [piece if piece[-1] == 0 else [*piece, 0] for piece in pieces]
    assert [one.tolist() for one in back.documents] == expected
    assert back.verify().ok


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("packing", "seed"), [("best_fit", None), ("best_fit", 3), ("concat", 5)])
def test_pieces_of_documents_with_both_ends_come_back_wherever_they_stand_in_a_row(
    tmp_path: Path, name: str, packing: str, seed: int | None
) -> None:
    documents = random_documents(60, 1000, longest=40, seed=1)
    store = make_store(tmp_path / "store", documents, vocab_size=1000, eod_id=0, bos_id=1)
    choice: dict[str, Any] = {"packing": packing, "seed": seed}
    if packing == "concat":
        choice["min_tail_fraction"] = 0.0
    out = exported(store, name, tmp_path / "out", **choice)
    back = imported(out, tokenizer_of(store), tmp_path / "back", format=name)
    assert back.verify().ok
    view = RowView.of_store(store, seq_len=16, **choice)
    pieces = []  # by hand: the spans of every row, with the ends that they lack
    for row in range(view.rows):
        tokens, spans = view.read(row, row + 1, ("tokens",))["tokens"][0].tolist(), view.spans(row, row + 1)
        for length in spans.lengths.tolist():
            pieces.append([1, *(token for token in tokens[:length] if token not in (0, 1)), 0])
            tokens = tokens[length:]
    # An end alone behind another one, at the end of a row, cannot be told from padding.
    empty = [1, 0]
    found = [one.tolist() for one in back.documents]
    assert [one for one in found if one != empty] == [one for one in pieces if one != empty]
    assert found.count(empty) <= pieces.count(empty)


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_passes_its_check_and_damage_does_not(tmp_path: Path, name: str) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    out = tmp_path / "best_fit"
    for packing in ("concat", "best_fit"):
        exported(store, name, tmp_path / packing, packing=packing)
        report = check(tmp_path / packing, name, tokenizer=str(tokenizer_of(store)))
        assert report.ok, report.problems
    damaged = sorted(out.glob("*0*"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-4])
    report = check(out, name, tokenizer=str(tokenizer_of(store)))
    assert not report.ok and any(damaged.name in problem.file for problem in report.problems)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_wrong_publishes_nothing(tmp_path: Path, name: str) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    out = exported(store, name, tmp_path / "out", min_tail_fraction=0.0)
    first = sorted(out.glob("*0*"))[0]
    whole = first.read_bytes()

    def refused(error: type[PacklineError], match: str, tokenizer: Path, **more: Any) -> None:
        with pytest.raises(error, match=match):
            imported(out, tokenizer, tmp_path / "back", format=name, **more)
        assert not (tmp_path / "back/manifest.json").exists()
        shutil.rmtree(tmp_path / "back", ignore_errors=True)

    own = tokenizer_of(store)
    refused(TokenizerError, "another tokenizer", write_tokenizer(tmp_path / "other", 900, 0))
    first.write_bytes(whole[:-4])
    refused(CorruptStore, f"{first.name}.*size in bytes", own)
    data = bytearray(whole)
    data[-4:] = (60_000).to_bytes(4, "little")
    data[-8:-4] = (60_000).to_bytes(4, "little")
    first.write_bytes(data)
    (out / "packline.json").unlink()  # else its checksum would tell; here the ids have to
    joined = {"rows": "joined", "overlap": 1 if name == "litdata" else 0}
    refused(CorruptStore, f"{first.name}.*outside the vocabulary", own, options=joined)
    first.write_bytes(whole)
    refused(CorruptStore, f"{first.name}.*end", own)  # rows are no documents


@settings(max_examples=40)
@given(st.data())
def test_record_files_read_what_stands_in_them(data: st.DataObject) -> None:
    width, behind = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 3))
    records, header = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 5))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows = random.integers(0, 60_000, (records, width + behind)).astype("<u2")
    with TemporaryDirectory() as name:
        path = Path(name, "a.bin")
        path.write_bytes(bytes(header) + rows.tobytes())
        files = [ForeignFile("a.bin", str(path), path.stat().st_size)]
        source = RecordFile(files, 0, rows.dtype, split="train", first=header, stride=2 * (width + behind),
                            width=width, tokens=records * width)  # fmt: skip
        wanted = rows[:, :width].reshape(-1)
        start = data.draw(st.integers(0, len(wanted)))
        stop = data.draw(st.integers(start, len(wanted)))
        assert source.read(start, stop)[0].tolist() == wanted[start:stop].tolist()
        if start < stop:
            at = int(source.positions(np.array([start]))[0])
            assert path.read_bytes()[at : at + 2] == wanted[start].tobytes()
        cuts = sorted({0, start, stop, len(wanted)})
        ends = [source.pieces(low, high)[0] for low, high in pairwise(cuts)]
        assert ends[0][1] == 0 and ends[-1][2] == files[0].bytes
        assert all(one[2] == other[1] for one, other in pairwise(ends))


def separate(rows: list[list[int]], folder: Path, **more: Any) -> list[Block]:
    path = folder / "rows.bin"
    path.write_bytes(np.array(rows, "<u2").tobytes())
    files = [ForeignFile("rows.bin", str(path), path.stat().st_size)]
    source = TokenFile(files, 0, np.dtype("<u2"))
    foreign = SeparateRows(files, [source], len(rows[0]), findings=Findings(), **more)
    return [block for unit in foreign.units for block in foreign.blocks(unit)]


def test_separate_rows_end_with_the_row(tmp_path: Path) -> None:
    rows = [[5, 6, 0, 7], [8, 9, 5, 6], [7, 0, 0, 0], [0, 0, 0, 0]]
    (block,) = separate(rows, tmp_path, marker=0, edges="eod")
    documents = np.split(block.tokens, block.offsets[1:-1])
    assert [one.tolist() for one in documents] == [[5, 6, 0], [7], [8, 9, 5, 6], [7, 0], [0]]
    assert block.unfinished is not None and block.unfinished.tolist() == [False, True, True, False, False]
    assert block.positions is not None and block.positions.tolist() == [0, 6, 8, 16, 24]
    (block,) = separate(rows, tmp_path, marker=0, edges="bos")
    assert np.diff(block.offsets).tolist() == [2, 2, 4, 1, 1, 1, 1, 1, 1, 1, 1]
    assert block.unfinished is not None and np.flatnonzero(block.unfinished).tolist() == [0, 2, 3]
    (block,) = separate(rows, tmp_path, marker=None, edges="none")
    assert np.diff(block.offsets).tolist() == [4, 4, 4, 4] and block.unfinished is None


@pytest.mark.parametrize("name", FORMATS)
def test_processes_and_this_one_write_the_same_bytes(tmp_path: Path, name: str) -> None:
    documents = random_documents(60, 1000, seed=9)
    store = make_store(tmp_path / "store", documents, vocab_size=1000, eod_id=0)
    chosen = Choice(seq_len=16, packing="best_fit", seed=3)
    for workers in (0, 2):
        out = tmp_path / f"out-{workers}"
        export(store.path, to=name, out=out, options=SMALL[name], choice=chosen, workers=workers)
    assert contents(tmp_path / "out-0") == contents(tmp_path / "out-2")
    assert read_all(name, tmp_path / "out-0", {"marker": 0}).problems == []
