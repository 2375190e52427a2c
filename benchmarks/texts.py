"""Real text, from what a machine has: prose, code, and Chinese, Japanese and Korean.

- prose: documentation of the kernel, Git, Vim and Perl, manual pages and a dictionary (Debian packages);
  `/usr/share/doc`; what installed Python packages say of themselves; English corpora of `../shared`;
- code: the kernel's sources (Debian package); the standard library and installed packages of this
  Python; mixed code of `../shared`;
- cjk: Chinese and Japanese manual pages, the kernel's translations (Debian packages); corpora of `../shared`.

What is missing is passed over, so two machines have different texts; `corpus.py` says what it found.
Equal texts are kept once. Left out: tables that a program wrote (GPU register headers), licence
texts (the same again in every package), HTML, anything that is not UTF-8 or holds a NUL.

Cost: all text is in memory, about 1.2 GB with the kernel's sources.
"""

from __future__ import annotations

import io
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import zstandard

from benchmarks.debian import decompressed, fetch_package, read_package
from packline.fingerprint import hash_bytes

Kind = Literal["prose", "code", "cjk"]

PACKAGES = (
    "linux-source",
    "linux-doc",
    "git-doc",
    "vim-runtime",
    "perl-doc",
    "manpages",
    "manpages-dev",
    "dict-gcide",
    "manpages-ja",
    "manpages-ja-dev",
    "manpages-zh",
)
CODE = (".c", ".h", ".S", ".py", ".pyi", ".pl", ".pm", ".vim", ".sh", ".dts", ".dtsi", ".js", ".rs")
PROSE = (".rst", ".txt", ".md", ".pod", ".dict", "/README", "/NEWS", "/changelog", "/changelog.Debian")
SHARED: dict[str, Kind] = {
    "novels_en": "prose",
    "imdb_en": "prose",
    "peps": "prose",
    "wikitext": "prose",
    "dialogs": "prose",
    "latex_math": "prose",
    "code_mixed": "code",
    "wikipedia_zh": "cjk",
    "classical_modern_zh": "cjk",
    "aozora_ja": "cjk",
    "reviews_ko": "cjk",
}
SMALLEST_BYTES = 200
LARGEST_BYTES = 2_000_000


class Text(msgspec.Struct, frozen=True, gc=False):
    """One distinct document of the benchmark: its UTF-8 bytes, what it is and where it came from."""

    hash: str
    kind: Kind
    name: str
    content: bytes


class _Record(msgspec.Struct):
    text: str


def find_texts(packages: Path, shared: Path | None) -> list[Text]:
    """Every distinct text that this machine has, in the order of its hash.

    Ordering by hash is a shuffle that depends on the texts alone: not on where they were found,
    nor on when.

    Args:
        packages: folder of `.deb` files, filled from the package index.
        shared: a folder with `corpora/*.jsonl.zst`, or None.
    """
    found: dict[str, Text] = {}
    for kind, name, content in _candidates(packages, shared):
        for piece in _pieces(content):
            if SMALLEST_BYTES <= len(piece) <= LARGEST_BYTES and _is_text(piece):
                key = hash_bytes(piece)
                found.setdefault(key, Text(key, kind, name, piece))
    return sorted(found.values(), key=lambda text: text.hash)


def _candidates(packages: Path, shared: Path | None) -> Iterator[tuple[Kind, str, bytes]]:
    # What is named first gives its name to a text that is found twice.
    if shared is not None:
        for path in sorted((shared / "corpora").glob("*.jsonl.zst")):
            name = path.name.removesuffix(".jsonl.zst")
            if name in SHARED:
                yield from ((SHARED[name], name, text) for text in _read_records(path))
    for package in PACKAGES:
        if (archive := fetch_package(package, packages)) is not None:
            for member, content in read_package(archive):
                if (kind := kind_of(member)) is not None:
                    yield kind, package, content
    for folder in _folders():
        for file in sorted(folder.rglob("*")):
            if (kind := kind_of(str(file))) is not None and file.is_file() and not file.is_symlink():
                yield kind, folder.name, decompressed(str(file), file.read_bytes())[1]


def _folders() -> list[Path]:
    """Documentation of the system, the standard library, and installed Python packages."""
    library = Path(sysconfig.get_path("stdlib"))
    folders = [Path("/usr/share/doc"), library, *map(Path, site.getsitepackages())]
    return [folder for folder in folders if folder.is_dir()]


def _read_records(path: Path) -> Iterator[bytes]:
    decoder = msgspec.json.Decoder(_Record)
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        for line in io.BufferedReader(stream):
            yield decoder.decode(line).text.encode()


def kind_of(path: str) -> Kind | None:
    """What a file holds, by its path; None for what is not wanted.

    >>> kind_of("kernel/sched/core.c"), kind_of("doc/intro.rst.gz"), kind_of("usr/share/man/ja/man1/ls.1.gz")
    ('code', 'prose', 'cjk')
    >>> kind_of("index.html") is kind_of("drivers/gpu/drm/amd/include/asic_reg/x.h") is None
    True
    """
    path = path.removesuffix(".gz").removesuffix(".dz")
    if "/translations/" in path or "/man/ja/" in path or "/man/zh_CN/" in path:
        cjk = any(language in path for language in ("/zh_CN/", "/zh_TW/", "/ja_JP/", "/ko_KR/", "/man/ja/"))
        return "cjk" if cjk else None
    if "drm/amd/include/" in path or path.endswith("/copyright") or "license" in path.lower():
        return None
    if path.endswith(CODE):
        return "code"
    if path.endswith(PROSE) or "/man/man" in path:
        return "prose"
    return None


def _pieces(content: bytes) -> Iterator[bytes]:
    """A file larger than a document may be (a dictionary, a bound volume) is cut at empty lines."""
    start = 0
    while len(content) - start > LARGEST_BYTES:
        end = content.rfind(b"\n\n", start, start + LARGEST_BYTES // 4)
        if end <= start:
            return
        yield content[start:end]
        start = end
    yield content[start:]


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
