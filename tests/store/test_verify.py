"""`verify`: nothing to say of a clean store, and every kind of damage is found.

First damage that checksums show: a bit, a byte, a file. Then damage with receipts and manifest written
anew around it, so that only what is said of the contents can show it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.store.stores import EOD, build_store, names, reseal, said, with_rows

from packline.errors import StoreNotFound
from packline.facade import Store
from packline.jobs import cut_inputs
from packline.sources.batch import Reject
from packline.store.files import StoreFiles
from packline.store.manifest import Manifest, Receipt, to_json
from packline.store.manifest_check import read_manifest
from packline.store.report import MOST, Findings
from packline.store.shard import write_index
from packline.store.verify import Receipts, check_receipts, check_rejects, read_receipts, verify
from packline.store.writer import RejectsWriter
from packline.testing import make_store, write_manifest

FILES = (
    "manifest.json",
    "inputs.parquet",
    "shards.parquet",
    "units.parquet",
    "receipts/in-000000.json",
    "rejects/in-000000.jsonl",
    "rejects/in-000000.raw",
    "tokenizer/tokenizer.json",
    "train-in-000000.bin",
    "train-in-000000.docs.parquet",
    "train-in-000000.idx",
    "train-in-000000.sums",
    "val-in-000000.bin",
    "val-in-000000.docs.parquet",
    "val-in-000000.idx",
    "val-in-000000.sums",
)


def of_recipe(old: Manifest, **fields: Any) -> Manifest:
    return replace(old, recipe=replace(old.recipe, **fields))


def of_tokenizer(old: Manifest, **fields: Any) -> Manifest:
    return replace(old, tokenizer=replace(old.tokenizer, **fields))


def test_a_clean_store(built: Store, documents: list[str]) -> None:
    steps: list[tuple[int, int]] = []
    report = verify(built.path, on_progress=lambda done, whole: steps.append((done, whole)))
    assert said(report) == ""
    assert report.ok
    assert report.documents == len(documents)
    assert report.tokens == built.manifest.tokens == sum(len(one) for one in built.documents)
    assert report.files == len(FILES) - 1
    assert report.bytes == sum((built.path / name).stat().st_size for name in FILES[1:])
    assert steps[-1] == (report.bytes, report.bytes)
    there = [path.relative_to(built.path).as_posix() for path in built.path.rglob("*") if path.is_file()]
    assert sorted(there) == sorted(FILES) == sorted([*names(built.manifest), "manifest.json"])
    again = built.verify()
    assert again == report
    assert again.seconds != report.seconds


def damaged_bytes(data: bytes, kind: str) -> bytes:
    if kind == "flipped":
        place = len(data) // 3
        return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
    return data[:-1] if kind == "cut" else b""


@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_is_found(damaged: Path, name: str) -> None:
    path, data = damaged / name, (damaged / name).read_bytes()
    for kind in ("flipped", "cut", "empty"):
        path.write_bytes(changed := damaged_bytes(data, kind))
        found = [problem for problem in verify(damaged).problems if problem.file == name]
        assert found, kind
        if kind != "flipped" and name != "manifest.json":
            sizes = [(one.expected, one.found) for one in found if one.what == "size in bytes"]
            assert sizes == [(f"{len(data):,}", f"{len(changed):,}")]
    path.unlink()
    if name == "manifest.json":
        with pytest.raises(StoreNotFound):
            verify(damaged)
        return
    assert f"{name}: the file is missing" in said(verify(damaged))
    path.mkdir()
    assert name in {problem.file for problem in verify(damaged).problems}


def test_a_stray_file_is_found_and_a_note_beside_the_shards_is_none(damaged: Path) -> None:
    (damaged / "README.md").write_text("what this store is for")
    assert verify(damaged).ok
    for name in ("train-in-000009.bin", "other.docs.parquet", "receipts/7.json", "rejects/7.raw"):
        (damaged / name).write_bytes(b"x")
        assert [(one.file, one.what) for one in verify(damaged).problems] == [(name, "a stray file")]
        (damaged / name).unlink()


def test_problems_are_capped_and_counted(damaged: Path) -> None:
    for number in range(MOST + 20):
        (damaged / f"train-{number + 1:06d}.bin").write_bytes(b"")
    report = verify(damaged)
    assert (len(report.problems), report.problems_not_listed) == (MOST, 20)


# --------------------------------------------------------- damage behind right checksums


def lengths(change: Callable[[np.ndarray], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "train-in-000000.idx"
        count = int.from_bytes(path.read_bytes()[18:26], "little")
        found = np.frombuffer(path.read_bytes(), "<i4", count, 34).copy()
        change(found)
        with path.open("wb") as file:
            write_index(file, found, np.dtype("uint16"))
        reseal(folder)

    return write


def move_an_edge(found: np.ndarray) -> None:
    longest = int(found.argmax())
    found[longest] -= 1
    found[longest - 1] += 1


def lengthen(found: np.ndarray) -> None:
    found[3] += 1


def offsets(bytes_before: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "train-in-000000.idx"
        data = bytearray(path.read_bytes())
        data[34 + bytes_before * int.from_bytes(data[18:26], "little") + 3 * 8] ^= 2
        path.write_bytes(data)
        reseal(folder)

    return write


def edit_provenance(folder: Path, column: str, change: Callable[[list[Any]], list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (path,) = folder.glob("train-*-000000.docs.parquet")
    table = pq.read_table(path)
    kind = table.schema.field(column).type
    changed = change(table[column].to_pylist())
    values = pa.array(changed, kind if column == "hash" else None)
    values = values.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else values.cast(kind)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, table.schema.field(column), values), path, store_schema=True)


def provenance(column: str, change: Callable[[Any], Any], rows: int | None = 1) -> Callable[[Path], None]:
    """The first rows of a column of provenance changed; None: all."""

    def write(folder: Path) -> None:
        edit_provenance(folder, column, lambda old: [*map(change, old[:rows]), *old[len(old[:rows]) :]])
        reseal(folder)

    return write


def ledger(field: str, **hiding: int) -> Callable[[Path], None]:
    """One count more, with the ledger balanced where other counts can hide it."""

    def change(receipt: Receipt) -> Receipt:
        counts = {name: getattr(receipt.ledger, name) + by for name, by in ({field: 1} | hiding).items()}
        return replace(receipt, ledger=replace(receipt.ledger, **counts))

    return lambda folder: reseal(folder, change)


def rejected(receipt: Receipt) -> Receipt:
    changed = replace(receipt.ledger, rejected={"malformed_json": 2, "missing_field": 1})
    assert not changed.imbalance()
    return replace(receipt, ledger=changed)


def manifest(change: Callable[[Manifest], Manifest]) -> Callable[[Path], None]:
    return lambda folder: reseal(folder, change_manifest=change)


BEHIND: dict[str, Callable[[Path], None]] = {
    "documents without EOD": lengths(move_an_edge),
    "train-in-000000.idx: tokens: expected": lengths(lengthen),
    "train-in-000000.idx: offset of document 3": offsets(4),
    "train-in-000000.idx: document_indices[3]": offsets(12),
    "tokens of document 0 (1 differ from the index)": provenance("tokens", lambda old: old + 1),
    "text_bytes, as counted in its shards": provenance("text_bytes", lambda old: old + 1),
    "position in row group 0": provenance("position", lambda old: -1),
    "source: expected": provenance("source", lambda old: "other", None),
    "files: expected inputs of the source, found z.jsonl": provenance("file", lambda old: "z.jsonl"),
    "label: expected": provenance("label", lambda old: "web", None),
    "documents with a hash in row group 0": provenance("hash", lambda old: None),
    "in-000000.json: documents, as counted": ledger(
        "documents", documents_in=1, eod_tokens=1, text_tokens=-1
    ),
    "in-000000.json: tokens, as counted": ledger("tokens", text_tokens=1),
    "in-000000.json: bos_tokens, as counted": ledger("bos_tokens", text_tokens=-1),
    "in-000000.json: text_bytes, as counted": ledger("text_bytes"),
    "in-000000.json: the ledger does not balance": ledger("empty"),
    "rejected, as counted in rejects/": lambda folder: reseal(folder, rejected),
    "dtype: expected uint16": manifest(lambda old: replace(old, dtype="int32")),
    "split of shard val-in-000000: expected train": manifest(lambda old: of_recipe(old, val_fraction=0.0)),
    "shards are not those of the receipts": manifest(lambda old: with_rows(old, shards=[old.shards[0]])),
    "are those of its receipt": manifest(
        lambda old: with_rows(old, units=[replace(unit, rejects=()) for unit in old.units])
    ),
    "fingerprint: expected": manifest(lambda old: of_tokenizer(old, fingerprint="0" * 32)),
    "vocabulary: expected": manifest(lambda old: of_tokenizer(old, vocab_size=5000)),
    "id of EOD": manifest(lambda old: of_tokenizer(old, eod_id=7)),
    "eod of the recipe and of the tokenizer": manifest(lambda old: of_recipe(old, eod=3)),
    "in receipts/": manifest(
        lambda old: replace(old, sources=dict.fromkeys(old.sources, replace(old.ledger, tokens=0)))
    ),
    "documents: the sum of all sources": manifest(
        lambda old: replace(old, ledger=replace(old.ledger, documents=0))
    ),
    "sources: expected": manifest(lambda old: replace(old, sources={"web": old.ledger})),
    "a stray file": manifest(lambda old: with_rows(old, units=())),
}


@pytest.mark.parametrize("problem", BEHIND)
def test_damage_behind_right_checksums_is_found(damaged: Path, problem: str) -> None:
    BEHIND[problem](damaged)
    assert problem in said(report := verify(damaged)), said(report)


def test_a_tokenizer_that_is_nested_too_deeply_is_found(damaged: Path) -> None:
    (damaged / "tokenizer/tokenizer.json").write_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    reseal(damaged)
    for deep in (False, True):
        assert "tokenizer/tokenizer.json is not JSON" in said(verify(damaged, deep=deep))


# -------------------------------------------------------------------- other kinds of stores


@pytest.fixture(scope="module")
def streams(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], tokenizer_json: Path, write_jsonl: Any
) -> Path:
    """Two compressed files that are cut into units, with BOS."""
    import gzip

    import zstandard

    folder = tmp_path_factory.mktemp("streams")
    plain = write_jsonl(folder / "plain.jsonl", documents)
    data = plain.read_bytes()
    (folder / "in").mkdir()
    (folder / "in/a.jsonl.zst").write_bytes(zstandard.compress(data))
    (folder / "in/b.jsonl.gz").write_bytes(gzip.compress(data[: data.find(b"\n", len(data) // 9) + 1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_inputs, "UNIT_BYTES", ())
        patch.setattr(cut_inputs, "LARGEST_UNIT", 64 << 10)
        build_store(folder / "in", tokenizer_json, folder / "store", bos=EOD)
    return folder / "store"


def test_a_store_of_streams(streams: Path) -> None:
    manifest = read_manifest(streams)
    assert any(unit.unit.endswith(".stream") for unit in manifest.units)
    report = verify(streams, deep=True)
    assert said(report) == ""
    assert report.deep is not None
    assert report.deep.notes == []
    assert report.deep.shards == len(manifest.shards) > 2


def test_a_lost_unit_of_a_stream_is_found(streams: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(streams, folder)
    manifest = read_manifest(folder)
    last = [unit for unit in manifest.units if unit.unit.startswith("in-000000-")][-1]
    for path in [*folder.glob(f"*{last.unit}.*"), folder / last.receipt.name]:
        path.unlink()
    shards = [shard for shard in manifest.shards if not shard.name.endswith(last.unit)]
    units = [unit for unit in manifest.units if unit != last]
    write_manifest(folder, with_rows(manifest, shards=shards, units=units))
    reseal(folder)
    report = verify(folder)
    assert "units of stream in-000000" in said(report), said(report)


@pytest.mark.parametrize("policy", ["text", "parse", "reject"])
def test_every_policy_of_special_tokens_verifies(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], policy: str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one", f"a {EOD} b", EOD, "two"])
    store = build_store(source, tokenizer_json, tmp_path / "store", special_tokens=policy)
    inside = [int(np.count_nonzero(one[:-1] == 0)) for one in store.documents]
    assert inside == {"text": [0] * 4, "parse": [0, 1, 1, 0], "reject": [0, 0]}[policy]
    report = verify(store.path, deep=True)
    assert said(report) == ""
    if policy == "parse":
        # The same tokens under a recipe that promises plain text are a fault.
        reseal(store.path, change_manifest=lambda old: of_recipe(old, special_tokens="text"))
        assert "2 control tokens inside documents" in said(verify(store.path))


def test_an_ordinary_token_as_eod_may_stand_inside(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["!one!", "!"])
    store = build_store(source, tokenizer_json, tmp_path / "store", eod="!")
    assert store.documents[1].tolist() == [store.eod_id] * 2
    report = verify(store.path, deep=True)
    assert said(report) == ""


@pytest.mark.parametrize("limit", [{"limit_documents": 5}, {"limit_tokens": 100}])
def test_a_limited_store(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Any, limit: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", documents[:20])
    write_jsonl(tmp_path / "in/b.jsonl", documents[20:40])
    store = build_store(tmp_path / "in", tokenizer_json, tmp_path / "store", **limit)
    assert 0 < len(store.documents) < 40
    assert said(verify(store.path, deep=True)) == ""


REASONS = st.sampled_from(["malformed_json", "invalid_utf8", "too_large"])
REJECTS = st.lists(
    st.tuples(REASONS, st.binary(min_size=1, max_size=8), st.integers(1, 3)), min_size=1, max_size=8
)


def checked(folder: Path) -> tuple[Receipts, str]:
    findings, manifest = Findings(), read_manifest(folder)
    receipts = read_receipts(StoreFiles(folder), manifest, findings)
    check_receipts(manifest, receipts, findings)
    return receipts, "\n".join(map(str, findings.problems))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store", [[3, 4], [5], [6, 2]], labels=["a", None, "a"])


def test_pieces_of_inputs_are_those_of_the_receipts(store: Store) -> None:
    check, said = checked(store.path)
    assert said == ""
    assert list(check.by_unit) == ["made-a-000000", "made-a-000001", "made-000000"]
    pieces = check.pieces()
    assert set(pieces) == {(entry.source, entry.name) for entry in store.manifest.inputs}
    for entry in store.manifest.inputs:
        (piece,) = pieces[entry.source, entry.name]
        assert (piece.start, piece.stop, piece.checksum) == (0, entry.bytes, entry.checksum)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"start": 1}, "units of input 000001.jsonl: the next begins at: expected 0, found 1"),
        ({"stop": 3}, "units of input 000001.jsonl: bytes: expected 4, found 3"),
        ({"checksum": "0" * 32}, "checksum of input 000001.jsonl"),
        ({"file": "other"}, "input 000001.jsonl: expected read by some unit, found by none"),
    ],
)
def test_a_unit_that_read_another_part_of_an_input_is_found(
    store: Store, change: dict[str, int | str], problem: str
) -> None:
    def read_another(receipt: Receipt) -> Receipt:
        if receipt.unit != "made-000000":
            return receipt
        return msgspec.structs.replace(
            receipt, inputs=(msgspec.structs.replace(receipt.inputs[0], **change),)
        )

    reseal(store.path, read_another)
    assert problem in checked(store.path)[1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("made-a-000005", "units of made-a without a gap"),
        ("made-000005", "source: expected made, found made-a"),
        ("other-000000", "name: expected a source of the recipe and the number of a unit"),
        ("made-a-5", "name: expected a source of the recipe and the number of a unit"),
    ],
)
def test_a_unit_that_is_missing_from_the_numbers_is_found(store: Store, name: str, problem: str) -> None:
    folder = store.path / "receipts"
    receipt = msgspec.json.decode((folder / "made-a-000001.json").read_bytes(), type=Receipt)
    (folder / "made-a-000001.json").unlink()
    (folder / f"{name}.json").write_bytes(to_json(msgspec.structs.replace(receipt, unit=name, shards=())))
    units = [unit for unit in store.manifest.units if unit.unit != "made-a-000001"]
    (last,) = (unit for unit in store.manifest.units if unit.unit == "made-a-000001")
    changed = msgspec.structs.replace(last.receipt, name=f"receipts/{name}.json")
    units.append(msgspec.structs.replace(last, unit=name, receipt=changed))
    shards = [shard for shard in store.manifest.shards if shard.name != "train-made-a-000001"]
    write_manifest(store.path, with_rows(store.manifest, units=units, shards=shards))
    reseal(store.path)
    assert problem in checked(store.path)[1]


def test_a_lost_receipt_is_one_problem_and_not_a_wrong_sum_as_well(store: Store) -> None:
    (store.path / "receipts/made-000000.json").write_bytes(b"{}")
    check, said = checked(store.path)
    assert not check.complete
    assert [line.partition(":")[0] for line in said.splitlines()] == ["receipts/made-000000.json"]


@settings(max_examples=20)
@given(REJECTS, st.data())
def test_entries_and_raw_bytes_of_rejects_agree_or_the_difference_is_found(
    rejects: list[tuple[str, bytes, int]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, findings = Path(place), Findings()
        writer = RejectsWriter(folder, "u")
        for number, (reason, raw, records) in enumerate(rejects):
            writer.write(Reject(0, number, reason, "", raw, records), "a")  # type: ignore[arg-type]
        size, path = writer.close()[0].bytes, folder / "u.jsonl"
        reasons = sorted({reason for reason, *_ in rejects})
        expected = {one: sum(count for reason, _, count in rejects if reason == one) for one in reasons}
        found = check_rejects(path, "u.jsonl", size, findings)
        assert found == expected and list(found) == reasons and not findings.problems
        lines = path.read_bytes().splitlines(keepends=True)
        lost = data.draw(st.integers(0, len(lines) - 1))
        path.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
        check_rejects(path, "u.jsonl", size, findings)
        assert len(findings.problems) == 1, "an entry is missing"
        path.write_bytes(b"".join(lines[: lost + 1] + lines[lost:]))
        check_rejects(path, "u.jsonl", size, findings)
        assert len(findings.problems) == 2, "an entry is there twice"
