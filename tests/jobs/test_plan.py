"""The record of a build that has begun names the build, and units, that the finished store has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.jobs.builds import build, set_sizes
from tests.laws.reference import write_corpus

import packline
from packline.errors import CorruptStore
from packline.facade import Store
from packline.jobs import store_job
from packline.jobs.plan import PLAN, Plan, read_plan, record_plan
from packline.loading.state import build_identity
from packline.storage.local import LocalFolder
from packline.storage.results import WORK, Storage
from packline.store.ledger import source_names
from packline.store.naming import STREAM, planned_name


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Records of the builds of a test, as they were read back."""
    found: list[Plan] = []

    def record(storage: Storage, value: Plan) -> Plan:
        assert record_plan(storage, value) == value
        again = read_plan(storage)
        assert again == value
        found.append(value)
        return value

    monkeypatch.setattr(store_job, "record_plan", record)
    return found


def check(record: Plan, store: Store) -> None:
    manifest = store.manifest
    assert record.build == build_identity(manifest)
    assert record.dtype == manifest.dtype and record.recipe == manifest.recipe
    assert record.tokenizer == msgspec.structs.replace(manifest.tokenizer, round_trip="")
    units = dict(zip(manifest.units.names("unit"), manifest.units.names("source"), strict=True))
    planned = {unit.name: unit for unit in record.units}
    assert {planned_name(unit.removesuffix(STREAM)) for unit in units} <= set(planned)
    names = source_names(record.recipe)
    for unit, source in units.items():
        assert names[planned[planned_name(unit.removesuffix(STREAM))].source] == source
    streams = {unit.removesuffix(STREAM) for unit in units if unit.endswith(STREAM)}
    assert streams == {unit.name for unit in record.units if unit.slice_bytes}
    assert read_plan(LocalFolder(store.path)) is None  # it ends with the build


def test_a_build_and_an_import(
    tmp_path: Path,
    begun: list[Plan],
    documents: list[str],
    tokenizer_json: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_sizes(monkeypatch, 50_000, 1 << 13)
    half = len(documents) // 2
    write_corpus(tmp_path / "in", [("jsonl", documents[:half], True), ("jsonl.zst", documents[half:], True)])
    store = build(tmp_path / "store", tmp_path / "in", tokenizer_json)
    check(begun.pop(), store)
    packline.export(store, out=tmp_path / "data", to="megatron", workers=0)
    imported = packline.import_(
        tmp_path / "data", tokenizer=tokenizer_json, out=tmp_path / "out", from_="megatron", workers=0
    )
    check(begun.pop(), imported)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir()
    (tmp_path / WORK / PLAN).write_text("{")
    with pytest.raises(CorruptStore, match=PLAN):
        read_plan(LocalFolder(tmp_path))
