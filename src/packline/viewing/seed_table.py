"""The ten-row table of chuk-mlx's analyzer for a batch, with corrected arithmetic.

    Summary for input tensor:
    ...
    Number of Rows                                    2
    Average Real Tokens per Row                    4.00
    Memory Usage for Real Tokens               32 bytes

Names, order, widths and lines are those that existing scripts parse. Padding is determined as in
`batch_files`, and memory by the size of the tensor's own integers.
"""

from __future__ import annotations

import msgspec
import numpy as np

from packline.viewing.batch_files import BatchFile

WIDTH = 50


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
    double, single = "=" * WIDTH, "-" * WIDTH
    return [
        f"Summary for {summary.tensor} tensor:",
        "",
        "Batch Analysis Summary:",
        double,
        _line("Batch File", name),
        single,
        _line("Number of Rows", f"{summary.rows}"),
        _line("Number of Tokens", f"{summary.tokens}"),
        _line("Max Sequence Length", f"{summary.seq_len}"),
        single,
        _line("Average Real Tokens per Row", f"{summary.real_per_row:.2f}"),
        _line("Average Padding Tokens per Row", f"{summary.padding_per_row:.2f}"),
        single,
        _line("Total Real Tokens in Batch", f"{summary.real_tokens}"),
        _line("Total Padding Tokens in Batch", f"{summary.padding_tokens}"),
        single,
        _line("Memory Usage for Real Tokens", f"{summary.real_tokens * summary.token_bytes} bytes"),
        _line("Memory Usage for Padding Tokens", f"{summary.padding_tokens * summary.token_bytes} bytes"),
        double,
    ]


def missing_line(tensor: str) -> str:
    """Message for a missing tensor.

    >>> missing_line("target")
    'No target tensor found in the .npz file'
    """
    return f"No {tensor} tensor found in the .npz file"


def _line(label: str, value: str) -> str:
    return f"{label:<35} {value:>15}"
