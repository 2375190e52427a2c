"""Write constraints.txt: the exact version of everything that an install of packline may bring.

Asks pip to resolve packline with all its extras without installing anything, and pins what it
would take. Costs a minute and the package index; needs nothing but Python and pip.

Does not pin per platform: versions are those of the Python and system that ran it, and a package
that only another platform needs stays free there. Does not pin build tools, which `[build-system]`
in pyproject.toml does.

    python tools/lock.py            # resolve anew
    python tools/lock.py --keep     # leave present pins alone: for a requirement added or dropped
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
HEADER = """\
# Exact versions that packline is developed and tested with. Written by `make lock`; not by hand.
# Python {python}. For pip's -c: a pin says which version, not that the package is installed.
"""

# The releases that the peers were compared with; `make lock` does not move them.
HELD = ["torch==2.13.0", "torchdata==0.11.0"]


def requirements() -> list[str]:
    """Everything that pyproject.toml names: the dependencies and all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(line for extra in extras for line in extra), *HELD]


def resolve(wanted: list[str], *, keep: bool) -> dict[str, str]:
    """The version of every package in the closure of `wanted`, by normalised name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
        command += ["--dry-run", "--ignore-installed", "--report", str(report), *wanted]
        command += ["-c", str(CONSTRAINTS)] if keep else []
        subprocess.run(command, check=True)
        installs = json.loads(report.read_text("utf-8"))["install"]
    pins = {}
    for package in installs:
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        # A local label (`+cpu`) belongs to one build of the version, not to the version.
        pins[name] = package["metadata"]["version"].partition("+")[0]
    return pins


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description="Write constraints.txt.")
    parser.add_argument("--keep", action="store_true", help="leave present pins alone")
    keep = parser.parse_args().keep and CONSTRAINTS.exists()
    pins = resolve(requirements(), keep=keep)
    python = ".".join(map(str, sys.version_info[:2]))
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    CONSTRAINTS.write_text(HEADER.format(python=python) + "".join(lines), "utf-8")
    print(f"{CONSTRAINTS.name}: {len(pins)} packages")


if __name__ == "__main__":
    main()
