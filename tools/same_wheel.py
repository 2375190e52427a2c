"""Compare two wheels file by file: what is built from the sdist must be what is built from the checkout.

    python tools/same_wheel.py ONE.whl OTHER.whl
"""

from __future__ import annotations

import sys
import zipfile


def contents(path: str) -> dict[str, int]:
    """Checksum of each file of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return {entry.filename: entry.CRC for entry in wheel.infolist()}


def main() -> None:
    """Compare the two wheels of the command line."""
    one, other = map(contents, sys.argv[1:3])
    if different := sorted(name for name in {*one, *other} if one.get(name) != other.get(name)):
        raise SystemExit(f"the wheel from the sdist differs: {', '.join(different)}")
    if "packline/py.typed" not in one:
        raise SystemExit("the wheel has no packline/py.typed")


if __name__ == "__main__":
    main()
