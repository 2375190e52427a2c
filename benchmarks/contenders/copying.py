"""How long it takes to copy a folder's files, until the disk has them: the measure of an export.

    python -m benchmarks.contenders.copying FROM TO

Files are copied inside the kernel, one after another (`shutil.copyfile`), and waited for as an export waits:
each by itself, or, where they are many, all that the file system has waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

MANY = 16
"""Files that are waited for one by one."""


def main() -> None:
    """Copy, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    files = [path.relative_to(arguments.source) for path in arguments.source.rglob("*") if path.is_file()]
    for folder in {arguments.target / path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    for path in sorted(files):
        shutil.copyfile(arguments.source / path, arguments.target / path)
        if len(files) <= MANY:
            sync(arguments.target / path)
    if len(files) > MANY:
        os.sync()
    seconds = time.perf_counter() - started
    copied = sum((arguments.target / path).stat().st_size for path in files)
    print(json.dumps({"files": len(files), "bytes": copied, "seconds": seconds}))


def sync(path: Path) -> None:
    """Wait until the disk has a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
