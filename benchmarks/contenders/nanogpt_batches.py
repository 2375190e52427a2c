"""Batches in nanoGPT's manner: one memory-mapped file, random offsets, two stacked int64 tensors.

    PEERS_PYTHON -m benchmarks.contenders.nanogpt_batches tokens.bin

The map is made anew for every batch, as nanoGPT does against a leak of memory; `--keep-map` makes it once.
No epochs and no boundaries of documents: any place of the file may begin a row.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.contenders.batches import (
    ROWS,
    SEQ_LEN,
    TIMED_SECONDS,
    check_batch,
    report_rate,
    use_one_thread,
)


def main() -> None:
    """Make batches for some seconds and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokens", help="a file of uint16 tokens")
    parser.add_argument("--keep-map", action="store_true", help="map the file once, not for every batch")
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()

    import torch

    use_one_thread()
    kept = np.memmap(arguments.tokens, np.uint16, "r")

    def next_batch() -> tuple[torch.Tensor, torch.Tensor]:
        data = kept if arguments.keep_map else np.memmap(arguments.tokens, np.uint16, "r")
        places = torch.randint(len(data) - SEQ_LEN, (ROWS,)).tolist()

        def stacked(skip: int) -> torch.Tensor:
            begins = [place + skip for place in places]
            return torch.stack(
                [torch.from_numpy(data[begin : begin + SEQ_LEN].astype(np.int64)) for begin in begins]
            )

        return stacked(0), stacked(1)

    check_batch(*next_batch())
    report_rate(next_batch, arguments.seconds)


if __name__ == "__main__":
    main()
