"""The reader that docs/store.md shows reads a store as packline does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.stores import EOD

import packline

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "store.md").read_text("utf-8")


@pytest.fixture
def reader(
    tmp_path: Path,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Any, packline.Store]:
    """The page's reader of a store of several sources and splits, and packline's."""
    sources = ""
    for number, name in enumerate(("web", "books")):
        write_jsonl(tmp_path / f"{name}.jsonl", documents[number::2])
        sources += f'[[sources]]\nname = "{name}"\ninputs = ["{name}.jsonl"]\n'
    settings = f'tokenizer = "{tokenizer_json}"\neod = "{EOD}"\nval_fraction = 0.3\n'
    (tmp_path / "recipe.toml").write_text(settings + sources, "utf-8")
    store = packline.build(tmp_path / "recipe.toml", out=tmp_path / "store", workers=0)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(program(), "store.md", "exec"), names)
    return names["store"], store


def program() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(block)


def test_the_reader_is_short_and_without_packline() -> None:
    assert len(program().splitlines()) <= 60
    assert "packline" not in program()


def test_the_reader_has_the_documents_of_packline(reader: tuple[Any, packline.Store]) -> None:
    plain, store = reader
    assert len(plain.shards) == 4
    assert len(plain) == len(store.documents)
    for number, tokens in enumerate(store.documents):
        assert np.array_equal(plain.tokens(number), tokens)


def test_the_reader_has_the_provenance_of_packline(reader: tuple[Any, packline.Store]) -> None:
    plain, store = reader
    for number in (0, len(plain) // 2, len(plain) - 1):
        found, wanted = plain.provenance(number), store.provenance(number)
        assert (found["source"], found["file"], found["position"], found["hash"]) == (
            wanted.source,
            wanted.file,
            wanted.position,
            wanted.hash,
        )
