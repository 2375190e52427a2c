"""Tokens are the reference tokenizer's, and text never becomes a control token by accident.

Promises 4 and 5, for the kinds of tokenizer that only some engines can do. The tokenizers are made here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.jobs.builds import build, rejects
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import packline
from packline.errors import TokenizerError
from packline.jobs.events import EnginesTried
from packline.recipe import Engine

SPECIAL = ["<unk>", "</s>", "<s>", "[CLS]"]


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: list[str], path: Path) -> Path:
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return path


def unigram(texts: list[str], path: Path) -> Path:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    return _trained(tokenizer, trainer, texts, path)


def word_piece(texts: list[str], path: Path) -> Path:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False)
    return _trained(tokenizer, trainer, texts, path)


def byte_fallback(texts: list[str], path: Path) -> Path:
    """As SentencePiece BPE comes: pieces with `▁`, and a token a byte for all the rest."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=[], limit_alphabet=80, initial_alphabet=[], show_progress=False
    )
    # Training without a pre-tokenizer merges across words, which takes a while: short texts will do.
    words = [word for text in texts[:60] for word in text.split()[:300]]
    tokenizer.train_from_iterator(("▁" + word for word in words), trainer)
    import json

    whole = json.loads(tokenizer.to_str())
    learnt = [piece for piece, _ in sorted(whole["model"]["vocab"].items(), key=lambda item: item[1])]
    vocabulary = list(dict.fromkeys([*pieces, *learnt]))
    whole["model"]["vocab"] = {piece: number for number, piece in enumerate(vocabulary)}
    whole["added_tokens"] = [
        {"id": number, "content": content, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False, "special": True}
        for number, content in enumerate(SPECIAL)
    ]
    path.write_text(json.dumps(whole))
    return path


MAKERS = {"unigram": unigram, "word_piece": word_piece, "byte_fallback": byte_fallback}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    # Sorted and short: training is to be quick and the same in every process.
    texts = sorted(text[:2000] for text in documents)[:250]
    return {name: make(texts, folder / f"{name}.json") for name, make in MAKERS.items()}


@pytest.mark.parametrize("kind", MAKERS)
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
    if engine == "auto" and kind != "byte_fallback":
        assert tried.used == [{"unigram": "tokenizers", "word_piece": "nanotoken"}[kind]]


def test_an_engine_that_cannot_do_a_tokenizer_is_refused_by_name(
    made: dict[str, Path], tmp_path: Path, write_jsonl: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", ["text"])
    for engine in ("gigatoken", "fastokens"):
        with pytest.raises(TokenizerError, match=f"{engine} ") as caught:
            build(tmp_path / engine, tmp_path / "in", made["word_piece"], eod="</s>", engine=engine)
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


@pytest.mark.parametrize("kind", ["byte_level", *MAKERS])
@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
def test_control_tokens_names_in_text_stay_text(
    kind: str, engine: Engine, made: dict[str, Path], tokenizer_json: Path, tmp_path: Path, write_jsonl: Any
) -> None:
    path = tokenizer_json if kind == "byte_level" else made[kind]
    names = ["<|endoftext|>"] if kind == "byte_level" else SPECIAL
    eod = names[0] if kind == "byte_level" else "</s>"
    write_jsonl(tmp_path / "in/a.jsonl", HOSTILE)
    store = build(tmp_path / "out", tmp_path / "in", path, eod=eod, engine=engine)
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
