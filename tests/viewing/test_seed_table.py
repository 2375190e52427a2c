"""chuk-mlx's table: every character of it, and its numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.viewing.batch_files import BatchFile, missing_line, summarize, table_lines

GOLDEN = """\
Summary for input tensor:

Batch Analysis Summary:
==================================================
Batch File                          ck/sample_batch_0001.npz
--------------------------------------------------
Number of Rows                                    2
Number of Tokens                                 16
Max Sequence Length                               8
--------------------------------------------------
Average Real Tokens per Row                    4.00
Average Padding Tokens per Row                 4.00
--------------------------------------------------
Total Real Tokens in Batch                        8
Total Padding Tokens in Batch                     8
--------------------------------------------------
Memory Usage for Real Tokens               32 bytes
Memory Usage for Padding Tokens            32 bytes
=================================================="""


def test_the_table_is_that_of_chuk_mlx() -> None:
    rows = np.array([[97, 98, 99, 100, 101, 102, 0, 0], [97, 98, 0, 0, 0, 0, 0, 0]], np.int32)
    summary = summarize(BatchFile("ck/sample_batch_0001.npz", {"input": rows}, None, 0), "input")
    assert summary is not None
    assert table_lines("ck/sample_batch_0001.npz", summary) == GOLDEN.split("\n")


@pytest.mark.parametrize("name", ["input", "attention_mask"])
def test_a_token_0_and_an_end_of_document_that_pads_are_real(name: str) -> None:
    """chuk-mlx counts 2 here: all that is neither 0 nor the padding."""
    rows = np.array([[5, 0, 9, 9], [0, 5, 9, 0]], np.int64)
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    batch = BatchFile("b", {"input": rows, "attention_mask": mask}, None, 9)
    summary = summarize(batch, name)
    assert summary is not None
    assert (summary.real_tokens, summary.padding_tokens) == (7, 1)
    size = 8 if name == "input" else 4
    lines = table_lines("b", summary)
    assert lines[0] == f"Summary for {name} tensor:"
    assert lines[-3].endswith(f" {7 * size} bytes") and lines[-2].endswith(f" {size} bytes")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from([np.uint16, np.int32, np.int64]))
def test_the_rows_add_up(lengths: list[int], dtype: type) -> None:
    rows: np.ndarray = np.ones((len(lengths), 9), dtype)
    summary = summarize(BatchFile("b", {"input": rows}, np.array(lengths), None), "input")
    assert summary is not None
    text = "\n".join(table_lines("b", summary))

    def number(label: str) -> float:
        found = re.search(rf"^{label} +([\d.]+)(?: bytes)?$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    real = sum(lengths)
    assert number("Number of Rows") == len(lengths)
    assert number("Number of Tokens") == 9 * len(lengths)
    assert number("Max Sequence Length") == 9
    assert number("Total Real Tokens in Batch") == real
    assert number("Total Padding Tokens in Batch") == 9 * len(lengths) - real
    assert number("Average Real Tokens per Row") == pytest.approx(real / len(lengths), abs=0.0051)
    assert number("Average Padding Tokens per Row") == pytest.approx(9 - real / len(lengths), abs=0.0051)
    assert number("Memory Usage for Real Tokens") == real * np.dtype(dtype).itemsize


def test_no_rows() -> None:
    summary = summarize(BatchFile("b", {"input": np.empty((0, 4), np.int32)}, None, 0), "input")
    assert summary is not None and summary.real_per_row == summary.padding_per_row == 0.0


def test_a_tensor_that_is_not_there() -> None:
    batch = BatchFile("b", {"input": np.ones((1, 1), np.int32)}, None, 0)
    assert summarize(batch, "target") is None
    assert missing_line("target") == "No target tensor found in the .npz file"
