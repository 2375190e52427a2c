"""The folder of an export in progress: what a resume keeps, what is published, what is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.formats.stores import make_store, random_documents
from tests.jobs.builds import Stop, digests, stop_after

import packline
from packline.errors import PacklineError, ResumeMismatch, StoreError, StoreNotFound
from packline.facade import Store
from packline.fingerprint import seal
from packline.formats.check import check_dataset, find_format
from packline.formats.copying import copy
from packline.formats.export import run_export
from packline.formats.export_folder import ExportIdentity, ExportRecord, PartReceipt, Staging, read_record
from packline.formats.types import ExportPart
from packline.hub.repository import read_pushable
from packline.jobs.folder import StoreFolder
from packline.packing.options import ExportChoice
from packline.store.files import FileEntry
from packline.store.manifest import TokenizerEntry

ROWS, PARTS = ExportChoice(seq_len=16, seed=1, batch_size=2), {"file_rows": 9}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 1000, longest=30, seed=8)
    folder = tmp_path_factory.mktemp("store") / "store"
    return make_store(folder, documents, vocab_size=1000, eod_id=0, val=(1, 50), shards=3)


@pytest.mark.parametrize("before_clearing", [True, False], ids=["published", "half cleared"])
@pytest.mark.parametrize("to", ["baked", "megatron"])
def test_killed_between_publishing_and_clearing_up_leaves_nothing_behind(
    store: Store, tmp_path: Path, to: str, before_clearing: bool
) -> None:
    options, settings = (PARTS, ROWS) if to == "baked" else ({}, ExportChoice())
    code = (
        "import os, shutil, signal, sys\n"
        "from packline.jobs import work\n"
        "def killed(folder):\n"
        "    if sys.argv[3] == 'False':\n"
        "        os.unlink(folder.work / 'export.json')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "work.WorkFolder.clean = killed\n"
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
    assert (out / "packline.json").exists() and (out / ".packline").is_dir()  # published, with leftovers
    before = {name: one for name, one in digests(out).items() if not name.startswith(".packline")}
    again = run_export(store.path, to=to, out=out, options=options, choice=settings, workers=0)
    assert again.nothing_to_do and digests(out) == before


def test_an_unfinished_export_is_refused_by_whatever_would_read_it(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stop):
        run_export(store.path, to="llmc", out=out, workers=0, on_event=stop_after(1), link="copy")
    assert list(out.glob("*.bin"))
    readers: list[Callable[[], object]] = [
        lambda: find_format(out, None),
        lambda: read_pushable(out),
        lambda: copy(out, tmp_path / "copy"),
        lambda: packline.open(out),
        lambda: check_dataset(out, "llmc"),
    ]
    for reader in readers:
        with pytest.raises(StoreNotFound, match="holds an export that has not finished"):
            reader()
    with pytest.raises(StoreError, match="holds an unfinished export, and no packline build"):
        StoreFolder(out).__enter__()
    run_export(store.path, to="llmc", out=out, workers=0, link="copy")
    assert not (out / ".packline").exists() and read_record(out) is not None


IDENTITY = ExportIdentity(format="npy", options={}, settings={}, source={"store": "0"}, link="auto")
PART_LIST = tuple(ExportPart(f"part{number}", number=number, stop=number + 1) for number in range(4))
TOKENIZER = TokenizerEntry("t", "huggingface", "0", 300, 0, "<end>", None, None, "exact")


def stage(out: Path, numbers: range) -> dict[str, PartReceipt]:
    """Write and commit these parts, each a file in a folder of its own; return what was kept before."""
    with Staging(out) as staging:
        kept = staging.begin(IDENTITY, PART_LIST)
        for number in numbers:
            name = f"{number}/x.bin"
            (staging.tmp / name).parent.mkdir(exist_ok=True)
            (staging.tmp / name).write_bytes(bytes(number + 1))
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
    (out / "0" / "x.bin").write_bytes(b"")  # truncated
    (out / "1" / "x.bin").unlink()
    assert stage(out, range(0)).keys() == {"part2"}
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
        (staging.tmp / "a").write_bytes(b"x")
        staging.put(["a"])
        with pytest.raises(PacklineError, match="every file to be listed once"):
            staging.publish({"packline.json": seal(record_of(*names))}, names)
        assert not (out / "packline.json").exists()
        staging.publish({"packline.json": seal(record_of("a"))}, ["a", "packline.json"])
        assert staging.clean() == ""
    record = read_record(out)
    assert record is not None and record.identity == IDENTITY
    assert Staging(out).finished(IDENTITY) == record and not (out / ".packline").exists()
