"""A store that all tests of the reader and of `verify` look at; those that damage it take a copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.stores import build_store

from packline.facade import Store


@pytest.fixture(scope="session")
def built(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    tokenizer_json: Path,
    write_jsonl: Callable[..., Path],
) -> Store:
    """Two splits, several units, rejects, an id and a label."""
    folder = tmp_path_factory.mktemp("built")
    records: list[dict[str, Any]] = [{"text": text, "id": f"d{n}"} for n, text in enumerate(documents)]
    # One source of three files; tiny, so that each file of its own would still share a unit.
    third = len(records) // 3
    write_jsonl(folder / "in/a.jsonl", [*records[:third], {"text": 7}, {"other": "x"}])
    write_jsonl(folder / "in/b.jsonl", [*records[third : 2 * third], {"text": ""}])
    write_jsonl(folder / "in/c.jsonl", records[2 * third :])
    with (folder / "in/a.jsonl").open("ab") as file:
        file.write(b'{"text": "cut off\n')
    return build_store(folder / "in", tokenizer_json, folder / "store", val_fraction=0.2)


@pytest.fixture
def damaged(built: Store, tmp_path: Path) -> Path:
    import shutil

    folder = tmp_path / "store"
    shutil.copytree(built.path, folder)
    return folder
