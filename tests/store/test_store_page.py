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


def test_the_reader_has_the_documents_and_the_provenance_of_packline(
    tmp_path: Path,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = ""
    for number, name in enumerate(("web", "books")):
        write_jsonl(tmp_path / f"{name}.jsonl", documents[number::2])
        sources += f'[[sources]]\nname = "{name}"\ninputs = ["{name}.jsonl"]\n'
    settings = f'tokenizer = "{tokenizer_json}"\neod = "{EOD}"\nval_fraction = 0.3\n'
    (tmp_path / "recipe.toml").write_text(settings + sources, "utf-8")
    store = packline.build(tmp_path / "recipe.toml", out=tmp_path / "store", workers=0)
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) <= 60 and "packline" not in program
    names: dict[str, Any] = {}
    exec(compile(program, "store.md", "exec"), names)
    plain = names["store"]
    assert len(plain.shards) == 4 and len(plain) == len(store.documents)
    for number, tokens in enumerate(store.documents):
        assert np.array_equal(plain.tokens(number), tokens)
    for number in (0, len(plain) // 2, len(plain) - 1):
        found, wanted = plain.provenance(number), store.provenance(number)
        for name in ("source", "file", "position", "hash"):
            assert found[name] == getattr(wanted, name)
