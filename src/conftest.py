"""Files and names that examples in docstrings may use; wheels do not contain this file.

store                       an open store of one document, the words `a b a` eight times over: 25 tokens
words.txt, tokenizer.json   a text, `a b a`, and a tokenizer, in the working directory
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

MODEL = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
TOKENIZER = msgspec.json.encode({"model": MODEL, "pre_tokenizer": {"type": "Whitespace"}})


@pytest.fixture(scope="session", autouse=True)
def names_of_doctests(doctest_namespace: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put `store` into the namespace of every doctest below this folder."""
    import packline

    folder = tmp_path_factory.mktemp("doctests")
    (folder / "words.txt").write_text("a b a " * 8, encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    doctest_namespace["store"] = packline.build(
        folder / "words.txt", folder / "tokenizer.json", out=folder / "store", eod="</s>", workers=0
    )


@pytest.fixture(autouse=True)
def files_of_doctests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the example in a folder of its own, with a text and a tokenizer."""
    (tmp_path / "words.txt").write_text("a b a", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER)
    monkeypatch.chdir(tmp_path)
