"""split_to: what is read is what cutting the long rows gives."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.counting import (
    SHARDS,
    all_tokens,
    check_conservation,
    check_rows_of,
    counted,
    made,
)

from packline.errors import RecipeError
from packline.packing.options import PACKINGS
from packline.testing import make_store


@given(
    SHARDS,
    st.sampled_from(PACKINGS),
    st.integers(2, 5),
    st.integers(1, 4),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_it_is_the_long_rows_cut(
    shards: list[list[int]], packing: str, seq_len: int, each: int, seed: int | None, boundary: bool
) -> None:
    flat = [length for shard in shards for length in shard]
    if sum(flat) < seq_len * each:
        return
    with made(shards) as store:
        settings: dict[str, Any] = {"packing": packing, "shuffle_documents": seed}
        if packing == "concat":
            settings["min_tail_fraction"] = 0
        parent = store.rows(seq_len * each, boundary_loss=boundary, **settings)
        rows = parent.split_to(seq_len)
        assert (len(rows), rows.seq_len) == (len(parent) * each, seq_len)
        cut = [
            row[start : start + seq_len]
            for row in all_tokens(parent)
            for start in range(0, seq_len * each, seq_len)
        ]
        assert all_tokens(rows) == cut
        check_arrays(rows, parent, boundary)
        check_conservation(rows, dict(enumerate(flat)))
        check_rows_of(rows, len(flat))
        overflow = "truncate" if packing == "pad" else ""
        assert rows.counts == counted(rows, seq_len, dict(enumerate(flat)), overflow)


def check_arrays(rows: Any, parent: Any, boundary: bool) -> None:
    """Tokens and targets are columns of the parent's; positions and segments begin anew at the cut."""
    length = rows.seq_len
    short, long = (one.read(np.arange(len(one))) for one in (rows, parent))
    assert np.array_equal(short["tokens"], long["tokens"].reshape(-1, length))
    wanted = long["targets"].reshape(-1, length)
    if boundary and parent.packing == "best_fit":
        # A cut between a document and the last part of a split one: see the module.
        differ = short["targets"] != wanted
        assert not differ[:, :-1].any()
        assert (short["targets"][differ] == -100).all()
    else:
        assert np.array_equal(short["targets"], wanted)
    segments = long["segment_ids"].reshape(-1, length)
    padding = segments < 0
    assert np.array_equal(short["segment_ids"], np.where(padding, -1, segments - segments[:, :1]))
    for ids, found in zip(segments.tolist(), short["position_ids"].tolist(), strict=True):
        expected = [0]
        for before, segment in pairwise(ids):
            expected.append(expected[-1] + 1 if segment == before else 0)
        assert found == expected


def test_it_has_what_rows_have(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[30, 2, 9], [40]])
    parent = store.rows(16, packing="pad", overflow="split")
    rows = parent.split_to(4)
    assert len({rows.fingerprint, parent.fingerprint, parent.split_to(8).fingerprint}) == 3
    assert parent.split_to(8).split_to(4).fingerprint == rows.fingerprint
    again = pickle.loads(pickle.dumps(rows))
    assert (again.fingerprint, len(again)) == (rows.fingerprint, len(rows))
    assert np.array_equal(
        again.read(np.arange(len(rows)))["targets"], rows.read(np.arange(len(rows)))["targets"]
    )
    assert rows[-1].index == len(rows) - 1
    assert repr(rows).startswith(
        f"<{len(rows)} rows of 4 tokens, cut from <{len(parent)} rows of 16 tokens, pad"
    )
    with pytest.raises(IndexError, match=f"row {len(rows)} of {len(rows)}"):
        rows[len(rows)]
    padding = [row for row in rows if not row.spans]
    assert len(padding) > 0
    assert all((row.targets == -100).all() and (row.segment_ids == -1).all() for row in padding)


@pytest.mark.parametrize("seq_len", [0, 1, 3, 5, 32])
def test_a_length_that_does_not_divide_is_refused(tmp_path: Path, seq_len: int) -> None:
    rows = make_store(tmp_path / "store", [[30, 20]]).rows(16)
    with pytest.raises(RecipeError, match=f"rows of 16 tokens into rows of {seq_len}: expected a divisor"):
        rows.split_to(seq_len)
    with pytest.raises(RecipeError, match="cannot cut rows of 4 tokens into rows of 8"):
        rows.split_to(4).split_to(8)
