"""Files of whole documents: cut between documents or shared, and checked by size before they are read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.counting import SHARDS, made

from packline.formats import document_files
from packline.formats.document_files import (
    TokensAndEnds,
    _open_source,
    ends_of,
    plan_files,
)
from packline.formats.document_view import DocumentView
from packline.formats.files import FileList
from packline.formats.forager import FORMAT, ForagerOptions
from packline.formats.types import DatasetFile
from packline.store.report import Findings

slips = st.none() | st.sampled_from([0, 0, 1, -1])


@settings(max_examples=20)
@given(SHARDS, st.none() | st.integers(0, 9), st.integers(1, 60))
def test_parts_are_the_shards_or_end_with_the_document_that_reaches_the_size(
    shards: list[list[int]], seed: int | None, size: int
) -> None:
    with made(shards) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_files, "BLOCK_DOCUMENTS", 3)
        view = DocumentView(store, edges="eod", shuffle_documents=seed)
        stream = view.stream("train")
        lengths = stream.lengths(0, stream.documents).tolist()
        starts = [0, *np.cumsum(lengths).tolist()]
        for dtype in ("uint16", "uint32"):
            options = ForagerOptions(dtype=dtype, shard_tokens=size)
            plan = plan_files(FORMAT, view, options, bytes_each=24, keeps_loss=True)
            parts = plan.parts
            edges = [0, *(part.stop for part in parts)]
            assert [part.start for part in parts] == edges[:-1] and edges[-1] == len(lengths)
            shared = seed is None and dtype == "uint16"
            if shared:
                assert [b - a for a, b in pairwise(edges)] == list(map(len, shards))
            else:
                holders = {
                    np.searchsorted(starts, token, "right") - 1 for token in range(0, starts[-1], size)
                }
                assert edges == sorted({0, len(lengths)} | holders)
            assert all(bool(part.shard) == shared for part in parts)
            assert plan.shared_bytes == (2 * starts[-1] if shared else 0)
            for part in parts:
                assert stream.before(part.start) == starts[part.start]
                ends = np.concatenate(list(ends_of(stream, part.start, part.stop)))
                expected = [end - starts[part.start] for end in starts[part.start + 1 : part.stop + 1]]
                assert ends.tolist() == expected


@given(
    st.integers(0, 40),
    st.sampled_from([2, 4]),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 20),
)
def test_a_file_is_read_just_if_all_that_is_known_of_its_size_agrees(
    size: int, width: int, slip: int | None, mask_slip: int | None
) -> None:
    declared, mask = (None if one is None else max(size // width + one, 0) for one in (slip, mask_slip))
    listed = FileList(Path("/data"))
    listed.files = [
        DatasetFile("a.bin", "/data/a.bin", size),
        DatasetFile("a.loss", "/data/a.loss", mask or 0),
    ]
    findings = Findings()
    one = TokensAndEnds(listed.files[0], 0, "", mask=None if mask is None else 1)
    one.declared = {"the index": declared}
    source = _open_source(one, listed, np.dtype(f"<u{width}"), "val", findings)
    counts = {size / width} | {float(one) for one in (declared, mask) if one is not None}
    right = size % width == 0 and len(counts) == 1
    assert (source is not None) == right == (not findings.problems)


@given(st.lists(st.integers(1, 9), max_size=5), st.sampled_from([2, 4, 8]))
def test_the_last_end_shows_how_wide_tokens_are(lengths: list[int], width: int) -> None:
    file = TokensAndEnds(DatasetFile("a", "/a", width * sum(lengths)), 0, "a.idx")
    file.set_ends(np.cumsum(lengths), "index", (2, 4))
    assert file.size == (width if lengths and width in (2, 4) else 0)
    assert file.declared == {"the last of its index": sum(lengths) if lengths else None}
