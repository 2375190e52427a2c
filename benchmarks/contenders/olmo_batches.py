"""OLMo-core's ComposableDataLoader over one file of tokens.

    PEERS_PYTHON -m benchmarks.contenders.olmo_batches tokens.bin [--workers N]

Rows of 4,096 tokens, shuffled, by four threads in this process or by worker processes; labels are made from a
batch by its own function, as its trainer does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import types
from typing import Any

from benchmarks.contenders.batches import (
    ROWS,
    SEQ_LEN,
    TIMED_SECONDS,
    check_batch,
    report_rate,
    use_one_thread,
)

THREADS = 4
"""Threads of OLMo-core's own configurations."""


def leave_out_downloads() -> None:
    """Put names in place of cached_path, which downloads files and needs the clients of three clouds."""
    for name in ("cached_path", "cached_path.schemes"):
        module: Any = types.ModuleType(name)
        module.__path__, module.cached_path = [], None
        module.S3Client = module.SchemeClient = type("Client", (), {"recoverable_errors": ()})
        module.add_scheme_client = lambda client: None
        sys.modules[name] = module


def main() -> None:
    """Make batches for some seconds and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokens", help="a file of uint16 tokens")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    leave_out_downloads()
    use_one_thread()
    with tempfile.TemporaryDirectory() as work:
        batches = endless_batches(arguments.tokens, arguments.workers, work)

        def next_batch() -> tuple[Any, Any]:
            from olmo_core.data.utils import get_labels

            batch = next(batches)
            return batch["input_ids"], get_labels(batch)

        check_batch(*next_batch())
        report_rate(next_batch, arguments.seconds)
        batches.close()
    sys.stdout.flush()
    os._exit(0)  # its reading threads sometimes end the interpreter with an abort


def endless_batches(tokens: str, workers: int, work: str) -> Any:
    """Batches of one epoch after another."""
    from olmo_core.data import DataCollator, TokenizerConfig
    from olmo_core.data.composable import ComposableDataLoader, ConcatAndChunkInstanceSource
    from olmo_core.data.types import NumpyDatasetDType

    tokenizer = TokenizerConfig(vocab_size=65_500, eos_token_id=0, pad_token_id=0)
    source = ConcatAndChunkInstanceSource.Config.from_npy(
        tokens, tokenizer=tokenizer, sequence_length=SEQ_LEN, dtype=NumpyDatasetDType.uint16
    ).build(work)
    loader = ComposableDataLoader(
        source,
        collator=DataCollator(pad_token_id=0),
        tokenizer=tokenizer,
        work_dir=work,
        global_batch_size=ROWS * SEQ_LEN,
        seed=0,
        num_threads=0 if workers else THREADS,
        num_workers=workers,
        display_source_visualization=False,
    )
    for epoch in itertools.count(1):
        loader.reshuffle(epoch)
        yield from loader
        loader.reset()


if __name__ == "__main__":
    main()
