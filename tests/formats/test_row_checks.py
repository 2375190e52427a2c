"""Formats of rows: `verify` checks checksums and headers, and nothing makes documents of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.formats.stores import CASES, write_tokenizer

import packline
from packline.errors import RecipeError
from packline.facade import Store
from packline.formats.check import check_dataset
from packline.formats.export import run_export
from packline.formats.format import ROW_FORMATS
from packline.packing.options import ExportChoice
from packline.viewing.analysis import analyze_foreign

SMALL: dict[str, dict[str, Any]] = {
    "litdata": {"shard_bytes": 600},
    "mds": {"size_limit": 1000},
    "trl": {"shard_tokens": 200},
    "baked": {"file_rows": 5},
}
REASON = r"holds rows \({}\): where documents begin and end is not preserved"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return CASES["plain"].make(tmp_path / "store")


def exported(store: Store, name: str, out: Path, **choice: Any) -> Path:
    chosen = ExportChoice(**{"seq_len": 16, "batch_size": 3, **choice})
    run_export(store.path, to=name, out=out, options=SMALL.get(name), choice=chosen, workers=0)
    return out


@pytest.mark.parametrize("name", ROW_FORMATS)
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_an_export_passes_its_check(tmp_path: Path, store: Store, name: str, packing: str) -> None:
    out = exported(store, name, tmp_path / "out", packing=packing, seed=3)
    for tokenizer in (None, store.path / "tokenizer" / "tokenizer.json"):
        report = check_dataset(out, name, tokenizer)
        assert report.ok, report.problems
        assert report.bytes > 0 and report.format == name
        assert report.notes[0] == "tokens of rows are not read: checksums and headers were checked"
    assert check_dataset(out).format == name  # by its packline.json


@pytest.mark.parametrize("name", [name for name in ROW_FORMATS if name != "baked"])
def test_without_packline_json_headers_are_checked(tmp_path: Path, store: Store, name: str) -> None:
    out = exported(store, name, tmp_path / "out")
    (out / "packline.json").unlink()
    report = check_dataset(out)  # recognised by its files
    assert report.ok and report.format == name and report.files > 0
    assert any("there is no packline.json" in note for note in report.notes)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_any_changed_byte_is_found(tmp_path: Path, store: Store, name: str) -> None:
    out = exported(store, name, tmp_path / "out")
    files = [path for path in sorted(out.iterdir()) if path.name != "packline.json"]
    for path in (files[0], files[len(files) // 2], files[-1]):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        (problem,) = check_dataset(out, name).problems
        assert problem.file == path.name
        path.write_bytes(whole)
    (out / "more.bin").write_bytes(b"")
    (problem,) = check_dataset(out, name).problems
    assert str(problem).startswith("more.bin: a stray file")


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_another_tokenizer_is_a_problem(tmp_path: Path, store: Store, name: str) -> None:
    out = exported(store, name, tmp_path / "out")
    (problem,) = check_dataset(out, name, write_tokenizer(tmp_path / "other", 900, 0)).problems
    assert "made with another tokenizer" in str(problem)


@pytest.mark.parametrize("name", ROW_FORMATS)
@pytest.mark.parametrize("format", ["named", None])
def test_rows_do_not_become_documents(tmp_path: Path, store: Store, name: str, format: str | None) -> None:
    out, tokenizer = exported(store, name, tmp_path / "out"), store.path / "tokenizer"
    given = name if format else None
    with pytest.raises(RecipeError, match=REASON.format(name)) as caught:
        packline.import_(out, from_=given, tokenizer=tokenizer, out=tmp_path / "back", workers=0)
    assert "use the store that the rows were made from" in caught.value.hint
    assert not (tmp_path / "back").exists()
    with pytest.raises(RecipeError, match=REASON.format(name)):
        analyze_foreign(out, format=given, tokenizer=str(tokenizer))
