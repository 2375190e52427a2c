"""`packline demo`: from text to a store that can be inspected, without a network.

Nothing is prepared: the corpus comes from this machine's Python, and every number is measured during the run.
It takes a few seconds and about 50 MB of disk.

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
import shlex
import shutil
import sysconfig
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from cyclopts import Parameter

from packline.cli.build import facts
from packline.cli.dry_run import estimate_blocks
from packline.cli.main import DONE, FAILED, interrupted
from packline.cli.output import output
from packline.cli.progress import Tally, finished_blocks, kept, watch
from packline.cli.verify import report_blocks, run_verify
from packline.errors import StoreError
from packline.jobs.dry_run import Estimate, estimate_build
from packline.jobs.events import Finished
from packline.recipe import load_recipe
from packline.store.lookup import find_by_id, find_by_place
from packline.store.reader import StoreReader
from packline.store.report import Report
from packline.viewing.describe import FIRST_TOKENS, group_table, length_table
from packline.viewing.page import KeyValues, Table
from packline.viewing.store_counts import group_shards, measure_lengths
from packline.viewing.text import duration, plural, size
from packline.viewing.tokens import document_strip

VOCAB_SIZE = 16_384
MARK = "demo.json"
NOT_ITS_OWN = ("site-packages", "dist-packages", "__pycache__", "lib-dynload")
END = "<|endoftext|>"


def demo(
    *,
    out: Annotated[
        str, Parameter(help="Folder for all files: new, or of an earlier demo.", alias="-o")
    ] = "packline-demo",
) -> int:
    """Build, verify and show a store of Python's own library. No network.

    The corpus is the source code and documentation of the installed Python. The
    demo trains a tokenizer on it, builds a store, verifies it and shows it.

    Examples:

      packline demo
      packline demo --out somewhere
    """
    folder = Path(out)
    prepare_folder(folder)
    corpus = _gather(folder)
    training_seconds = _train(corpus)
    estimate = _plan(corpus)
    _title(4, "build", f"packline build {_quoted(corpus.recipe)} --out {_quoted(corpus.store)}")
    tally = Tally()
    try:
        finished = _build(corpus, tally)
    except KeyboardInterrupt as error:
        return interrupted(error, kept(tally))
    output.line()
    output.blocks(*finished_blocks(finished, str(corpus.store)))
    report = _verify(corpus)
    _show(corpus)
    code = DONE if report.ok else FAILED
    output.result(
        {
            **facts(finished, tally, str(corpus.store), code, 1.0),
            "command": "demo",
            "training_seconds": training_seconds,
            "plan": msgspec.to_builtins(estimate),
            "verify": msgspec.to_builtins(report),
        }
    )
    return code


def _title(number: int, word: str, what: str) -> None:
    output.line()
    output.line((f"{number}  {word}", "title"), "   ", (what, "quiet"))
    output.line()


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _gather(folder: Path) -> Corpus:
    _title(1, "text", "the library of this machine's Python")
    corpus = gather(folder)
    code = ("code", plural(corpus.code_files, "file"), size(corpus.code_bytes))
    docs = ("docs", plural(corpus.docs, "document"), size(corpus.docs_bytes))
    output.blocks(Table("", (), (code, docs), "lrr"))
    return corpus


def _train(corpus: Corpus) -> float:
    from packline.vocabulary.training import train_bpe

    _title(2, "tokenizer", f"byte-level BPE of {VOCAB_SIZE:,} tokens, trained on this text")
    started = time.perf_counter()
    corpus.tokenizer.write_text(train_bpe(corpus.texts(), VOCAB_SIZE, (END,)), encoding="utf-8")
    seconds = time.perf_counter() - started
    output.line(f"  {corpus.tokenizer} in {duration(seconds)}")
    return seconds


def _plan(corpus: Corpus) -> Estimate:

    _title(3, "plan", f"packline build {_quoted(corpus.recipe)} --dry-run")
    found = estimate_build(*load_recipe(corpus.recipe))
    output.blocks(*estimate_blocks(found))
    return found


def _build(corpus: Corpus, tally: Tally) -> Finished:
    from packline.jobs.build_job import run_build

    recipe, options = load_recipe(corpus.recipe)
    with watch(tally) as hear:
        return run_build(recipe, corpus.store, options, hear)


def _verify(corpus: Corpus) -> Report:
    _title(5, "verify", f"packline verify {_quoted(corpus.store)} --deep")
    report = run_verify(str(corpus.store), deep=True)
    output.blocks(*report_blocks(report))
    return report


def _show(corpus: Corpus) -> None:
    _title(6, "look", f"packline info {_quoted(corpus.store)}")
    store = StoreReader(corpus.store)
    found = [*find_by_place(store, "bisect.py", 0), *find_by_id(store, "topic with")]
    strips = [document_strip(store, one, most=FIRST_TOKENS) for one in found]
    steps = KeyValues(
        (
            ("in Python", f"packline.open({str(corpus.store)!r}).documents[0]"),
            ("in a browser", f"packline serve {_quoted(corpus.store)}"),
            ("as rows", f"packline info {_quoted(corpus.store)} --seq-len 2048"),
        )
    )
    lengths = length_table(measure_lengths(store))
    output.blocks(group_table(group_shards(store)), lengths, *strips, steps)


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
