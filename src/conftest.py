"""What examples in docstrings may use without making it: `store`, a small store that is open.

It has one document, the words `a b a` eight times over: 24 tokens and the end of document. Made once a test
process, in less than half a second. Wheels do not contain this file.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest


@pytest.fixture(scope="session", autouse=True)
def names_of_doctests(doctest_namespace: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put `store` into the namespace of every doctest below this folder."""
    import packline

    folder = tmp_path_factory.mktemp("doctests")
    (folder / "words.txt").write_text("a b a " * 8, encoding="utf-8")
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "</s>"}
    tokenizer = {"model": model, "pre_tokenizer": {"type": "Whitespace"}}
    (folder / "tokenizer.json").write_bytes(msgspec.json.encode(tokenizer))
    doctest_namespace["store"] = packline.build(
        folder / "words.txt", folder / "tokenizer.json", out=folder / "store", eod="</s>", workers=0
    )
