"""chuk-mlx's table and grid: numbers that add up, and straight lines whatever the texts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.viewing.batch_files import BatchFile, grid_lines, summarize, table_lines
from packline.viewing.text import cells, visible
from packline.viewing.tokens import Vocabulary

LETTERS = Vocabulary("bytes", [b"", *(bytes([byte]) for byte in range(1, 256))], {0: "<pad>"})
GOLDEN = """\
    T0    |    T1    |    T2    |    T3    |    T4    |    T5    |    T6    |    LT    |    T7
--------------------------------------------------------------------------------------------------
    a     |    b     |    c     |    d     |    e     |    f     |  <pad>   |    f     |  <pad>
   (97)   |   (98)   |   (99)   |  (100)   |  (101)   |  (102)   |   (0)    | T5:(102) |   (0)
--------------------------------------------------------------------------------------------------"""


def batch_of(rows: list[list[int]], lengths: list[int] | None = None) -> BatchFile:
    known = None if lengths is None else np.array(lengths)
    return BatchFile("b", {"input": np.array(rows, np.int32)}, known, 0)


def test_the_grid_is_that_of_chuk_mlx() -> None:
    lines = grid_lines(batch_of([[97, 98, 99, 100, 101, 102, 0, 0]]), "input", LETTERS)
    assert lines == ["Visualizing Input Tensor:", *GOLDEN.split("\n")]


@pytest.mark.parametrize("seq_len", [1, 2, 7, 8, 9, 512])
def test_the_last_place_always_has_a_column(seq_len: int) -> None:
    lines = grid_lines(batch_of([[97] * seq_len]), "input", LETTERS)
    heads = [head.strip() for head in lines[1].split("|")]
    assert heads == [*(f"T{place}" for place in range(min(seq_len - 1, 7))), "LT", f"T{seq_len - 1}"]
    assert f"T{seq_len - 1}:(97)" in lines[4]


def test_a_token_0_within_a_row_is_its_last_token_where_lengths_say_so() -> None:
    lines = grid_lines(batch_of([[97, 98, 0, 0], [0, 0, 0, 0]], [3, 0]), "input", LETTERS)
    assert "T2:(0)" in lines[4]
    assert lines[6].split("|")[3].strip() == lines[7].split("|")[3].strip() == "-"


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=9, max_size=9), min_size=1, max_size=4),
    st.lists(st.text(max_size=12).filter(lambda text: "|" not in text), min_size=5, max_size=5),
)
def test_lines_are_straight_and_nothing_acts_on_the_terminal(rows: list[list[int]], texts: list[str]) -> None:
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    vocabulary = Vocabulary("any", [b"", *data], {0: "<pad>"})
    lines = grid_lines(batch_of(rows), "input", vocabulary)[1:]
    for line in lines:
        assert visible(line) == line and cells(line) <= 98
        if "|" in line:
            assert [cells(cell) for cell in line.split("|")[:-1]] == [10] * 8


def test_a_long_text_is_cut_to_eight_columns() -> None:
    words = ["abcdefgh", "abcdefghi", "漢字漢字", "漢字漢字漢", "\n\t\x1b[2J"]
    vocabulary = Vocabulary("words", [b"", *(word.encode() for word in words)], {})
    line = grid_lines(batch_of([[1, 2, 3, 4, 5, 0]], [5]), "input", vocabulary)[3]
    shown = [cell.strip() for cell in line.split("|")]
    assert shown[:5] == ["abcdefgh", "abcdefgh..", "漢字漢字", "漢字漢字..", "↵→␛[2J"]


def test_ids_that_are_wide_widen_their_column() -> None:
    batch = BatchFile("b", {"input": np.full((2, 600), 151_643)}, None, 0)
    lines = grid_lines(batch, "input", None)
    places = {
        tuple(place for place, letter in enumerate(line) if letter == "|") for line in lines if "|" in line
    }
    assert len(places) == 1 and "T599:(151643)" in lines[4]


def test_no_rows_and_no_columns() -> None:
    assert (
        len(grid_lines(BatchFile("b", {"input": np.empty((0, 4), np.int32)}, None, 0), "input", LETTERS)) == 3
    )
    empty = BatchFile("b", {"input": np.empty((1, 0), np.int32)}, None, 0)
    assert grid_lines(empty, "input", LETTERS)[1].strip() == "LT"


@given(st.lists(st.integers(0, 9), max_size=6), st.sampled_from([np.uint16, np.int32, np.int64]))
def test_the_rows_of_the_table_add_up(lengths: list[int], dtype: type) -> None:
    rows: np.ndarray = np.ones((len(lengths), 9), dtype)
    summary = summarize(BatchFile("b", {"input": rows}, np.array(lengths, np.int64), None), "input")
    assert summary is not None
    text = "\n".join(table_lines("b", summary))

    def number(label: str) -> float:
        found = re.search(rf"^{label} +([\d.]+)(?: bytes)?$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    real, rows_or_one = sum(lengths), max(len(lengths), 1)
    padding = 9 * len(lengths) - real
    assert number("Number of Rows") == len(lengths)
    assert number("Number of Tokens") == 9 * len(lengths)
    assert number("Max Sequence Length") == 9
    assert number("Total Real Tokens in Batch") == real
    assert number("Total Padding Tokens in Batch") == padding
    assert number("Average Real Tokens per Row") == pytest.approx(real / rows_or_one, abs=0.0051)
    assert number("Average Padding Tokens per Row") == pytest.approx(padding / rows_or_one, abs=0.0051)
    size = np.dtype(dtype).itemsize
    assert number("Memory Usage for Real Tokens") == real * size
    assert number("Memory Usage for Padding Tokens") == padding * size
