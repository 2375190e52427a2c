"""The tables of chuk-mlx's analyzer and viewer for a batch, in the layout that existing scripts parse.

    Summary for input tensor:
    ...
    Number of Rows                                    2
    Average Real Tokens per Row                    4.00
    Memory Usage for Real Tokens               32 bytes

        T0    |    T1    | ... |    T6    |    LT    |   T511
    ----------------------------------------------------------
       The    |   cat    | ... |   the    |   end    |  <pad>
      (464)   |  (3797)  | ... |  (262)   | T9:(886) |   (0)
    ----------------------------------------------------------

The summary has the original names, order and widths with corrected arithmetic: padding as in `batch_files`,
memory by the size of the tensor's own integers. The grid shows at most seven positions, then LT, the last
token that is not padding, with its position, then the last position of the row. Its cells are 10 terminal
columns wide and centred; a text beyond 8 columns is cut and ends with `..`. A column whose ids need more room
is as wide as its widest id, so that columns stay aligned.
"""

from __future__ import annotations

import msgspec
import numpy as np

from packline.viewing.batch_files import BatchFile
from packline.viewing.text import cells, visible
from packline.viewing.tokens import Vocabulary

SUMMARY_WIDTH = 50
WIDTH, CUT, COLUMNS = 10, 8, 8
TITLES = {"input": "Visualizing Input Tensor:", "target": "Visualizing Target Tensor:"}


class TensorSummary(msgspec.Struct, frozen=True):
    """Counts for one tensor."""

    tensor: str
    rows: int
    tokens: int
    """Number of positions, padding included."""
    seq_len: int
    real_tokens: int
    padding_tokens: int
    token_bytes: int
    """Bytes per token."""

    @property
    def real_per_row(self) -> float:
        """Tokens per row that are not padding; 0 without rows."""
        return self.real_tokens / self.rows if self.rows else 0.0

    @property
    def padding_per_row(self) -> float:
        """Padding tokens per row; 0 without rows."""
        return self.padding_tokens / self.rows if self.rows else 0.0


def summarize(batch: BatchFile, tensor: str) -> TensorSummary | None:
    """Count a tensor: `input`, `target` or `attention_mask`; None if the batch does not have it.

    >>> batch = BatchFile("b.npz", {"input": np.array([[5, 0, 0]], np.int32)}, np.array([2]), None)
    >>> summary = summarize(batch, "input")
    >>> summary.real_tokens, summary.padding_tokens
    (2, 1)
    """
    if tensor not in batch.tensors:
        return None
    values = batch.tensors[tensor]
    rows, seq_len = values.shape
    real = int(np.count_nonzero(batch.real[tensor]))
    return TensorSummary(tensor, rows, values.size, seq_len, real, values.size - real, values.itemsize)


def table_lines(name: str, summary: TensorSummary) -> list[str]:
    """Lines of the table of one tensor.

    Args:
        name: name of the file.
    """
    double, single = "=" * SUMMARY_WIDTH, "-" * SUMMARY_WIDTH
    return [
        f"Summary for {summary.tensor} tensor:",
        "",
        "Batch Analysis Summary:",
        double,
        _summary_line("Batch File", name),
        single,
        _summary_line("Number of Rows", f"{summary.rows}"),
        _summary_line("Number of Tokens", f"{summary.tokens}"),
        _summary_line("Max Sequence Length", f"{summary.seq_len}"),
        single,
        _summary_line("Average Real Tokens per Row", f"{summary.real_per_row:.2f}"),
        _summary_line("Average Padding Tokens per Row", f"{summary.padding_per_row:.2f}"),
        single,
        _summary_line("Total Real Tokens in Batch", f"{summary.real_tokens}"),
        _summary_line("Total Padding Tokens in Batch", f"{summary.padding_tokens}"),
        single,
        _summary_line("Memory Usage for Real Tokens", f"{summary.real_tokens * summary.token_bytes} bytes"),
        _summary_line(
            "Memory Usage for Padding Tokens", f"{summary.padding_tokens * summary.token_bytes} bytes"
        ),
        double,
    ]


def _summary_line(label: str, value: str) -> str:
    return f"{label:<35} {value:>15}"


def missing_line(tensor: str) -> str:
    """Message for a missing tensor.

    >>> missing_line("target")
    'No target tensor found in the .npz file'
    """
    return f"No {tensor} tensor found in the .npz file"


def grid_lines(
    batch: BatchFile, tensor: str, vocabulary: Vocabulary | None, *, rows: int | None = None
) -> list[str]:
    """Lines of the grid of one tensor, or one line that reports that the tensor is missing.

    Args:
        tensor: `input` or `target`.
        vocabulary: None: ids are shown as numbers.
        rows: number of rows to show, from the first; None: all.

    >>> batch = BatchFile("b.npz", {"input": np.array([[1, 0]])}, None, 0)
    >>> vocabulary = Vocabulary("tiny", [b"", b"a"], {0: "<pad>"})
    >>> for line in grid_lines(batch, "input", vocabulary):
    ...     print(line)
    Visualizing Input Tensor:
        T0    |    LT    |    T1
    --------------------------------
        a     |    a     |  <pad>
       (1)    |  T0:(1)  |   (0)
    --------------------------------
    """
    if tensor not in batch.tensors:
        return [missing_line(tensor)]
    values, real = batch.tensors[tensor], batch.real[tensor]
    seq_len = values.shape[1]
    places = [*range(max(min(COLUMNS, seq_len) - 1, 0)), *([seq_len - 1] if seq_len else [])]
    heads = [f"T{place}" for place in places]
    heads.insert(max(len(heads) - 1, 0), "LT")
    body = [
        _cells(row, known, places, vocabulary) for row, known in zip(values[:rows], real[:rows], strict=True)
    ]
    lines = [heads, *(line for pair in body for line in pair)]
    widths = [max(WIDTH, *(cells(line[place]) for line in lines)) for place in range(len(heads))]
    rule = "-" * (sum(widths) + len(widths) - 1)
    grid = [TITLES[tensor], _joined(heads, widths), rule]
    for texts, ids in body:
        grid += [_joined(texts, widths), _joined(ids, widths), rule]
    return grid


def _cells(
    row: np.ndarray, real: np.ndarray, places: list[int], vocabulary: Vocabulary | None
) -> tuple[list[str], list[str]]:
    """Two lines of a row: texts and ids."""
    texts = [_text(int(row[place]), vocabulary) for place in places]
    ids = [f"({row[place]})" for place in places]
    known = np.flatnonzero(real)
    last = int(known[-1]) if len(known) else None
    at = max(len(places) - 1, 0)
    texts.insert(at, "-" if last is None else _text(int(row[last]), vocabulary))
    ids.insert(at, "-" if last is None else f"T{last}:({row[last]})")
    return texts, ids


def _text(number: int, vocabulary: Vocabulary | None) -> str:
    """Text of a token, cut to fit; the number of an id outside the vocabulary, such as an ignored target."""
    if vocabulary is None or not 0 <= number < len(vocabulary):
        return f"{number}"
    text = visible(vocabulary.text(number))
    if cells(text) <= CUT:
        return text
    end = next(end for end in range(len(text), -1, -1) if cells(text[:end]) <= CUT)
    return text[:end] + ".."


def _joined(texts: list[str], widths: list[int]) -> str:
    return "|".join(_centred(text, width) for text, width in zip(texts, widths, strict=True)).rstrip()


def _centred(text: str, width: int) -> str:
    """Center a text like `str.center`, but by terminal columns."""
    space = max(width - cells(text), 0)
    left = space // 2 + (space & width & 1)
    return " " * left + text + " " * (space - left)
