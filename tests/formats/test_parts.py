"""Parts of an export: options from text, and which parts are worth a receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.formats.stores import make_store, random_documents
from tests.jobs.builds import Stop, stop_after

from packline.errors import RecipeError
from packline.formats.export import run_export
from packline.formats.export_folder import PartReceipt, Staging
from packline.formats.format import convert_options, get_format
from packline.storage import local


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


def test_links_are_made_again_after_an_interruption(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_documents(30, 300), vocab_size=300, eod_id=0, shards=3)
    settings: dict[str, Any] = {"to": "megatron", "out": tmp_path / "out", "workers": 0}
    with pytest.raises(Stop):
        run_export(store.path, on_event=stop_after(1), **settings)
    assert not (tmp_path / "out").exists()
    done = run_export(store.path, **settings)
    assert done.parts_kept == 0 and done.parts == 3
    written = sorted((tmp_path / "out").glob("*.bin"))
    for path, shard in zip(written, store.manifest.shards, strict=True):
        assert path.samefile(store.path / f"{shard.name}.bin")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
