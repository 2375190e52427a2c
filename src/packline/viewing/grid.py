"""The grid of chuk-mlx's viewer for a batch: first tokens, last token and last position of each row.

        T0    |    T1    | ... |    T6    |    LT    |   T511
    ----------------------------------------------------------
       The    |   cat    | ... |   the    |   end    |  <pad>
      (464)   |  (3797)  | ... |  (262)   | T9:(886) |   (0)
    ----------------------------------------------------------

At most seven positions, then LT, the last token that is not padding, with its position, then the last
position of the row. Cells are 10 terminal columns wide and centred; a text beyond 8 columns is cut and ends
with `..`. A column whose ids need more room is as wide as its widest id, so that columns stay aligned.
"""

from __future__ import annotations

import numpy as np

from packline.viewing.analysis import text_of
from packline.viewing.batch_files import BatchFile
from packline.viewing.text import cells, visible
from packline.viewing.vocabulary import Vocabulary

WIDTH, CUT, COLUMNS = 10, 8, 8
TITLES = {"input": "Visualizing Input Tensor:", "target": "Visualizing Target Tensor:"}


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
        return [f"No {tensor} tensor found in the .npz file"]
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
    drawn = [TITLES[tensor], _joined(heads, widths), rule]
    for texts, ids in body:
        drawn += [_joined(texts, widths), _joined(ids, widths), rule]
    return drawn


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
    text = visible(text_of(vocabulary, number))
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
