"""packline's rows over a store: read one batch after another, or through the Loader.

    python -m benchmarks.contenders.packline_rows STORE [--loader] [--packing NAME] [--fields A,B]

Rows in the order of a keyed permutation, all four arrays unless `--fields` says otherwise. Without `--loader`
nothing but `Rows.read` is timed, on the one thread.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np

import packline
from benchmarks.contenders.batches import ROWS, SEQ_LEN, TIMED_SECONDS, check_batch, report_rate
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
    parser.add_argument("--loader", action="store_true", help="through the Loader")
    parser.add_argument("--prefetch", type=int, default=2, help="of the Loader")
    parser.add_argument("--plans", help="folder of plans")
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    rows = packline.open(arguments.store).rows(
        seq_len=SEQ_LEN,
        packing=arguments.packing,
        shuffle_documents=arguments.shuffle_documents,
        plans=arguments.plans,
    )
    fields = tuple(arguments.fields.split(","))
    batch = rows.read(np.arange(ROWS) % len(rows), ("tokens", "targets"))
    check_batch(batch["tokens"], batch["targets"])
    if arguments.loader:
        loader = packline.Loader(
            rows, batch_size=ROWS, epochs=1000, fields=fields, prefetch=arguments.prefetch
        )
        batches = iter(loader)
        report_rate(lambda: next(batches), arguments.seconds)
    else:
        report_rate(reading(rows, fields), arguments.seconds)


def reading(rows: Rows, fields: tuple[str, ...]) -> Callable[[], object]:
    """Reads the next batch of a shuffled pass, and of the next pass when that is over."""
    count = len(rows) // ROWS * ROWS
    order = Permutation(len(rows), 0)(np.arange(count)).reshape(-1, ROWS)
    indices = itertools.cycle(order)
    return lambda: rows.read(next(indices), fields)


if __name__ == "__main__":
    main()
