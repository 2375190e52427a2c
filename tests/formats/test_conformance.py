"""Laws of every format, packline's own and those of other distributions.

A format's own test file has its bytes and the project that owns it. What is here is a law of all formats, so
a new one is held to it with a line in `SEVERAL_FILES` at most.
"""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.engines import bring_back, documents_of, files_of, loss_of, tokenizer_of, write
from tests.formats.other_formats import make_wheel
from tests.formats.steps import Drawn, expected, read_all, stores_to_export
from tests.formats.stores import (
    CASES,
    EOD,
    Case,
    make_store,
    random_documents,
    random_loss,
    write_tokenizer,
)

import packline
from packline.errors import CorruptStore, InputError, RecipeError, TokenizerError
from packline.facade import Store
from packline.formats import document_files
from packline.formats.check import check_dataset
from packline.formats.export import Exported, ExportPlanned, run_export
from packline.formats.export_folder import RECORD, read_record
from packline.formats.format import (
    DOCUMENT_FORMATS,
    NAMES,
    ROW_FORMATS,
    RowFormat,
    get_format,
    other_names,
    recognise,
)
from packline.jobs.events import UnitDone
from packline.packing.options import ExportChoice
from packline.viewing.analysis import analyze_foreign

OTHERS = ("lines",)
TEXT = ("nanochat",)
DOCUMENTS = (*DOCUMENT_FORMATS, *OTHERS)
IMPORTED = tuple(name for name in DOCUMENTS if name not in TEXT)
EVERY = (*NAMES, *OTHERS)

SEVERAL_FILES: dict[str, dict[str, Any]] = {
    **{name: {"shard_tokens": 120} for name in ("llmc", "npy")},
    **{name: {"shard_tokens": 200} for name in ("arrow", "parquet", "nanochat", "trl", "levanter", "lines")},
    "stacks": {"shard_size": 90, "max_seq_len": 10_000},
    "litdata": {"shard_bytes": 600},
    "mds": {"size_limit": 1000},
    "baked": {"file_rows": 5},
}
"""Options with which a small store makes several files, where its shards do not."""
WAYS = {name: (name, SEVERAL_FILES.get(name, {})) for name in IMPORTED} | {
    f"{name} in a single file": (name, {"files": "single"})
    for name in ("megatron", "datatrove", "olmo", "forager")
}
SHARING = ("megatron", "nanogpt", "datatrove", "olmo", "forager")
"""Formats whose files may be the store's own."""
KEEPS_LOSS = ("datatrove", "olmo", "arrow", "parquet", "stacks")
NAMES_SOURCES = {"olmo": ".csv.gz", "stacks": "config.json"}
"""Formats with a file that names where documents came from: after an import that is another place."""
MOST_OF_UINT16 = dict.fromkeys(("llmc", "nanogpt", "npy", "datatrove", "olmo", "stacks"), 65_536) | {
    "megatron": 65_499, "forager": 65_535,
}  # fmt: skip
"""Largest vocabulary of two bytes per token."""
STREAMS = ("llmc", "nanogpt", "npy")
"""Formats that separate documents by a token alone."""
UINT16_ONLY = ("nanogpt", "stacks")
FOREIGN: dict[str, dict[str, Any]] = {"forager": {"dtype": "uint16"}}
"""Options for reading without packline.json."""
LENGTH = 16


@pytest.fixture(scope="module", autouse=True)
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The format `lines` of another distribution."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(make_wheel(tmp_path_factory.mktemp("wheels")))
        yield
    sys.modules.pop("packline_lines", None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two splits, three shards of each, and a loss mask."""
    documents = random_documents(40, 1000)
    folder = tmp_path_factory.mktemp("stores") / "store"
    return make_store(
        folder, documents, vocab_size=1000, eod_id=0, val=(1, 7, 8, 20, 39), shards=3,
        loss=random_loss(documents),
    )  # fmt: skip


def export(
    store: Store, name: str, out: Path, options: dict[str, Any] | None = None, **more: Any
) -> Exported:
    """Export documents, or rows of `LENGTH` tokens."""
    given = {key: more.pop(key) for key in tuple(more) if key in ExportChoice.__struct_fields__}
    if get_format(name).kind == "rows":
        given = {"seq_len": LENGTH, "batch_size": 3} | given
    options = SEVERAL_FILES.get(name) if options is None else options
    settings = {"workers": 0, "choice": ExportChoice(**given), **more}
    return run_export(store.path, to=name, out=out, options=options, **settings)


@pytest.fixture(scope="module")
def exports(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """An export of every format that was asked for; not to be changed."""

    class Made(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            self[name] = tmp_path_factory.mktemp("exports") / name
            export(store, name, self[name])
            return self[name]

    yield Made()


def copied(exports: dict[str, Path], name: str, out: Path, *, record: bool = True) -> Path:
    """An export to be changed, also as if somebody else had made it."""
    shutil.copytree(exports[name], out)
    for own in () if record else (RECORD, "tokenizer.json", "tokenizer_config.json"):
        (out / own).unlink()
    return out


def check(path: Path, name: str, store: Store | None = None, **more: Any) -> str:
    """All problems that a check finds, as text."""
    given: dict[str, Any] = (
        {} if store is None else {"tokenizer": tokenizer_of(store), "eod": EOD, "options": FOREIGN.get(name)}
    )
    return "\n".join(map(str, check_dataset(path, name, **given, **more).problems))


def test_every_format_is_here() -> None:
    assert other_names() == OTHERS
    for name in EVERY:
        format = get_format(name.upper())
        assert format.name == name and sys.modules[type(format).__module__].__doc__
        assert isinstance(format, RowFormat) == (name in ROW_FORMATS) == (format.kind == "rows")
        assert getattr(format, "holds_text", False) == (name in TEXT)


# ------------------------------------------------------------------------------------------- there and back


def ids_of(store: Store) -> dict[str, list[str | None]]:
    """Documents' own ids by split."""
    found: dict[str, list[str | None]] = {}
    for number in range(len(store.documents)):
        origin = store.provenance(number)
        found.setdefault(origin.split, []).append(origin.id)
    return found


def stored_edges(case: Case) -> str:
    return "eod" if case.bos_id is None else "both"


@pytest.mark.parametrize("of", ["bos_loss", "empty", "long", "splits"])
@pytest.mark.parametrize("way", WAYS)
def test_documents_come_back_and_go_out_as_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, of: str
) -> None:
    monkeypatch.setattr(document_files, "BLOCK_DOCUMENTS", 3)
    (name, options), case = WAYS[way], CASES[of]
    if "edges" in get_format(name).options.__struct_fields__:
        options = options | {"edges": stored_edges(case)}
    store = case.make(tmp_path / "store")
    done = write(store, name, tmp_path / "out", options)
    back = bring_back(tmp_path / "out", name, store, tmp_path / "back")
    assert documents_of(back) == documents_of(store)
    lost = {one.what: one.count for one in done.lost}
    if name in KEEPS_LOSS:
        assert "loss mask" not in lost and (name == "stacks" or loss_of(back) == loss_of(store))
    else:
        assert lost.get("loss mask", 0) == (store.manifest.tokens if case.loss else 0) and not loss_of(back)
    assert ids_of(back) == ids_of(store) or name != "olmo"
    tokenizer = msgspec.structs.replace(store.manifest.tokenizer, name=back.manifest.tokenizer.name)
    assert back.manifest.tokenizer == tokenizer
    write(back, name, tmp_path / "again", options)
    first, second = files_of(tmp_path / "out"), files_of(tmp_path / "again")
    assert first.keys() == second.keys()
    changed = [one for one in first if first[one] != second[one]]
    assert [one for one in changed if not one.endswith(NAMES_SOURCES.get(name, "/"))] == []


@pytest.mark.parametrize("name", IMPORTED)
@settings(max_examples=12, deadline=None)
@given(stores_to_export(), st.integers(1, 3))
def test_any_selection_of_any_documents_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, drawn: Drawn, shards: int
) -> None:
    """With any boundary tokens, in files of any size, cut into any shards, shuffled or not."""
    case, edges, size, shuffle = drawn
    folder, known = tmp_path_factory.mktemp("law"), get_format(name).options.__struct_fields__
    edges = "bos" if name == "stacks" else "eod" if name in STREAMS and edges == "none" else edges
    options = {"edges": edges, "shard_tokens": size, "shard_size": size, "max_seq_len": 99}
    options = {option: value for option, value in options.items() if option in known}
    write(
        replace(case, shards=shards).make(folder / "store"),
        name,
        folder / "out",
        options,
        shuffle_documents=shuffle,
    )
    marker = case.bos_id if edges == "bos" and case.bos_id is not None else case.eod_id
    reading = {"edges": edges, "marker": marker, "vocab_size": case.vocab_size}
    found = read_all(name, folder / "out", {option: reading[option] for option in reading if option in known})
    documents, wanted = found.documents["train"], expected(case, edges)["train"]
    assert found.problems == [] and found.unfinished == 0
    assert (documents == wanted) if shuffle is None else (sorted(documents) == sorted(wanted))


@pytest.mark.parametrize("name", IMPORTED)
def test_an_export_without_its_record_is_recognised_and_read(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str
) -> None:
    bare = copied(exports, name, tmp_path / "bare", record=False)
    if name in OTHERS:
        with pytest.raises(InputError, match="looks like none that packline knows"):
            recognise(bare)
    else:
        assert recognise(bare).name == name
    back = bring_back(bare, name, store, tmp_path / "back", FOREIGN.get(name))
    front = [0] if name == "stacks" else []  # its config.json calls the token there a beginning
    wanted = {split: [[*front, *one] for one in found] for split, found in documents_of(store).items()}
    assert documents_of(back) == wanted


@pytest.mark.parametrize("name", IMPORTED)
def test_a_split_that_was_chosen_has_no_folder_and_comes_back_as_itself(
    store: Store, tmp_path: Path, name: str
) -> None:
    done = export(store, name, tmp_path / "out", split="val")
    assert done.folders == ()
    back = bring_back(tmp_path / "out", name, store, tmp_path / "back")
    assert documents_of(back) == {"val": documents_of(store)["val"]}


# ------------------------------------------------------------------------------------- parts, bytes, resuming


@pytest.mark.parametrize("name", EVERY)
def test_bytes_do_not_depend_on_workers_shards_or_interruptions(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str
) -> None:
    done = export(store, name, tmp_path / "out", workers=2, link="copy")
    assert files_of(tmp_path / "out") == files_of(exports[name]) and done.parts > 1
    assert done.files == len(files_of(exports[name]))
    for after in range(1, min(done.parts, 3)):
        events = itertools.count(1)

        def stop(event: Any, events: Iterator[int] = events, after: int = after) -> None:
            if isinstance(event, UnitDone) and next(events) == after:
                raise KeyboardInterrupt

        out = tmp_path / f"stopped{after}"
        with pytest.raises(KeyboardInterrupt):
            export(store, name, out, link="copy", on_event=stop)
        assert not (out / RECORD).exists()
        resumed = export(store, name, out, link="copy")
        assert resumed.parts_kept >= after and files_of(out) == files_of(exports[name])
    again = export(store, name, tmp_path / "out", link="copy")
    assert again.nothing_to_do and not done.nothing_to_do and again.lost == done.lost
    counts = (done.tokens, done.rows, done.files, done.bytes)
    assert (again.tokens, again.rows, again.files, again.bytes) == counts


@pytest.mark.parametrize("name", EVERY)
def test_shared_files_are_counted_and_copies_are_equal(store: Store, tmp_path: Path, name: str) -> None:
    own = {path.stat().st_ino for path in store.path.rglob("*")}
    for way in ({}, {"files": "single"}) if f"{name} in a single file" in WAYS else ({},):
        out = tmp_path / f"out{len(way)}"
        done = export(store, name, out, way or None)
        linked = [
            path.stat().st_size for path in out.rglob("*") if path.stat().st_ino in own and path.is_file()
        ]
        assert sum(linked) == done.shared.get("linked", 0)
        assert bool(linked) == (name in SHARING and name != "nanogpt" and not way)
    case = CASES["loss"] if name != "nanogpt" else CASES["plain"]
    one = case.make(tmp_path / "one")
    if name in SHARING:  # the only shard of a split is shared, however files are made
        whole = export(one, name, tmp_path / "whole")
        assert whole.shared["linked"] >= one.manifest.tokens * one.dtype.itemsize
        copy = export(one, name, tmp_path / "copy", link="copy")
        assert copy.shared == {"copied": whole.shared["linked"]}
        assert files_of(tmp_path / "copy") == files_of(tmp_path / "whole")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs, a tokenizer, a list of documents and their store."""
    home = tmp_path_factory.mktemp("private home")
    tokenizer = write_tokenizer(home / "models", 300, 0)
    (home / "texts").mkdir()
    for name in ("a", "b"):
        records = [{"text": f"Document {n} of {name}. " * 9, "id": f"{name}{n}"} for n in range(30)]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (home / "texts" / f"{name}.jsonl").write_bytes(lines)
    store = packline.build(
        [home / "texts" / "a.jsonl", home / "texts" / "b.jsonl"], tokenizer=tokenizer, eod=EOD,
        val_documents=5, out=home / "store", workers=0,
    )  # fmt: skip
    first = store.provenance(0)
    place = {"source": [first.source], "file": [first.file], "position": [first.position]}
    excluded = pa.table({**place, "hash": pa.array([first.hash], pa.uint64())})
    pq.write_table(excluded, home / "excluded.parquet")
    return home


def plain(path: Path) -> bytes:
    """Content of a file, and the text of compressed ones and of columns."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data += gzip.decompress(data)
    if path.suffix == ".parquet":
        data += str(pq.read_table(path).to_pydict()).encode()
    return data


@pytest.mark.parametrize("name", EVERY)
def test_no_file_names_a_folder_of_this_machine(home: Path, tmp_path: Path, name: str) -> None:
    more = {"provenance": True, "compression": "none", "meta_pkl": True}
    known = get_format(name).options.__struct_fields__
    options = {option: value for option, value in more.items() if option in known and name != "mds"}
    out, excluded = tmp_path / "out", (str(home / "excluded.parquet"),)
    done = export(Store(home / "store"), name, out, options, exclude=excluded)
    folders = [str(home), str(tmp_path), str(Path.home()) + "/"]
    written = [path for path in out.rglob("*") if path.is_file()]
    assert len(written) == done.files + 1
    for path in written:
        found = [folder for folder in folders if folder.encode() in plain(path)]
        assert not found, f"{path.relative_to(out)} names {found}"


@pytest.mark.parametrize("name", EVERY)
def test_lines_for_the_trainer_name_the_folder_or_there_are_none(
    store: Store, exports: dict[str, Path], name: str
) -> None:
    out = exports[name]
    done = export(store, name, out)
    assert done.nothing_to_do and bool(done.trainer_lines) == (name not in ("pt", "stacks"))
    assert not done.trainer_lines or str(out) in "\n".join(done.trainer_lines)


# ---------------------------------------------------------------------------------------------------- options


SIZES = ("shard_tokens", "shard_size", "max_seq_len", "sample_size", "shard_bytes", "size_limit", "max_files")


@pytest.mark.parametrize("name", EVERY)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    store: Store, tmp_path: Path, name: str
) -> None:
    out, fields = (
        tmp_path / "out",
        {field.name: field for field in msgspec.structs.fields(get_format(name).options)},
    )
    wrong: dict[str, Any] = {"nothing": 1} | {field: ["no", "such", {}] for field in fields}
    for option in wrong:
        with pytest.raises(RecipeError, match=option) as caught:
            export(store, name, out, {option: wrong[option]})
        assert all(field in caught.value.hint for field in fields)
    for option in set(SIZES) & set(fields):
        for value in (0, -1):
            with pytest.raises(RecipeError, match=option):
                export(store, name, out, {option: value})
    assert not out.exists()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("datatrove", {"first_rank": 99_999, "edges": "none", "shard_tokens": 10},
     "numbers of files from 0 to 99,999"),
    ("datatrove", {"step": "a/b"}, "step that can be in a name"),
    ("forager", {"sample_size": 10**6}, "at least sample_size tokens, 1,000,000, found"),
    ("llmc", {"shard_tokens": 2**31}, "expected shard_tokens from 1 to 2,147,483,647"),
    ("mds", {"fields": ["targets"]}, "expected tokens and any of"),
    ("mds", {"fields": ["tokens", "tokens"]}, "each once"),
    ("mds", {"fields": ["tokens", "mask"]}, "fields are tokens, mask"),
    ("mds", {"size_limit": 2**32}, "size_limit is 4,294,967,296: expected 1 to"),
    *[("mds", {"compression": name}, f"compression is '{name}'") for name in ("br", "zstd:23", "zstd:")],
    ("npz", {"dtype": "uint16"}, "ignore_index is -100: expected 0 to 65,535"),
    ("npz", {"dtype": "int8"}, "largest id is 999: expected -128 to 127"),
    *[("npz", {"dtype": name}, "expected a dtype of integers") for name in ("float32", "tokens")],
    ("npz", {"ignore_index": 2**31}, "ignore_index is 2,147,483,648"),
    *[("npz", {"prefix": prefix}, "expected a prefix") for prefix in ("", "a/b")],
    ("olmo", {"dtype": "uint8"}, "expected a dtype of auto, uint16, uint32, found 'uint8'"),
    ("olmo", {"prefix": "a/b"}, "prefix that can be in a name"),
    ("stacks", {"shard_size": 2**31}, "expected a max_seq_len from 1 and a shard_size from 1 to"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "words"), REFUSED, ids=range(len(REFUSED)))
def test_options_that_a_layout_cannot_have_are_refused(
    store: Store, tmp_path: Path, name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        export(store, name, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Store, list[list[int]]]]:
    """A store with a vocabulary of any size, and its documents."""

    @cache
    def made(vocab_size: int) -> tuple[Store, list[list[int]]]:
        bodies = [[vocab_size - 1, 5], [], [6, vocab_size - 1]]
        folder = tmp_path_factory.mktemp("wide") / "store"
        return make_store(folder, bodies, vocab_size=vocab_size, eod_id=0), [[*body, 0] for body in bodies]

    return made


@pytest.mark.parametrize("name", MOST_OF_UINT16)
def test_ids_take_two_bytes_up_to_the_limit_of_the_format(
    wide: Callable[[int], tuple[Store, list[list[int]]]], tmp_path: Path, name: str
) -> None:
    most, known = MOST_OF_UINT16[name], get_format(name).options.__struct_fields__
    for vocab_size, itemsize in ((most, 2), (most + 1, 4)):
        (store, documents), out = wide(vocab_size), tmp_path / f"{itemsize}"
        narrow = {"dtype": "uint16"} if "dtype" in known else {"version": "1"} if "version" in known else {}
        if itemsize == 4:
            words = f"{vocab_size:,} do not fit into uint16: expected at most {most:,}"
            with pytest.raises(RecipeError, match=words):
                export(store, name, out, narrow)
            if name in UINT16_ONLY:
                continue
        export(store, name, out, {})
        edges = "bos" if name in ("llmc", "npy", "stacks") else "eod"
        reading = {"vocab_size": vocab_size, "marker": 0, "edges": edges}
        found = read_all(name, out, {option: reading[option] for option in reading if option in known})
        wanted = documents if edges == "eod" else [[0, *document[:-1]] for document in documents]
        assert found.documents == {"train": wanted} and found.reader.dtype.itemsize == itemsize


# ------------------------------------------------------------------------------------ damage, missing files


def data_files(out: Path) -> list[Path]:
    own = (RECORD, "tokenizer.json", "tokenizer_config.json")
    return [path for path in sorted(out.rglob("*")) if path.is_file() and path.name not in own]


@pytest.mark.parametrize("name", EVERY)
def test_any_change_is_found_and_nothing_is_imported(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str
) -> None:
    out = copied(exports, name, tmp_path / "out")
    files = data_files(out)
    numbers = itertools.count()
    for path in {files[0], files[len(files) // 2], files[-1]}:
        shown, whole = path.relative_to(out).as_posix(), path.read_bytes()
        for data in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], whole + b"\0", None):
            path.unlink()
            if data is not None:
                path.write_bytes(data)
            assert check(out, name).startswith(shown)
            if name in IMPORTED and path.name != "data_args.json":  # which is Megatron's alone
                no = tmp_path / f"no{next(numbers)}"
                with pytest.raises((CorruptStore, InputError)):
                    packline.import_(out, tokenizer=tokenizer_of(store), out=no, workers=0)
                assert not (no / "manifest.json").exists()
            path.write_bytes(whole)
    assert check(out, name) == ""
    (out / "more.bin").write_bytes(b"")
    assert check(out, name).startswith("more.bin: a stray file")


@pytest.mark.parametrize("name", [name for name in EVERY if name != "baked"])
def test_a_file_that_was_cut_off_is_found_without_the_record(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str
) -> None:
    out = copied(exports, name, tmp_path / "out", record=False)
    assert check(out, name, store if name in IMPORTED else None) == ""
    given: dict[str, Any] = (
        {} if name in TEXT else {"tokenizer": tokenizer_of(store), "eod": EOD, "options": FOREIGN.get(name)}
    )
    assert any(f"there is no {RECORD}" in note for note in check_dataset(out, name, **given).notes)
    path = max(
        (path for path in data_files(out) if path.suffix != ".json"), key=lambda path: path.stat().st_size
    )
    for cut in (1, path.stat().st_size // 2) if name not in STREAMS else (1,):
        os.truncate(path, path.stat().st_size - cut)
        assert path.name in check(out, name, store if name in IMPORTED else None)


@pytest.mark.parametrize("name", EVERY)
def test_a_folder_without_its_files_is_refused(tmp_path: Path, name: str) -> None:
    for path, words in ((tmp_path / "gone", "cannot find"), (tmp_path, "expected|holds no")):
        with pytest.raises(InputError, match=words):
            check_dataset(path, name)
    with pytest.raises(InputError, match="looks like none that packline knows"):
        recognise(tmp_path)
    (tmp_path / "notes.txt").write_text("no data set")
    assert not get_format(name).recognises(tmp_path)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in TEXT])
def test_another_tokenizer_is_refused(exports: dict[str, Path], tmp_path: Path, name: str) -> None:
    other = write_tokenizer(tmp_path / "other", 1000, 3)
    assert "made with another tokenizer" in check(exports[name], name, tokenizer=other)
    if name in IMPORTED:
        with pytest.raises(TokenizerError, match="made with another tokenizer"):
            packline.import_(exports[name], tokenizer=other, out=tmp_path / "no", workers=0)
        assert not (tmp_path / "no").exists()


# ------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_rows_are_checked_by_checksums_and_headers(store: Store, exports: dict[str, Path], name: str) -> None:
    for tokenizer in (None, tokenizer_of(store)):
        report = check_dataset(exports[name], None, tokenizer)
        assert report.ok and report.bytes > 0 and report.format == name, report.problems
        assert report.notes[0] == "tokens of rows are not read: checksums and headers were checked"


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", ROW_FORMATS)
def test_rows_do_not_become_documents(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str, given: bool
) -> None:
    out, named, tokenizer = exports[name], name if given else None, str(tokenizer_of(store))
    reason = rf"holds rows \({name}\): where documents begin and end is not preserved"
    with pytest.raises(RecipeError, match=reason) as caught:
        packline.import_(out, from_=named, tokenizer=tokenizer, out=tmp_path / "back", workers=0)
    assert "use the store that the rows were made from" in caught.value.hint
    assert not (tmp_path / "back").exists()
    with pytest.raises(RecipeError, match=reason):
        analyze_foreign(out, format=named, tokenizer=tokenizer)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_each_folder_is_the_export_of_its_split(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folders, whole = get_format(name).folders, files_of(exports[name])
    done = export(store, name, exports[name])
    assert done.folders == (folders["train"], folders["val"])
    assert not any(lost.what.startswith("split") for lost in done.lost)
    rows = 0
    for split, other in (("train", "val"), ("val", "train")):
        alone = export(store, name, tmp_path / split, split=split)
        rows += alone.rows or 0
        assert alone.folders == ()
        (left,) = (lost for lost in alone.lost if lost.what == f"split {other}")
        tokens = store.manifest.shards.by_split("tokens")[other]
        assert (left.count, left.unit) == (len(documents_of(store)[other]), "documents")
        assert left.why.startswith(f"{tokens:,} tokens: rows are of {split} alone")
        for file, content in files_of(tmp_path / split).items():
            if not file.startswith("tokenizer"):
                assert whole[f"{folders[split]}/{file}"] == content
    assert done.rows == rows


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_rows_are_shuffled_unless_a_format_keeps_the_order_of_its_input(
    store: Store, exports: dict[str, Path], tmp_path: Path, name: str
) -> None:
    events: list[Any] = []
    export(store, name, tmp_path / "stored", in_order=True, on_event=events.append)
    export(store, name, tmp_path / "shuffled", seed=0, on_event=events.append)
    stored, shuffled = files_of(tmp_path / "stored"), files_of(tmp_path / "shuffled")
    keeps = name in ("npz", "pt")
    assert shuffled != stored and files_of(exports[name]) == (stored if keeps else shuffled)
    record = read_record(exports[name])
    assert record is not None and record.settings.get("seed") == (None if keeps else 0)
    assert [event.order for event in events if isinstance(event, ExportPlanned)] == [
        "rows in stored order: --seed shuffles them",
        "rows shuffled with seed 0: change it with --seed or --in-order",
    ]
