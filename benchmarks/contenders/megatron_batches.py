"""Megatron's GPTDataset over one pair of files, in torch's DataLoader.

    PEERS_PYTHON -m benchmarks.contenders.megatron_batches FOLDER/train_text_document [--workers N]

Its samples of 4,096 tokens in its own shuffled order: tokens, labels, positions and loss mask. With
`--reset` the settings for packed documents: positions restart, and their ends have no loss.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

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
    parser.add_argument("prefix", help="path of the pair, without .bin")
    parser.add_argument("--reset", action="store_true", help="as for packed documents")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    use_one_thread()
    with tempfile.TemporaryDirectory() as cache:
        dataset = make_dataset(arguments.prefix, cache, arguments.reset)
        batches = endless_batches(dataset, arguments.workers)

        def next_batch() -> Any:
            batch = next(batches)
            return batch["tokens"], batch["labels"]

        check_batch(*next_batch())
        report_rate(next_batch, arguments.seconds)


def make_dataset(prefix: str, cache: str, reset: bool) -> Any:
    """One epoch of samples, by Megatron's own index."""
    import numpy as np
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    indexed = IndexedDataset(prefix)
    eod = int(indexed[0][-1])
    tokenizer: Any = SimpleNamespace(vocab_size=65_500, eod=eod, pad=-1, unique_identifiers={"name": "none"})
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=SEQ_LEN,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=cache,
        tokenizer=tokenizer,
        reset_position_ids=reset,
        reset_attention_mask=reset,
        eod_mask_loss=reset,
        create_attention_mask=False,
    )
    documents = np.arange(len(indexed.document_indices) - 1, dtype=np.int32)
    return GPTDataset(indexed, prefix, documents, None, Split.train, config)


def endless_batches(dataset: Any, workers: int) -> Iterator[Any]:
    """Batches of one epoch after another, in the order of the dataset, which is shuffled."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset,
        batch_size=ROWS,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


if __name__ == "__main__":
    main()
