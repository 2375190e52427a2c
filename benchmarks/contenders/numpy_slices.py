"""Bare NumPy: slices of the open file fill four arrays that are allocated once. No loader can do more.

    python -m benchmarks.contenders.numpy_slices tokens.bin

Tokens, targets, position_ids and segment_ids, int32 `[32, 4096]`, of rows drawn at random: no look-up of
documents, positions are always the same template and segments always 0. What packline's rows cost beyond
this is knowing where documents begin and end.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.contenders.batches import ROWS, SEQ_LEN, TIMED_SECONDS, check_batch, report_rate


def main() -> None:
    """Fill arrays for some seconds and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokens", help="a file of uint16 tokens")
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    data = np.asarray(np.memmap(arguments.tokens, "<u2", "r"))
    generator = np.random.default_rng(0)
    rows = (len(data) - 1) // SEQ_LEN
    template = np.arange(SEQ_LEN, dtype=np.int32)
    batch = np.empty((4, ROWS, SEQ_LEN), np.int32)
    tokens, targets, positions, segments = batch

    def fill() -> None:
        starts = (generator.integers(0, rows, ROWS) * SEQ_LEN).tolist()
        for row, start in enumerate(starts):
            tokens[row] = data[start : start + SEQ_LEN]
            targets[row] = data[start + 1 : start + 1 + SEQ_LEN]
            positions[row] = template
            segments[row] = 0

    fill()
    check_batch(tokens, targets)
    report_rate(fill, arguments.seconds)


if __name__ == "__main__":
    main()
