"""The folder of an export in progress: what a resume keeps, what is published, what is left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.formats.stores import make_store, random_documents

from packline.errors import PacklineError, ResumeMismatch
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.formats.choice import ExportChoice
from packline.formats.export import run_export
from packline.formats.export_record import ExportIdentity, ExportRecord, read_record
from packline.formats.staging import PartReceipt, Staging, finished_export
from packline.formats.types import ExportPart
from packline.jobs.events import UnitDone
from packline.store.files import FileEntry
from packline.store.manifest import TokenizerEntry

ROWS, PARTS = ExportChoice(seq_len=16, seed=1, batch_size=2), {"file_rows": 9}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 1000, longest=30, seed=8)
    folder = tmp_path_factory.mktemp("store") / "store"
    return make_store(folder, documents, vocab_size=1000, eod_id=0, val=(1, 50), shards=3)


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hash_bytes(path.read_bytes()) for path in files}


def beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir())


@pytest.mark.parametrize("before_clearing", [True, False], ids=["published", "half cleared"])
@pytest.mark.parametrize("to", ["baked", "megatron"])
def test_killed_between_publishing_and_clearing_up_leaves_nothing_behind(
    store: Store, tmp_path: Path, to: str, before_clearing: bool
) -> None:
    options, settings = (PARTS, ROWS) if to == "baked" else ({}, ExportChoice())
    code = (
        "import os, shutil, signal, sys\n"
        "from packline.formats import staging\n"
        "def killed(folder, ignore_errors):\n"
        "    if sys.argv[3] == 'False':\n"
        "        os.unlink(folder / 'export.json')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "staging.shutil.rmtree = killed\n"
        "from packline.formats.export import run_export\n"
        "from packline.formats.choice import ExportChoice\n"
        f"settings = ExportChoice(**{msgspec.to_builtins(settings)})\n"
        f"more = {{'to': {to!r}, 'workers': 0, 'options': {options}}}\n"
        "run_export(sys.argv[1], out=sys.argv[2], choice=settings, **more)\n"
    )
    out = tmp_path / "work" / "out"
    words = [sys.executable, "-c", code, str(store.path), str(out), str(before_clearing)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert beside(out) == [".out.packline", "out"]  # it was published, and the rest is still there
    before = digests(out)
    again = run_export(store.path, to=to, out=out, options=options, choice=settings, workers=0)
    assert again.nothing_to_do and beside(out) == ["out"] and digests(out) == before


def test_what_another_export_left_is_kept(store: Store, tmp_path: Path) -> None:
    out, remains = tmp_path / "work" / "out", tmp_path / "work" / ".out.packline"

    def stop(event: Any) -> None:
        if isinstance(event, UnitDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_export(store.path, to="baked", out=out, options=PARTS, choice=ROWS, workers=0, on_event=stop)
    kept = digests(remains)
    assert "parts/000000.json" in kept and not out.exists()
    run_export(store.path, to="megatron", out=tmp_path / "whole", workers=0)
    shutil.copytree(tmp_path / "whole", out)  # by hand, to the place of the one that was stopped
    assert run_export(store.path, to="megatron", out=out, workers=0).nothing_to_do
    assert digests(remains) == kept


IDENTITY = ExportIdentity(format="npy", options={}, settings={}, source={"store": "0"}, link="auto")
PART_LIST = tuple(ExportPart(f"part{number}", number=number, stop=number + 1) for number in range(4))
TOKENIZER = TokenizerEntry("t", "huggingface", "0", 300, 0, "<end>", None, None, "exact")


def stage(out: Path, numbers: range) -> dict[str, PartReceipt]:
    """Write and commit these parts, each a file in a folder of its own; return what was kept before."""
    with Staging(out) as staging:
        kept = staging.begin(IDENTITY, PART_LIST)
        for number in numbers:
            name = f"{number}/x.bin"
            (staging.files / name).parent.mkdir(exist_ok=True)
            (staging.files / name).write_bytes(bytes(number + 1))
            entry = FileEntry(name, number + 1, "0" * 32)
            staging.commit(number, PartReceipt(PART_LIST[number], {}, (entry,), {}))
    return kept


def record_of(*names: str) -> ExportRecord:
    entries = tuple(FileEntry(name, 1, "0" * 32) for name in names)
    more = {"tokenizer": TOKENIZER, "documents": 1, "tokens": 1, "shared": {}, "files": entries}
    return ExportRecord(**msgspec.structs.asdict(IDENTITY), **more)  # type: ignore[arg-type]


def test_a_resume_keeps_just_the_parts_whose_files_are_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert stage(out, range(3)) == {}
    files = tmp_path / ".out.packline" / "files"
    (files / "0" / "x.bin").write_bytes(b"")  # truncated
    (files / "1" / "x.bin").unlink()
    (files / "stray").write_bytes(b"of a part without a receipt")
    assert stage(out, range(0)).keys() == {"part2"}
    assert [path.relative_to(files).as_posix() for path in files.rglob("*")] == ["2", "2/x.bin"]
    other = msgspec.structs.replace(IDENTITY, source={"store": "1"})
    with Staging(out) as staging, pytest.raises(ResumeMismatch, match="store"):
        staging.begin(other, PART_LIST)
    assert stage(out, range(0)).keys() == {"part2"}  # the refused export changed nothing


@pytest.mark.parametrize("names", [(), ("a", "b"), ("a", "a")], ids=["unlisted", "missing", "twice"])
def test_only_a_folder_whose_files_are_all_listed_once_is_published(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    with Staging(out) as staging:
        staging.begin(IDENTITY, PART_LIST)
        (staging.files / "a").write_bytes(b"x")
        with pytest.raises(PacklineError, match="every file to be entered once"):
            staging.publish(record_of(*names))
        assert not out.exists()
        staging.publish(record_of("a"))
    record = read_record(out)
    assert record is not None and record.identity == IDENTITY and beside(out) == ["out"]
    assert finished_export(out, IDENTITY) == record
