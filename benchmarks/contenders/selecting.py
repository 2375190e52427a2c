"""One selection of a store's documents.

    python -m benchmarks.contenders.selecting FOLDER CASE

Prints the number of selected documents, the seconds from opening the store to the finished selection, the
peak of resident memory, and the size of the plan.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from benchmarks.selecting import CASES, plan_bytes


def main() -> None:
    """Select, and print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("case", choices=CASES)
    arguments = parser.parse_args()
    from packline.packing.options import DocumentFilter
    from packline.packing.selection import Selection
    from packline.store.reader import StoreReader

    settings: dict[str, Any] = {**CASES[arguments.case]}
    if "exclude" in settings:
        settings["exclude"] = str(arguments.folder / settings["exclude"])
    before = plan_bytes(arguments.folder / "store")
    started, worked = time.perf_counter(), time.process_time()
    selection = Selection(StoreReader(arguments.folder / "store"), DocumentFilter(**settings))
    seconds = time.perf_counter() - started
    report = {
        "selected": len(selection),
        "seconds": seconds,
        "cpu_seconds": time.process_time() - worked,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "plan_bytes": plan_bytes(arguments.folder / "store") - before,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
