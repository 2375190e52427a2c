"""The folder of an export in progress: what a resume keeps, what is published, what is left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.formats.stores import make_store, random_documents
from tests.jobs.builds import Stop, build, digests, stop_after

import packline
from packline.errors import OutOfSpace, PacklineError, RecipeError, ResumeMismatch, StoreError, StoreNotFound
from packline.facade import Store
from packline.fingerprint import hash_bytes, seal
from packline.formats.check import check_dataset, find_format
from packline.formats.choice import document_view
from packline.formats.copying import copy
from packline.formats.export import ExportRunner, PartSettings, PartUnit, run_export
from packline.formats.export_folder import (
    ExportIdentity,
    ExportRecord,
    PartReceipt,
    Staging,
    Target,
    read_record,
)
from packline.formats.format import convert_options, get_format
from packline.formats.types import ExportPart
from packline.hub.repository import read_pushable
from packline.jobs.folder import StoreFolder
from packline.packing.options import ExportChoice
from packline.storage import local
from packline.storage import local as module
from packline.store.files import FileEntry, StoreFiles
from packline.store.manifest import TokenizerEntry
from packline.store.writer import HashedFile

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


@pytest.fixture
def target(tmp_path: Path) -> Target:
    (tmp_path / "staged").mkdir()
    return Target(tmp_path / "staged")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(100_000))
    return path


def test_a_file_that_failed_is_not_entered(target: Target) -> None:
    with pytest.raises(KeyError), target.create("x") as file:
        file.write(b"half")
        raise KeyError
    assert target.files == []


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_nothing_is_written_outside(target: Target, name: str) -> None:
    with pytest.raises(PacklineError, match="cannot be called"), target.create(name):
        pass


def entry_of(path: Path) -> FileEntry:
    return FileEntry(path.name, 100_000, hash_bytes(path.read_bytes()))


def cannot(*_: Any) -> None:
    raise OSError(errno.EXDEV, "another device")


@pytest.mark.parametrize(
    ("link", "how", "hard", "reflink"),
    [
        ("auto", "linked", True, False),
        ("hard", "linked", True, False),
        ("auto", "reflinked", False, True),
        ("reflink", "reflinked", True, True),
        ("auto", "copied", False, False),
        ("copy", "copied", True, True),
    ],
)
def test_bytes_are_shared_as_asked_and_as_can_be(
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: Any,
    how: str,
    hard: bool,
    reflink: bool,
) -> None:
    if not hard:
        monkeypatch.setattr(os, "link", cannot)
    monkeypatch.setattr(module, "_reflink", module.copy_file if reflink else cannot)
    (tmp_path / "staged").mkdir()
    target = Target(tmp_path / "staged", link=link)
    entry = entry_of(stored)
    target.share(StoreFiles(tmp_path), entry, "data/one.bin")
    shared = target.folder / "data/one.bin"
    assert shared.read_bytes() == stored.read_bytes()
    assert os.path.samefile(shared, stored) == (how == "linked")
    assert target.shared == {how: 100_000}
    assert target.files == [FileEntry("data/one.bin", entry.bytes, entry.checksum)]


def test_what_was_asked_for_and_cannot_be_is_an_error(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", cannot)
    monkeypatch.setattr(module, "_reflink", cannot)
    for link, what in (("hard", "hard links"), ("reflink", "reflinks")):
        folder = tmp_path / link
        folder.mkdir()
        with pytest.raises(PacklineError, match=f"no {what} there"):
            Target(folder, link=link).share(StoreFiles(tmp_path), entry_of(stored), "x")  # type: ignore[arg-type]
        assert not (folder / "x").exists()
    with pytest.raises(RecipeError, match="link is 'symbolic'"):
        Target(tmp_path, link="symbolic")  # type: ignore[arg-type]


def test_a_link_of_an_interrupted_run_is_replaced_and_not_written_through(
    target: Target, stored: Path
) -> None:
    before = stored.read_bytes()
    target.share(StoreFiles(stored.parent), entry_of(stored), "x.bin")
    with target.create("x.bin") as file:
        file.write(b"new")
    assert (target.folder / "x.bin").read_bytes() == b"new" and stored.read_bytes() == before


def test_a_full_disk_is_said_to_be_one(target: Target, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OutOfSpace, match="is full"):
        target.share(StoreFiles(stored.parent), entry_of(stored), "x")


def test_none_unsets_an_option_unless_it_is_one_of_its_values() -> None:
    options: Any = convert_options(get_format("forager"), {"vocab_size": "none", "edges": "none"})
    assert options.vocab_size is None and options.edges == "none"
    options = convert_options(get_format("parquet"), {"compression": "none", "shard_tokens": "7"})
    assert options.compression == "none" and options.shard_tokens == 7
    options = convert_options(get_format("pt"), {"max_files": None, "dataset": "none"})
    assert options.max_files is None and options.dataset == "none"
    with pytest.raises(RecipeError, match="dtype is 'none': expected "):
        convert_options(get_format("forager"), {"dtype": "none"})


@pytest.mark.parametrize(("link", "receipts"), [("hard", 0), ("copy", 3)])
def test_links_have_no_receipts_and_are_all_waited_for_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Any, receipts: int
) -> None:
    store = make_store(tmp_path / "store", random_documents(30, 300), vocab_size=300, eod_id=0, shards=3)
    committed: list[int] = []
    waited: list[set[str]] = []
    record, put = Staging.commit_record, local.LocalFolder.put_files

    def recording(at: Staging, name: str, receipt: PartReceipt) -> None:
        committed.append(int(name))
        record(at, name, receipt)

    def putting(at: local.LocalFolder, files: dict[str, Path]) -> None:
        waited.append(set(files))
        put(at, files)

    monkeypatch.setattr(Staging, "commit_record", recording)
    monkeypatch.setattr(local.LocalFolder, "put_files", putting)
    done = run_export(store.path, to="datatrove", out=tmp_path / "out", link=link, workers=0)
    assert len(committed) == receipts and done.parts == 3
    files = {path.name for path in (tmp_path / "out").iterdir()} - {"packline.json"}
    assert waited[-1] == (files if link == "hard" else {"tokenizer.json", "tokenizer_config.json"})
    assert len(waited) == receipts + 1 and set().union(*waited) == files  # a part with a receipt by itself


def written(out: Path) -> dict[str, str]:
    """Checksums of the files that have their final names."""
    return {name: one for name, one in digests(out).items() if not name.startswith(".packline")}


@pytest.mark.parametrize("link", ["copy", "auto"])
@pytest.mark.parametrize("name", ["llmc", "megatron"])
def test_a_process_that_is_killed_leaves_the_files_of_another(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, name: str, link: str
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")
    store = build(tmp_path / "store", str(tmp_path / "in.txt"), tokenizer_json)
    format = get_format(name)
    options, choice = convert_options(format, {}), ExportChoice()
    given: dict[str, object] = {"format": name, "options": {}, "link": link}
    out = str(tmp_path / "out")
    settings = PartSettings(**given, source=str(store.path), choice=choice, out=out, shared=True)  # type: ignore[arg-type]
    parts = format.plan(
        document_view(str(store.path), "eod" if name == "megatron" else "bos", choice), options
    ).parts
    with Staging(tmp_path / "out") as staging:
        staging.begin(ExportIdentity(**given, source={}, settings={}), parts)  # type: ignore[arg-type]
        one, two = ExportRunner(settings), ExportRunner(settings)
        two._staging._own = "another"
        units = [PartUnit(name=part.name, number=number, part=part) for number, part in enumerate(parts)]
        for unit in units:
            one.commit(unit, next(one.run(unit, lambda tokens, documents=0, text_bytes=0: None)))
        whole = written(tmp_path / "out")
        assert whole

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(HashedFile, "write", killed)
            patch.setattr("packline.formats.export_folder.share_file", killed)
            for unit in units:
                with pytest.raises(KeyboardInterrupt):
                    next(two.run(unit, lambda tokens, documents=0, text_bytes=0: None))
        assert written(tmp_path / "out") == whole
        for unit in units:
            two.commit(unit, next(two.run(unit, lambda tokens, documents=0, text_bytes=0: None)))
        assert written(tmp_path / "out") == whole
