"""The demo's corpus: text from the Python installation, in a folder that is safe to recreate.

    packline-demo/demo.json        marks the folder as the demo's own; nothing else is ever replaced
                  docs.jsonl       language reference and docstrings, one document each
                  tokenizer.json   trained on code and docs
                  recipe.toml      both sources, ready for `packline build`
                  store/

Code is read in place, from the installation. Some installations include the tests of the library and some do
not, so the corpus is 11 to 31 MB; a few of the tests are files in unusual encodings, which end up in
rejects/.
"""

from __future__ import annotations

import ast
import glob
import json
import platform
import shutil
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packline.errors import StoreError

MARK = "demo.json"
NOT_ITS_OWN = ("site-packages", "dist-packages", "__pycache__", "lib-dynload")
END = "<|endoftext|>"


class Corpus(NamedTuple):
    """Paths and size of the demo's files."""

    folder: Path
    code: list[str]
    """Globs of the library's modules."""
    code_files: int
    code_bytes: int
    docs: int
    docs_bytes: int

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.toml"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def texts(self) -> Iterator[str]:
        """Yield all texts, for training; files that are not UTF-8 are skipped."""
        for path in _paths(self.code):
            try:
                yield path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
        for line in (self.folder / "docs.jsonl").read_text(encoding="utf-8").splitlines():
            yield json.loads(line)["text"]


def prepare_folder(folder: Path) -> None:
    """Create the demo's folder, or empty that of an earlier demo.

    Raises:
        StoreError: the path holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file: expected a folder for the demo", hint="choose another --out")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise StoreError(
            f"{folder} is not empty and no demo made it: it has no {MARK}", hint="choose another --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(json.dumps({"made by": "packline demo"}) + "\n", encoding="utf-8")
        shutil.rmtree(folder / "store", ignore_errors=True)
    except OSError as error:
        raise StoreError(
            f"cannot write into {folder}: {error.strerror}", hint="choose another --out"
        ) from error


def gather(folder: Path) -> Corpus:
    """Locate the code, and write the docs and the recipe."""
    library = Path(sysconfig.get_paths()["stdlib"])
    code = [f"{glob.escape(str(library))}/*.py"]
    for package in sorted(library.iterdir()):
        own = (
            package.is_dir()
            and package.name not in NOT_ITS_OWN
            and not package.name.startswith((".", "config-"))
        )
        if own and next(package.rglob("*.py"), None) is not None:
            code.append(f"{glob.escape(str(package))}/**/*.py")
    docs = 0
    with open(folder / "docs.jsonl", "w", encoding="utf-8") as file:
        for id, text in _docs(library):
            file.write(json.dumps({"id": id, "text": text}, ensure_ascii=False) + "\n")
            docs += 1
    sizes = [path.stat().st_size for path in _paths(code)]
    corpus = Corpus(folder, code, len(sizes), sum(sizes), docs, (folder / "docs.jsonl").stat().st_size)
    corpus.recipe.write_text(_recipe(corpus), encoding="utf-8")
    return corpus


def _paths(globs: list[str]) -> Iterator[Path]:
    for pattern in globs:
        yield from (Path(found) for found in sorted(glob.glob(pattern, recursive=True)))


def _docs(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the language reference that `help()` shows, and the docstrings of the library's modules."""
    from pydoc_data.topics import topics

    yield from ((f"topic {name}", text) for name, text in sorted(topics.items()) if text)
    for path in sorted(library.glob("*.py")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old modules have escapes that newer Pythons warn about
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = path.stem if isinstance(node, ast.Module) else f"{path.stem}: {node.name}"
                    yield name, text


def _recipe(corpus: Corpus) -> str:
    """Recipe as TOML; a JSON string is a valid TOML string."""
    inputs = "".join(f"    {json.dumps(pattern, ensure_ascii=False)},\n" for pattern in corpus.code)
    return f"""# The demo's recipe. Build it again: packline build {corpus.recipe} --out somewhere
tokenizer = "tokenizer.json"
eod = "{END}"
val_fraction = 0.01

[[sources]]
name = "code"
label = "Python {platform.python_version()}"
inputs = [
{inputs}]

[[sources]]
name = "docs"
label = "documentation"
inputs = ["docs.jsonl"]
"""
