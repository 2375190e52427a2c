"""Foreign token files as documents: whatever the units, blocks and files, the same as lists cut by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.errors import CorruptStore
from packline.formats import token_files
from packline.formats.format import DatasetReader
from packline.formats.token_files import IndexedReader, Numbers, ScannedReader, TokenFile
from packline.formats.types import DatasetFile, Edges
from packline.store.report import Findings

MARKER = 9


def write(path: Path, values: list[int], dtype: str, header: int = 0) -> DatasetFile:
    path.write_bytes(b"\x7f" * header + np.array(values, dtype).tobytes())
    return DatasetFile(path.name, str(path), path.stat().st_size)


def by_hand(stream: list[int], *, before: bool) -> list[list[int]]:
    """Documents of a stream, token by token."""
    documents: list[list[int]] = []
    open_document = False
    for token in stream:
        if not open_document or (before and token == MARKER):
            documents.append([])
        documents[-1].append(token)
        open_document = before or token != MARKER
    return documents


def read_all(reader: DatasetReader, most: int | None = None) -> list[tuple[int, int, list[int], bool]]:
    """(file, position, tokens, finished) of every document, and that blocks are what they promise."""
    documents = []
    for unit in reader.units:
        for block in reader.blocks(unit):
            assert len(block) > 0 and block.offsets[0] == 0 and block.offsets[-1] == len(block.tokens)
            if most is not None:
                assert len(block.tokens) <= 2 * most or len(block) == 1
            for number in range(len(block)):
                tokens = block.tokens[block.offsets[number] : block.offsets[number + 1]]
                open_ = block.truncated is not None and bool(block.truncated[number])
                assert block.positions is not None
                documents.append((unit.file, int(block.positions[number]), tokens.tolist(), not open_))
    return documents


def accounted(reader: DatasetReader) -> None:
    """All units together take every byte of every file once, in order."""
    ends = [0] * len(reader.files)
    for unit in reader.units:
        for file, start, stop in unit.pieces:
            assert start == ends[file] <= stop
            ends[file] = stop
    assert ends == [file.bytes for file in reader.files]


streams = st.lists(st.lists(st.sampled_from([1, 2, MARKER]), max_size=30), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    streams, st.booleans(), st.integers(1, 12), st.integers(1, 9), st.sampled_from(["<u2", "<i4"]), st.data()
)
def test_any_units_blocks_and_files_give_the_documents_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[int]],
    before: bool,
    unit: int,
    block: int,
    dtype: str,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    header = data.draw(st.sampled_from([0, 6]))
    whole = [token for part in parts for token in part]
    losses = [data.draw(st.lists(st.integers(0, 1), min_size=len(p), max_size=len(p))) for p in parts]
    files = [write(folder / f"{n}.bin", part, dtype, header) for n, part in enumerate(parts)]
    masks = [write(folder / f"{n}.mask", loss, "<u4", 3) for n, loss in enumerate(losses)]
    everything = [*files, *masks]
    sources = [
        TokenFile(
            everything,
            number,
            np.dtype(dtype),
            header=header,
            loss=Numbers(number + len(files), masks[number].path, np.dtype("<u4"), 3),
        )
        for number in range(len(files))
    ]
    findings = Findings()
    edges: Edges = "bos" if before else "eod"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "BLOCK_TOKENS", block)
        patch.setattr(token_files, "UNIT_TOKENS", unit)
        reader = ScannedReader(everything, sources, marker=MARKER, edges=edges, findings=findings)
        accounted(reader)
        found = read_all(reader, block)
        masks_read = [b.loss for one in reader.units for b in reader.blocks(one)]
        loss = [int(byte) for mask in masks_read if mask is not None for byte in mask]
    expected = by_hand(whole, before=before)
    assert [tokens for _, _, tokens, _ in found] == expected
    assert loss == [byte for part in losses for byte in part]
    assert not findings.problems and reader.tokens == len(whole)
    place = 0
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    for number, (file, position, tokens, finished) in enumerate(found):
        assert position == header + (place - starts[file]) * np.dtype(dtype).itemsize
        assert len(parts[file]) > place - starts[file] >= 0
        edge = number == 0 if before else number == len(found) - 1
        assert finished == (not edge or tokens[0 if before else -1] == MARKER)
        place += len(tokens)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=8), min_size=1, max_size=3),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(1, 4),
)
def test_an_index_tells_the_documents_whatever_the_units_and_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[list[int]]],
    unit: int,
    block: int,
    count: int,
) -> None:
    folder = tmp_path_factory.mktemp("indexed")
    files = [
        write(folder / f"{n}", [token for one in part for token in one], "<u2")
        for n, part in enumerate(parts)
    ]
    findings = Findings()
    indexed = [
        (TokenFile(files, n, np.dtype("<u2")), np.cumsum([len(one) for one in part]).astype("<u8"))
        for n, part in enumerate(parts)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "BLOCK_TOKENS", block)
        patch.setattr(token_files, "UNIT_TOKENS", unit)
        patch.setattr(token_files, "BLOCK_DOCUMENTS", count)
        reader = IndexedReader(
            files,
            indexed,
            edges="eod",
            findings=findings,
            ids=lambda file, start, stop: [f"{file}/{n}" for n in range(start, stop)],
        )
        accounted(reader)
        found = read_all(reader)
        ids = [name for one in reader.units for b in reader.blocks(one) for name in b.ids or []]
    assert not findings.problems
    assert [tokens for _, _, tokens, _ in found] == [one for part in parts for one in part]
    assert ids == [f"{file}/{n}" for file, part in enumerate(parts) for n in range(len(part))]
    assert reader.documents == len(found)
    places = [np.cumsum([0, *map(len, part)])[:-1] * 2 for part in parts]
    assert [(file, at) for file, at, _, _ in found] == [
        (n, int(p)) for n, ps in enumerate(places) for p in ps
    ]


def test_mixed_dtypes_and_a_missing_mask_are_found(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a", [1], "<u2"),
        write(tmp_path / "b", [1], "<u4"),
        write(tmp_path / "m", [1], "u1"),
    ]
    loss = Numbers(2, files[2].path, np.dtype("u1"))
    sources = [TokenFile(files, 0, np.dtype("<u2"), loss=loss), TokenFile(files, 1, np.dtype("<u4"))]
    findings = Findings()
    ScannedReader(files, sources, marker=MARKER, edges="eod", findings=findings)
    assert [str(problem) for problem in findings.problems] == [
        "b: dtype, as of the first file: expected uint16, found uint32",
        "b: loss mask, where other files have one: expected True, found False",
    ]


def test_a_file_that_shrinks_and_a_mask_that_is_none_are_errors_with_the_place(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", [1, 2, 3], "<u2"), write(tmp_path / "m", [0, 1, 7], "u1")]
    source = TokenFile(files, 0, np.dtype("<u2"), loss=Numbers(1, files[1].path, np.dtype("u1")))
    with pytest.raises(CorruptStore, match=r"m: loss of token 2: expected 0 or 1, found 7"):
        source.read(1, 3)
    (tmp_path / "a").write_bytes(b"\1\0\2")
    with pytest.raises(CorruptStore, match=r"a ends at byte 3: expected number 2 of uint16 at byte 4"):
        source.read(0, 3)
    (tmp_path / "a").unlink()
    with pytest.raises(CorruptStore, match="cannot read"):
        source.read(0, 1)


def test_a_stream_without_the_marker_is_refused_before_memory_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "LONGEST_DOCUMENT", 50)
    monkeypatch.setattr(token_files, "BLOCK_TOKENS", 10)
    files = [write(tmp_path / "a", [1] * 100, "<u2")]
    reader = ScannedReader(
        files, [TokenFile(files, 0, np.dtype("<u2"))], marker=MARKER, edges="eod", findings=Findings()
    )
    with pytest.raises(CorruptStore, match="no token 9 within 60 tokens from token 0"):
        read_all(reader)
