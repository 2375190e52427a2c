"""Loading: one tokenizer.json from whatever it came as, its identity, and errors that say what was found."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.encoders.fuzzed_files import GPT2, contents_of

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError

CONTENTS = contents_of("bytes", pre_tokenizer=GPT2, tokens=["<|endoftext|>", "<plain>"]) | {
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 10}, "direction": "Right", "pad_to_multiple_of": None}
    | {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
}
"""A byte-level BPE with two added tokens, and with settings that would cut documents short."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps(CONTENTS, indent=1), encoding="utf-8")
    return tmp_path


def test_a_file_and_its_folder_are_the_same_tokenizer(folder: Path) -> None:
    by_folder, by_file = load_tokenizer(str(folder)), load_tokenizer(str(folder / "tokenizer.json"))
    assert msgspec.structs.replace(by_folder, name=by_file.name) == by_file
    assert (by_file.kind, by_folder.name, by_file.revision) == ("huggingface", str(folder), None)


def test_documents_are_neither_cut_nor_padded(folder: Path) -> None:
    reference = load_tokenizer(str(folder)).reference()
    text = "the cat sat on the mat and then the other cat"
    assert reference.decode(reference.encode(text).ids) == text
    assert len(reference.encode("a").ids) == 1
    assert tokenizers.Tokenizer.from_str(json.dumps(CONTENTS)).encode(text).ids != reference.encode(text).ids


def test_dropout_is_off_so_that_ids_are_not_random_and_a_byte_order_mark_no_obstacle(folder: Path) -> None:
    random = CONTENTS | {"model": CONTENTS["model"] | {"dropout": 0.9}}
    plain = load_tokenizer(str(folder))
    (folder / "tokenizer.json").write_text("\ufeff" + json.dumps(random), encoding="utf-8")
    assert load_tokenizer(str(folder)) == plain


def test_the_vocabulary_counts_added_tokens_and_gaps(folder: Path) -> None:
    entries = len(CONTENTS["model"]["vocab"])
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.vocab_size == entries + 2
    assert tokenizer.special_tokens == {"<|endoftext|>": entries}
    raised = json.loads(json.dumps(CONTENTS))
    raised["added_tokens"][1]["id"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(raised), encoding="utf-8")
    assert load_tokenizer(str(folder)).vocab_size == 5001


@pytest.mark.parametrize(
    ("files", "eos", "bos", "chat"),
    [
        ({}, None, None, False),
        ({"tokenizer_config.json": {"eos_token": "</s>", "bos_token": None}}, "</s>", None, False),
        ({"special_tokens_map.json": {"eos_token": "<m>", "bos_token": "<b>"}}, "<m>", "<b>", False),
        (
            {
                "special_tokens_map.json": {"eos_token": "<m>", "bos_token": "<b>"},
                "tokenizer_config.json": {"eos_token": {"content": "<e>"}, "chat_template": "{{ x }}"},
            },
            "<e>",
            "<b>",
            True,
        ),
        ({"chat_template.jinja": "{{ messages }}"}, None, None, True),
    ],
)
def test_what_the_files_beside_it_declare(
    folder: Path, files: dict[str, Any], eos: str | None, bos: str | None, chat: bool
) -> None:
    for name, value in files.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.chat) == (eos, bos, chat)


def fingerprint_of(path: Path, value: dict[str, Any], **layout: Any) -> str:
    path.write_text(json.dumps(value, **layout), encoding="utf-8")
    return load_tokenizer(str(path)).fingerprint


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(entry) for entry in value] if isinstance(value, list) else value


def test_the_fingerprint_does_not_depend_on_layout(tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    whole = fingerprint_of(path, CONTENTS)
    assert len(whole) == 32
    assert fingerprint_of(path, reversed_keys(CONTENTS), indent=4) == whole
    assert fingerprint_of(path, CONTENTS, ensure_ascii=False, separators=(",", ":")) == whole
    merges = [" ".join(pair) for pair in CONTENTS["model"]["merges"]]
    assert fingerprint_of(path, CONTENTS | {"model": CONTENTS["model"] | {"merges": merges}}) == whole
    other = {"truncation": None, "padding": None, "post_processor": None}
    assert fingerprint_of(path, CONTENTS | other) == whole
    reference = json.loads(load_tokenizer(str(path)).reference().to_str())
    assert fingerprint_of(path, reference) == whole


CHANGES: dict[str, Callable[[Any], object]] = {
    "order of merges": lambda c: c["model"]["merges"].reverse(),
    "vocabulary": lambda c: c["model"]["vocab"].update(extra=9999),
    "setting of the model": lambda c: c["model"].update(ignore_merges=True),
    "normalizer": lambda c: c.update(normalizer={"type": "NFC"}),
    "pre-tokenizer": lambda c: c["pre_tokenizer"].update(add_prefix_space=True),
    "decoder": lambda c: c.update(decoder=None),
    "flag of an added token": lambda c: c["added_tokens"][0].update(lstrip=True),
    "added tokens": lambda c: c["added_tokens"].pop(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_fingerprint_depends_on_all_that_decides_ids(
    tmp_path: Path, change: Callable[[Any], object]
) -> None:
    changed = json.loads(json.dumps(CONTENTS))
    change(changed)
    assert fingerprint_of(tmp_path / "a.json", CONTENTS) != fingerprint_of(tmp_path / "b.json", changed)


class Trap:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("unpickled",))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("tokenizer.json", b"not json", "is not JSON"),
        ("tokenizer.json", b"", "found an empty file"),
        ("tokenizer.json", b'{"a": "\xff"}', "is not JSON"),
        ("tokenizer.json", b"[1, 2]", "expected an object, found a list"),
        ("tokenizer.json", b'{"the": 1, "cat": 2}', "expected a model with a vocabulary, found the, cat"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": "b"}}}', "a token without an id"),
        (
            "tokenizer.json",
            b'{"model": {"vocab": {"a": 1}}, "added_tokens": [{"id": 1}]}',
            "a token without an id",
        ),
        ("tokenizer.model", b"\x00\x01\x02", "expected a SentencePiece model"),
        ("mine.tiktoken", b"YQ== 0\n", "expected the name of its encoding"),
        ("r50k_base.tiktoken", b"what is this", "line 1"),
        ("tokenizer.pkl", pickle.dumps(Trap(), 0), r"tokenizer\.pkl"),
        ("tokenizer.pkl", pickle.dumps(Trap(), 2), "is a pickled object"),
        ("tokenizer.pkl", pickle.dumps(Trap(), 5), "is a pickled object"),
        ("tokenizer.zip", b"PK\x03\x04" + b"\x00" * 30, "is a pickled object"),
    ],
)
def test_what_is_no_tokenizer_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(str(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)
    assert not (tmp_path / "unpickled").exists()


def test_a_json_that_the_reference_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "Odd", "vocab": {"a": 0}}}', encoding="utf-8"
    )
    with pytest.raises(TokenizerError, match="is not a tokenizer that HF tokenizers reads"):
        load_tokenizer(str(tmp_path)).reference()


def test_folders_without_one_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer in .* found nothing"):
        load_tokenizer(str(tmp_path))
    for name in "abcdefg":
        (tmp_path / f"{name}.txt").touch()
    with pytest.raises(TokenizerError, match=r"found a.txt, b.txt, c.txt, d.txt, e.txt\n"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "one.model").touch()
    (tmp_path / "two.model").touch()
    with pytest.raises(TokenizerError, match=r"several tokenizers: one\.model, two\.model"):
        load_tokenizer(str(tmp_path))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_tokenizer_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.model"
    path.write_bytes(data)
    with pytest.raises(TokenizerError):
        load_tokenizer(str(path))


@pytest.mark.parametrize(
    ("name", "vocab_size"), [("qwen3", 151669), ("mistral", 32000), ("t5", 32100), ("bert", 30522)]
)
def test_real_tokenizers_keep_their_ids(name: str, vocab_size: int, shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / name))
    assert tokenizer.vocab_size == vocab_size
    ours = tokenizer.reference()
    theirs = tokenizers.Tokenizer.from_file(str(shared / "tokenizers" / name / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    for text in ("The cat, déjà vu: 猫\n\n  x = 1234567 🙂\u200d", "a" * 3000, "<|endoftext|></s>[SEP]", ""):
        for special in (False, True):
            assert (
                ours.encode(text, add_special_tokens=special).ids
                == theirs.encode(text, add_special_tokens=special).ids
            )
    assert ours.get_vocab() == theirs.get_vocab()
