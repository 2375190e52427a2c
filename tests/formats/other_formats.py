"""A distribution with a format of its own, installed by pip: `packline-lines`, with the format `lines`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent / "distribution" / "packline_lines.py"
OWN = {"lines": "packline_lines:Lines"}


def make_wheel(
    folder: Path, name: str = "packline-lines", entries: dict[str, str] = OWN, module: str = ""
) -> Path:
    """A wheel of one module; Python imports it, and finds its entry points, where it is on the path.

    Args:
        entries: formats and their classes.
        module: source of the module, called like the distribution; by default that of `lines`.
    """
    package, module = name.replace("-", "_"), module or SOURCE.read_text("utf-8")
    lines = "".join(f"{format} = {kind}\n" for format, kind in entries.items())
    files = {
        f"{package}.py": module,
        f"{package}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{package}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{package}-1.0.dist-info/entry_points.txt": f"[packline.formats]\n{lines}",
        f"{package}-1.0.dist-info/RECORD": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return wheel


def install(wheel: Path) -> Path:
    """Install a wheel as a user would; the folder to put on the path."""
    site = wheel.with_name("site")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "-q")
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(wheel)]
    subprocess.run(command, check=True)
    return site
