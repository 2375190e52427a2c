"""Tokens are the reference tokenizer's, and text never becomes a control token by accident.

Promises 4 and 5, for the kinds of tokenizer that only some engines can do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.encoders.fuzzed_files import contents_of, published
from tests.jobs.builds import build, rejects
from tokenizers import AddedToken, Tokenizer

import packline
from packline.errors import TokenizerError
from packline.jobs.events import EnginesTried
from packline.recipe import Engine

SPECIAL = ["<unk>", "</s>", "<s>", "[CLS]"]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


PARTS: dict[str, dict[str, Any]] = {
    "Unigram": {"normalizer": {"type": "NFKC"}, "pre_tokenizer": METASPACE, "decoder": METASPACE},
    "WordPiece": published()["bert"],
    "pieces": published()["llama2"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    tokens = [(name, {"special": True}) for name in SPECIAL]
    for kind, parts in PARTS.items():
        contents = contents_of(kind, **{**parts, "tokens": tokens})
        (folder / f"{kind}.json").write_text(json.dumps(contents))
    return {kind: folder / f"{kind}.json" for kind in PARTS}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
def test_ids_are_the_reference_tokenizers_whatever_the_kind(
    kind: str, engine: Engine, made: dict[str, Path], tmp_path: Path, write_jsonl: Any, documents: list[str]
) -> None:
    plain = [text for text in documents[:120] if not any(name in text for name in SPECIAL)]
    write_jsonl(tmp_path / "in/a.jsonl", plain)
    told: list[Any] = []
    store = packline.build(
        tmp_path / "in",
        made[kind],
        out=tmp_path / "out",
        eod="</s>",
        bos="<s>",
        workers=0,
        engine=engine,
        on_event=told.append,
    )
    reference = Tokenizer.from_file(str(made[kind]))
    eod, bos = reference.token_to_id("</s>"), reference.token_to_id("<s>")
    for text, tokens in zip(plain, store.documents, strict=True):
        assert tokens.tolist() == [bos, *reference.encode(text, add_special_tokens=False).ids, eod]
    (tried,) = (event for event in told if isinstance(event, EnginesTried))
    assert tried.used and tried.reason
    if engine == "auto":
        assert tried.used == [
            {"Unigram": "tokenizers", "WordPiece": "nanotoken", "pieces": "gigatoken"}[kind]
        ]


def test_an_engine_that_cannot_do_a_tokenizer_is_refused_by_name(
    made: dict[str, Path], tmp_path: Path, write_jsonl: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", ["text"])
    for engine in ("gigatoken", "fastokens"):
        with pytest.raises(TokenizerError, match=f"{engine} ") as caught:
            build(tmp_path / engine, tmp_path / "in", made["WordPiece"], eod="</s>", engine=engine)
        assert "--engine auto" in caught.value.hint


HOSTILE = [
    "<|endoftext|>",
    "before <|endoftext|> after",
    "<|endoftext|><|endoftext|>",
    "<s> </s> <unk> [CLS]",
    "</s>",
    "x</s>y<s>z[CLS]",
    " [CLS] ",
]


@pytest.mark.parametrize("kind", ["byte_level", *PARTS])
def test_control_tokens_names_in_text_stay_text(
    kind: str, made: dict[str, Path], tokenizer_json: Path, tmp_path: Path, write_jsonl: Any
) -> None:
    path = tokenizer_json if kind == "byte_level" else made[kind]
    names = ["<|endoftext|>"] if kind == "byte_level" else SPECIAL
    eod = names[0] if kind == "byte_level" else "</s>"
    write_jsonl(tmp_path / "in/a.jsonl", HOSTILE)
    store = build(tmp_path / "out", tmp_path / "in", path, eod=eod, engine="auto")
    tokenizer = Tokenizer.from_file(str(path))
    # <unk> is what a model says of text that it does not know, so it may come out; it controls nothing.
    control = {tokenizer.token_to_id(name) for name in names} - {tokenizer.token_to_id("<unk>")}
    assert len(store.documents) == len(HOSTILE)
    for tokens in store.documents:
        assert not control & set(tokens[:-1].tolist())
        assert tokens[-1] == tokenizer.token_to_id(eod)
    count = sum(text.count(name) for text in HOSTILE for name in names)
    assert store.manifest.ledger.special_token_strings == count


@pytest.mark.parametrize("engine", ["gigatoken", "fastokens", "tokenizers"])
def test_names_of_control_tokens_are_parsed_where_the_recipe_says_so(
    engine: str, tokenizer_json: Path, tmp_path: Path, write_jsonl: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", HOSTILE)
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json, special_tokens="parse", engine=engine)
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    for text, tokens in zip(HOSTILE, store.documents, strict=True):
        assert tokens.tolist() == [*tokenizer.encode(text, add_special_tokens=False).ids, 0]
    assert [int((tokens[:-1] == 0).sum()) for tokens in store.documents] == [1, 1, 2, 0, 0, 0, 0]
    assert store.manifest.ledger.special_token_strings == 4


def test_documents_with_names_of_control_tokens_are_rejected_where_the_recipe_says_so(
    tokenizer_json: Path, tmp_path: Path, write_jsonl: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", HOSTILE)
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json, special_tokens="reject")
    assert [store.text(n) for n in range(len(store.documents))] == HOSTILE[3:]
    assert [one["raw"].decode() for one in rejects(tmp_path / "out")] == HOSTILE[:3]
    ledger = store.manifest.ledger
    assert ledger.rejected == {"special_token": 3} and ledger.imbalance() == []


def test_an_added_token_that_is_not_special_is_text_of_its_own(
    tmp_path: Path, write_jsonl: Any, tokenizer_json: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    tokenizer.add_tokens([AddedToken("    ", normalized=False), AddedToken("<tool>", normalized=False)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    texts = ["if x:\n        return <tool>", "<|endoftext|> <tool>"]
    write_jsonl(tmp_path / "in/a.jsonl", texts)
    store = build(tmp_path / "out", tmp_path / "in", path, engine="auto")
    reference = Tokenizer.from_file(str(path))
    reference.encode_special_tokens = True
    assert reference.token_to_id("<tool>") in store.documents[0]
    assert store.documents[0].tolist()[:-1] == reference.encode(texts[0], add_special_tokens=False).ids
    assert (store.documents[1][:-1] != 0).all() and reference.token_to_id("<tool>") in store.documents[1]
