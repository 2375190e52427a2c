"""Receipts and rejects: every record is accounted for once, and any that is missing or twice is found."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.stores import reseal, with_rows

from packline.facade import Store
from packline.sources.batch import Reject
from packline.store.files import StoreFiles
from packline.store.manifest import Receipt, to_json
from packline.store.manifest_check import read_manifest
from packline.store.report import Findings
from packline.store.verify import Receipts, check_receipts, check_rejects, read_receipts
from packline.store.writer import RejectsWriter
from packline.testing import make_store, write_manifest

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
