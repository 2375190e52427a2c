"""Print constraints that pin every direct requirement of packline to its lower bound.

    python tools/lowest.py > build/lowest.txt

With them, `make lowest` shows that the lower bounds in pyproject.toml are true.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lowest(requirements: list[str]) -> list[str]:
    """Requirements with `==` in place of `>=`.

    >>> lowest(["numpy>=2.1"])
    ['numpy==2.1']
    """
    if wrong := [one for one in requirements if not re.fullmatch(r"[\w.-]+>=[\w.]+", one)]:
        raise SystemExit(f"expected NAME>=VERSION, found {', '.join(wrong)}")
    return [one.replace(">=", "==") for one in requirements]


def main() -> None:
    """Print the constraints of this checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    print(*lowest(project["dependencies"]), sep="\n", file=sys.stdout)


if __name__ == "__main__":
    main()
