"""best_fit over made-up lengths on one core, or best fit decreasing one piece at a time to compare it with.

    python -m benchmarks.contenders.best_fit LENGTHS --documents 100000000 --seq-len 4096 --out FOLDER
    python -m benchmarks.contenders.best_fit LENGTHS --documents 1000000 --seq-len 4096 --naive

LENGTHS is a file of int32, mapped as the index of a store is. packline's time is from the first length read
to the plan on disk and mapped; the other's counts pieces in plain Python, shares no code with packline, and
knows rows only by the room that is left in them.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import resource
import time
from pathlib import Path

import numpy as np

BLOCK = 1 << 20


def main() -> None:
    """Pack, and print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lengths", type=Path)
    parser.add_argument("--documents", type=int, required=True, help="the first so many")
    parser.add_argument("--seq-len", type=int, required=True)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--out", type=Path, help="folder of the plan")
    how.add_argument("--naive", action="store_true")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lengths = np.memmap(arguments.lengths, "<i4", "r")[: arguments.documents].view(np.ndarray)
    started = time.perf_counter()
    if arguments.naive:
        rows = pack_naively(lengths, arguments.seq_len)
    else:
        rows = pack(lengths, arguments.seq_len, arguments.out)
    seconds = time.perf_counter() - started
    report = {
        "documents": len(lengths),
        "tokens": int(lengths.sum(dtype=np.int64)),
        "rows": rows,
        "seconds": seconds,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(report))


def pack(lengths: np.ndarray, seq_len: int, out: Path) -> int:
    """packline's: rows of a plan that was written to `out`."""
    from packline.packing.best_fit import make_plan
    from packline.packing.cache import save_plan

    starts = range(0, len(lengths), BLOCK)
    blocks = (lengths[start : start + BLOCK].astype(np.int64) for start in starts)
    plan = make_plan(blocks, 0, len(lengths), seq_len)
    saved = save_plan(out, "0" * 32, plan)
    return int(saved.arrays["firsts"][-1])


def pack_naively(lengths: np.ndarray, seq_len: int) -> int:
    """Rows of best fit decreasing, one piece after another into the least room that holds it.

    >>> pack_naively(np.array([6, 6, 6, 2, 2, 2, 2, 2, 13]), 10)
    5
    """
    full, rests = np.divmod(lengths.astype(np.int64), seq_len)
    rows = int(full.sum())
    open_rows = [0] * (seq_len + 1)
    """How many rows have so much room."""
    rooms: list[int] = []
    """The amounts of room that some row has, sorted."""
    for piece in np.sort(rests[rests > 0])[::-1].tolist():
        place = bisect.bisect_left(rooms, piece)
        if place < len(rooms):
            room = rooms[place]
            open_rows[room] -= 1
            if not open_rows[room]:
                del rooms[place]
        else:
            room = seq_len
            rows += 1
        left = room - piece
        if not open_rows[left]:
            bisect.insort(rooms, left)
        open_rows[left] += 1
    return rows


if __name__ == "__main__":
    main()
