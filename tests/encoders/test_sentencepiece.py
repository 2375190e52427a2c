"""SentencePiece models turned into a tokenizer.json give the ids of SentencePiece itself."""

from __future__ import annotations

import inspect
import io
import json
import random
import struct
import unicodedata
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.encoders.sentencepiece import convert_model, read_model
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError

SHARED = Path(__file__).resolve().parents[3] / "shared"
sentencepiece = pytest.importorskip("sentencepiece", reason="compares with the sentencepiece library")

OTHER_SCRIPTS = [
    "Ein Übermut, der größer war als die Müdigkeit, trieb sie über die Brücke.",
    "Вечером снег пошёл снова, и город стал тихим.",
    "春の夜、猫は屋根の上で月を見ていた。ガラスの街だった。",
    "밤이 되자 골목의 불빛이 하나씩 꺼졌다.",
    "रात को बारिश हुई और सड़कें चमकने लगीं।",
    "في المساء هبّت ريح باردة من الجبل.",
]
ALPHABET = " \t\nabxyz.=-/<>é漢ガ한हि▁🙂0x41"
KINDS = [
    (kind, rule, fallback, users)
    for kind in ("bpe", "unigram")
    for rule, fallback, users in [
        ("identity", False, True),
        ("identity", True, False),
        ("nmt_nfkc", False, False),
        ("nmt_nfkc", True, True),
        ("nmt_nfkc_cf", True, False),
        ("nmt_nfkc_cf", False, True),
    ]
]
"""Each pair of settings in one of them."""
every_kind = pytest.mark.parametrize("variant", KINDS, ids=lambda variant: "-".join(map(str, variant)))


@lru_cache
def lines() -> list[str]:
    """Prose and code that every Python has, with a few sentences in other scripts."""
    modules: list[ModuleType] = [inspect, io, json, random, struct, unicodedata, st]
    text = "\n".join((module.__doc__ or "") for module in modules) + inspect.getsource(inspect)
    return [line[:300] for line in text.splitlines() if line.strip()] + OTHER_SCRIPTS * 8


def train(model_type: str, **options: Any) -> bytes:
    model = io.BytesIO()
    usual = {"vocab_size": 500, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=model, model_type=model_type, **(usual | options)
    )
    return model.getvalue()


@lru_cache
def trained(kind: str, rule: str, fallback: bool, users: bool) -> bytes:
    return train(
        kind,
        vocab_size=900,
        normalization_rule_name=rule,
        remove_extra_whitespaces=rule != "identity",
        byte_fallback=fallback,
        user_defined_symbols=["<sep>", "[x]"] if users else [],
        control_symbols=["<mask>"],
        character_coverage=0.99,
    )


class Pair:
    """Ours and theirs, for one model."""

    def __init__(self, model: bytes) -> None:
        contents, self.declared = convert_model(model, "test.model")
        # SentencePiece never reads a control piece out of text: neither does ours without special tokens.
        contents["added_tokens"] = [token for token in contents["added_tokens"] if not token["special"]]
        self.ours = tokenizers.Tokenizer.from_str(msgspec.json.encode(contents).decode())
        self.theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.unigram = contents["model"]["type"] == "Unigram"
        self.lowest = min(
            (piece.score for piece in read_model(model, "").pieces if piece.type == 1), default=0
        )

    def score(self, ids: list[int]) -> float:
        """Of a cut; an unknown piece counts as SentencePiece counts it, bytes as their unknown character."""
        unknown = self.theirs.unk_id()
        return sum(self.lowest - 10 if piece == unknown else self.theirs.get_score(piece) for piece in ids)

    def check(self, text: str) -> bool:
        """Equal ids; or, for Unigram, other cuts of the same score, which 32-bit rounding decides."""
        ours = self.ours.encode(text, add_special_tokens=False).ids
        theirs = self.theirs.encode(text)
        if ours != theirs:
            assert self.unigram, (text, ours, theirs)
            tolerance = 1e-5 * max(1.0, abs(self.score(theirs)))
            assert abs(self.score(ours) - self.score(theirs)) < tolerance, (text, ours, theirs)
        return ours == theirs


@lru_cache
def pair(kind: str, rule: str, fallback: bool, users: bool) -> Pair:
    return Pair(trained(kind, rule, fallback, users))


@every_kind
def test_ids_on_lines_and_whole_text_are_those_of_sentencepiece(variant: tuple[str, str, bool, bool]) -> None:
    texts = [*lines(), "\n".join(lines())[:20_000], "", " ", "\n", "a", " a ", "  a  b  ", "▁", "a ▁"]
    equal = sum([pair(*variant).check(text) for text in texts])
    assert equal == len(texts) if variant[0] == "bpe" else equal > 0.98 * len(texts)


pieces = st.sampled_from(
    [*ALPHABET, "</s>", "<s>", "<unk>", "<mask>", "<0x41>", "①", "ﬁ", "Ａ", "ｶﾞ", "\u3000", "\u200b"]
)


users = st.sampled_from(["<sep>", "[x]", "a", " ", "  ", "the", "<", "x]"])


@every_kind
@settings(max_examples=150, deadline=None)
@given(st.lists(pieces, max_size=14).map("".join) | st.lists(users, max_size=8).map("".join))
def test_ids_on_odd_text_are_those_of_sentencepiece(variant: tuple[str, str, bool, bool], text: str) -> None:
    both = pair(*variant)
    if variant[3] and text.strip() in ("<sep>", "[x]"):
        # Nothing else in the document: the one case without a space before it.
        assert both.ours.encode(text).ids == both.theirs.encode(text)[-1:] or both.check(text)
    else:
        both.check(text)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf"])
def test_single_characters_and_decomposed_ones_normalize_as_in_sentencepiece(rule: str) -> None:
    both = pair("bpe", rule, True, False)
    points = [
        chr(point)
        for point in range(1, 0x20000)
        if unicodedata.category(chr(point)) not in ("Cs", "Cn", "Co")
    ]
    texts = [f"x{text}y" for point in points for text in {point, unicodedata.normalize("NFKD", point)}]
    texts += [f"x{chr(kana)}{mark}y" for kana in range(0xFF66, 0xFF9E) for mark in "ﾞﾟ"]
    normalize = both.ours.normalizer.normalize_str
    different = [
        text
        for text, theirs in zip(texts, both.theirs.normalize(texts), strict=True)
        if normalize(text) != theirs
    ]
    assert len(different) <= 2 and len(texts) > 90_000, different[:10]


@pytest.mark.parametrize("options", [{"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}])
def test_normalizer_settings_are_kept(options: dict[str, bool]) -> None:
    both = Pair(train("bpe", **options))
    assert all(both.check(text) for text in [*lines(), "  a  b ", "a", "\t", "x\n\ny"])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_ids_turn_back_into_the_text(kind: str) -> None:
    both = pair(kind, "identity", True, False)
    for text in [line for line in lines() if line == " ".join(line.split())]:
        ids = both.ours.encode(text, add_special_tokens=False).ids
        assert both.ours.decode(ids) == text == both.theirs.decode(ids)


def test_special_pieces_are_special_tokens_with_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "any.model"
    path.write_bytes(trained("unigram", "identity", True, True))
    tokenizer = load_tokenizer(str(tmp_path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    special = ["<unk>", "<s>", "</s>", "<mask>"]
    assert tokenizer.kind == "sentencepiece"
    assert tokenizer.special_tokens == {token: theirs.piece_to_id(token) for token in special}
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("</s>", "<s>")
    assert tokenizer.vocab_size == theirs.get_piece_size()
    reference = tokenizer.reference()
    assert all(
        reference.id_to_token(number) == theirs.id_to_piece(number) for number in range(tokenizer.vocab_size)
    )
    assert reference.token_to_id("<sep>") == theirs.piece_to_id("<sep>")


def test_renamed_and_absent_ends_are_read() -> None:
    model = train("bpe", bos_id=-1, eos_id=3, eos_piece="<end>", pad_id=1, unk_id=2)
    assert convert_model(model, "any")[1] == {"eos_token": "<end>"}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("word", {}, "expected a unigram or bpe model, found a word model"),
        ("char", {}, "expected a unigram or bpe model, found a char model"),
        ("bpe", {"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    ],
)
def test_other_models_are_refused_by_name(kind: str, options: dict[str, bool], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        convert_model(train(kind, **options), "any.model")


def test_user_defined_pieces_that_the_normalizer_changes_are_refused() -> None:
    model = train("bpe", normalization_rule_name="nmt_nfkc_cf", user_defined_symbols=["[Big]"])
    with pytest.raises(TokenizerError, match=r"leaves alone, found '\[Big\]', which becomes"):
        convert_model(model, "any.model")


def field(number: int, value: bytes | int) -> bytes:
    """One protobuf field below number 16, of a short value: what the tests build models from."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def tiny(*pieces: tuple[str, float, int]) -> bytes:
    """A BPE model of these pieces."""
    packed = [
        field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + field(3, kind)
        for text, score, kind in (("<unk>", 0.0, 2), *pieces)
    ]
    return b"".join(field(1, piece) for piece in packed) + field(2, field(3, 2))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([("a", -5, 1), ("b", -6, 1), ("ab", -1, 1), ("ba", -1, 1)], "'ab' and 'ba' at -1.0"),
        ([("a", -5, 1), ("ab", -1, 1)], "'ab' made of 'b'"),
        ([("a", -5, 1), ("a", -6, 1)], "expected every piece once, found 1 twice"),
        ([("a", -5, 1), ("b", -5, 5)], "no unused pieces"),
    ],
)
def test_what_no_tokenizer_json_can_state_is_refused(
    pieces: list[tuple[str, float, int]], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        convert_model(tiny(*pieces), "any.model")
    assert "any.model" in str(caught.value) and caught.value.hint


def test_merges_follow_the_scores_not_the_order_of_pieces() -> None:
    contents, _ = convert_model(tiny(("a", -5, 1), ("b", -6, 1), ("ab", -2, 1), ("aa", -1, 1)), "any.model")
    assert contents["model"]["merges"] == [["a", "a"], ["a", "b"]]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_model_is_a_tokenizer_error_or_still_a_model(data: st.DataObject) -> None:
    whole = tiny(("a", -5, 1), ("b", -6, 1), ("ab", -1, 1))
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        contents, _ = convert_model(bytes(damaged), "any.model")
    except TokenizerError as error:
        assert "any.model" in str(error)
    else:
        assert contents["model"]["vocab"]


@pytest.mark.skipif(not (SHARED / "corpora").is_dir(), reason="needs ../shared/corpora")
@every_kind
def test_ids_on_real_text_in_many_languages(variant: tuple[str, str, bool, bool]) -> None:
    import zstandard

    texts = []
    for file in sorted((SHARED / "corpora").glob("*.jsonl.zst")):
        with file.open("rb") as raw:
            data = zstandard.ZstdDecompressor().stream_reader(raw).read(120_000)
        texts += [json.loads(line)["text"][:1500] for line in data.splitlines()[:-1][:12]]
    equal = sum([pair(*variant).check(text) for text in texts])
    assert equal == len(texts) if variant[0] == "bpe" else equal > 0.9 * len(texts)
