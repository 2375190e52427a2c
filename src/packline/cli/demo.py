"""`packline demo`: from text to a store that can be inspected, without a network.

    packline-demo/demo.json        marks the folder as the demo's own; nothing else is ever replaced
                  docs.jsonl       language reference, one document for each topic
                  tokenizer.json   trained on code and docs
                  recipe.toml      both sources, ready for `packline build`
                  store/

Code is read in place, from the installation: 11 to 31 MB, with a few files in unusual encodings.
"""

from __future__ import annotations

import glob
import json
import platform
import shlex
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from packline.cli.build import estimate_blocks, facts, finished_blocks
from packline.cli.main import DONE, FAILED
from packline.cli.output import output
from packline.cli.progress import watch
from packline.cli.verify import report_blocks, run_verify
from packline.errors import StoreError
from packline.jobs.dry_run import estimate_build
from packline.recipe import load_recipe
from packline.store.lookup import find_by_id, find_by_place
from packline.store.reader import StoreReader
from packline.viewing.describe import FIRST_TOKENS, group_table, length_table
from packline.viewing.info import group_shards, measure_lengths
from packline.viewing.page import KeyValues, Table
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
    from packline.jobs.build_job import run_build
    from packline.vocabulary.training import train_bpe

    prepare_folder(Path(out))
    _title(1, "text", "the library of this machine's Python")
    corpus = gather(Path(out))
    recipe, tokenizer, store = (shlex.quote(str(path)) for path in corpus[1:4])
    code = ("code", plural(corpus.code_files, "file"), size(corpus.code_bytes))
    docs = ("docs", plural(corpus.docs, "document"), size(corpus.docs_bytes))
    output.blocks(Table("", (), (code, docs), "lrr"))
    _title(2, "tokenizer", f"byte-level BPE of {VOCAB_SIZE:,} tokens, trained on this text")
    started = time.perf_counter()
    corpus.tokenizer.write_text(train_bpe(corpus.texts(), VOCAB_SIZE, (END,)), encoding="utf-8")
    training_seconds = time.perf_counter() - started
    output.line(f"  {tokenizer} in {duration(training_seconds)}")
    _title(3, "plan", f"packline build {recipe} --dry-run")
    estimate = estimate_build(*load_recipe(corpus.recipe))
    output.blocks(*estimate_blocks(estimate))
    _title(4, "build", f"packline build {recipe} --out {store}")
    read, options = load_recipe(corpus.recipe)
    with watch() as (tally, hear):
        finished = run_build(read, corpus.store, options, hear)
    output.line()
    output.blocks(*finished_blocks(finished, str(corpus.store)))
    _title(5, "verify", f"packline verify {store} --deep")
    report = run_verify(str(corpus.store), deep=True)
    output.blocks(*report_blocks(report))
    _title(6, "look", f"packline info {store}")
    _show(StoreReader(corpus.store))
    return output.result(
        "demo",
        facts(finished, tally, str(corpus.store), 1.0),
        code=DONE if report.ok else FAILED,
        training_seconds=training_seconds,
        plan=estimate,
        verify=report,
    )


def _title(number: int, word: str, what: str) -> None:
    output.lines([[], [(f"{number}  {word}", "title"), "   ", (what, "quiet")], []])


def _show(store: StoreReader) -> None:
    found = [*find_by_place(store, "bisect.py", 0), *find_by_id(store, "topic with")]
    strips = [document_strip(store, one, most=FIRST_TOKENS) for one in found]
    place = shlex.quote(str(store.place))
    steps = KeyValues(
        (
            ("in Python", f"packline.open({str(store.place)!r}).documents[0]"),
            ("in a browser", f"packline serve {place}"),
            ("as rows", f"packline info {place} --seq-len 2048"),
        )
    )
    output.blocks(group_table(group_shards(store)), length_table(measure_lengths(store)), *strips, steps)


class Corpus(NamedTuple):
    """Paths and size of the demo's files."""

    folder: Path
    recipe: Path
    tokenizer: Path
    store: Path
    code: list[str]
    """Globs of the library's modules."""
    code_files: int
    code_bytes: int
    docs: int
    docs_bytes: int

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
    """Create the demo's folder, or empty that of an earlier demo."""
    if folder.exists() and not (folder / MARK).exists() and (folder.is_file() or any(folder.iterdir())):
        found = "is a file" if folder.is_file() else f"is not empty, and has no {MARK}"
        raise StoreError(f"{folder} {found}: expected a folder of the demo", hint="choose another --out")
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
    from pydoc_data.topics import topics

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
    found = sorted((name, text) for name, text in topics.items() if text)
    with open(folder / "docs.jsonl", "w", encoding="utf-8") as file:
        for name, text in found:
            file.write(json.dumps({"id": f"topic {name}", "text": text}, ensure_ascii=False) + "\n")
    sizes = [path.stat().st_size for path in _paths(code)]
    corpus = Corpus(
        folder,
        folder / "recipe.toml",
        folder / "tokenizer.json",
        folder / "store",
        code,
        code_files=len(sizes),
        code_bytes=sum(sizes),
        docs=len(found),
        docs_bytes=(folder / "docs.jsonl").stat().st_size,
    )
    corpus.recipe.write_text(_recipe(corpus), encoding="utf-8")
    return corpus


def _paths(globs: list[str]) -> Iterator[Path]:
    for pattern in globs:
        yield from (Path(found) for found in sorted(glob.glob(pattern, recursive=True)))


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
