"""packline's rows over a store: read one batch after another, or through the Loader.

    python -m benchmarks.contenders.packline_rows STORE [--loader | --workers N] [--packing NAME] [...]

Rows in the order of a keyed permutation, all four arrays unless `--fields` names others. Without `--loader`
nothing but `Rows.read` is timed, on the one thread. `--workers` takes batches from torch's `DataLoader`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import packline
from benchmarks.contenders.batches import (
    ROWS,
    SEQ_LEN,
    TIMED_SECONDS,
    check_batch,
    report_rate,
    use_one_thread,
)
from packline.packing.batch import FIELDS
from packline.packing.rows import Rows
from packline.permutation import Permutation


def main() -> None:
    """Read batches for some seconds and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--packing", default="concat")
    parser.add_argument("--shuffle-documents", type=int)
    parser.add_argument("--fields", default=",".join(FIELDS))
    parser.add_argument("--mixture", action="store_true", help="of these rows and of others of the store")
    parser.add_argument("--loader", action="store_true", help="through the Loader")
    parser.add_argument("--workers", type=int, default=0, help="processes of torch's DataLoader")
    parser.add_argument("--prefetch", type=int, default=2, help="of the Loader")
    parser.add_argument("--plans", help="folder of plans")
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    store = packline.open(arguments.store)
    rows = store.rows(
        seq_len=SEQ_LEN,
        packing=arguments.packing,
        shuffle_documents=arguments.shuffle_documents,
        plans=arguments.plans,
    )
    fields = tuple(arguments.fields.split(","))
    batch = rows.read(np.arange(ROWS) % len(rows), ("tokens", "targets"))
    check_batch(batch["tokens"], batch["targets"])
    if arguments.loader or arguments.workers:
        source: Any = packline.Mixture([(rows, 1, 1000)])
        if arguments.mixture:
            others = store.rows(seq_len=SEQ_LEN, packing="concat", min_tail_fraction=0.1)
            source = packline.Mixture([(rows, 0.7, 1000), (others, 0.3, 1000)])
        loader = packline.Loader(source, batch_size=ROWS, fields=fields, prefetch=arguments.prefetch)
        batches = worker_batches(loader, arguments.workers) if arguments.workers else iter(loader)
        report_rate(lambda: next(batches), arguments.seconds)
    else:
        report_rate(reading(rows, fields), arguments.seconds)


def worker_batches(loader: packline.Loader, workers: int) -> Iterator[Any]:
    """Batches that worker processes of torch's `DataLoader` read, as tensors."""
    from torch.utils.data import DataLoader

    import packline.torch

    use_one_thread()
    return iter(DataLoader(packline.torch.LoaderDataset(loader), batch_size=None, num_workers=workers))


def reading(rows: Rows, fields: tuple[str, ...]) -> Callable[[], object]:
    """Reads the next batch of a shuffled pass, and of the next pass when that is over."""
    count = len(rows) // ROWS * ROWS
    order = Permutation(len(rows), 0)(np.arange(count)).reshape(-1, ROWS)
    indices = itertools.cycle(order)
    return lambda: rows.read(next(indices), fields)


if __name__ == "__main__":
    main()
