"""Check a wheel: it has the files of the wheel from the sdist, and a description without dead links.

python tools/check_wheel.py ONE.whl OTHER.whl
"""

from __future__ import annotations

import re
import sys
import zipfile


def contents(path: str) -> dict[str, int]:
    """Checksum of each file of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return {entry.filename: entry.CRC for entry in wheel.infolist()}


def description(path: str) -> str:
    """Description of a wheel, as a package index shows it."""
    with zipfile.ZipFile(path) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return wheel.read(name).decode("utf-8").partition("\n\n")[2]


def dead_links(markdown: str) -> list[str]:
    """Links and pictures that are not absolute.

    >>> dead_links("[a](https://b.org/c) ![d](e/f.png) [g](#h)")
    ['e/f.png', '#h']
    """
    return [link for link in re.findall(r"\]\(([^)\s]+)", markdown) if not link.startswith("https://")]


def main() -> None:
    """Compare the two wheels of the command line."""
    one, other = map(contents, sys.argv[1:3])
    if different := sorted(name for name in {*one, *other} if one.get(name) != other.get(name)):
        raise SystemExit(f"the wheel from the sdist differs: {', '.join(different)}")
    if dead := dead_links(description(sys.argv[1])):
        raise SystemExit(f"the description has links without an address: {', '.join(dead)}")
    if "packline/py.typed" not in one:
        raise SystemExit("the wheel has no packline/py.typed")


if __name__ == "__main__":
    main()
