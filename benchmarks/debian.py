"""The files of Debian packages, read straight out of the archive.

`apt-get download` needs no root and installs nothing; `dpkg-deb --fsys-tarfile` streams a package's
files, and a source tarball inside it is read as a stream too, so nothing is unpacked on disk. Cost:
a kernel source package is 140 MB to fetch, once, and about half a minute to decompress.

Does nothing on a machine without apt: `fetch_package` returns None there and the caller goes on with
what else it has.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.errors import BenchmarkError


def fetch_package(name: str, folder: Path) -> Path | None:
    """The `.deb` of a package, from `folder` or else from the machine's package index.

    A package that only names another of its kind (`linux-source` of this release) is followed.

    Returns:
        None where apt is absent or does not know the package.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    name = _named_version(name)
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{name}_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", name], cwd=folder, capture_output=True, check=False)
    return max(folder.glob(f"{name}_*.deb"), default=None)


def _named_version(name: str) -> str:
    """`linux-source` depends on just `linux-source-X.Y`, which has the files."""
    answer = subprocess.run(["apt-cache", "depends", name], capture_output=True, text=True, check=False)
    depends = [line.split()[1] for line in answer.stdout.splitlines() if line.strip().startswith("Depends:")]
    return next((other for other in depends if other.startswith(f"{name}-")), name)


def read_package(package: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of every regular file of a package, with `.gz` and `.dz` files decompressed.

    Raises:
        BenchmarkError: the archive is broken.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield from _read_tar(process.stdout, "r|")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise BenchmarkError(f"{package} is broken: {error}", hint="delete it and run again") from error
        finally:
            process.kill()


def _read_tar(stream: IO[bytes], mode: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            if member.name.endswith(".tar.xz"):
                yield from _read_tar(content, "r|xz")
            else:
                yield decompressed(member.name, content.read())


def decompressed(name: str, content: bytes) -> tuple[str, bytes]:
    """Name and content without gzip, where the name says gzip (dictzip's `.dz` is that too).

    >>> decompressed("a.txt.gz", gzip.compress(b"hi"))
    ('a.txt', b'hi')
    """
    if not name.endswith((".gz", ".dz")):
        return name, content
    try:
        return name[:-3], gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return name, content
