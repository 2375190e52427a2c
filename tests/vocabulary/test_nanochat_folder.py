"""A tokenizer in nanochat's files: read by pickle with tiktoken, and by torch; ids and sizes are the same."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import result, run
from tests.conftest import python_sources

from packline.chat.pieces import NANOCHAT_TOKENS
from packline.encoders.tiktoken import Encoding, tokenizer_of_ranks
from packline.encoders.token_bytes import ranks_of
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import TokenizerError
from packline.recipe import Recipe, Source
from packline.vocabulary.trained_folder import PICKLE, SPECIALS, TENSOR, export_to_nanochat, train_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary with nanochat's pattern and special tokens."""
    root = tmp_path_factory.mktemp("trained")
    (root / "a.txt").write_text("\n".join(text for _, text in python_sources(100_000)), "utf-8")
    recipe = Recipe(sources=(Source(inputs=(str(root / "a.txt"),)),), tokenizer="")
    special, place = SPECIALS["nanochat"]
    train_folder(recipe, 900, root / "tok", pattern="nanochat", special_tokens=special, place=place)
    return root / "tok"


@pytest.fixture(scope="module")
def encoding(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tiktoken.Encoding:
    """Encoding that nanochat unpickles."""
    out = tmp_path_factory.mktemp("nanochat") / "tokenizer"
    export_to_nanochat(str(trained), out)
    with open(out / PICKLE, "rb") as file:
        loaded = pickle.load(file)
    assert isinstance(loaded, tiktoken.Encoding)
    return loaded


@pytest.fixture(scope="module")
def reference(trained: Path) -> Any:
    return load_tokenizer(str(trained)).reference()


def edited(folder: Path, out: Path, change: Any) -> Path:
    contents = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    change(contents)
    out.mkdir()
    (out / "tokenizer.json").write_text(json.dumps(contents), "utf-8")
    return out


@settings(max_examples=80, deadline=None)
@given(st.text() | st.text("def self\n\r\t 0123456789.,'é日", max_size=60))
def test_ids_are_those_of_the_reference(encoding: tiktoken.Encoding, reference: Any, text: str) -> None:
    if not any(token in text for token in encoding.special_tokens_set):
        assert encoding.encode_ordinary(text) == reference.encode(text, add_special_tokens=False).ids


def test_the_pickle_is_what_pickle_would_write(encoding: tiktoken.Encoding, trained: Path) -> None:
    """The same values in the same order, by way of the project's own pickling."""
    found = ranks_of(load_tokenizer(str(trained)))
    own = tiktoken.Encoding(
        "rustbpe", pat_str=found.pattern, mergeable_ranks=found.ranks, special_tokens=found.special_tokens
    )
    again = pickle.loads(pickle.dumps(own))
    assert encoding.__getstate__() == own.__getstate__() == again.__getstate__()
    assert encoding.n_vocab == 900 and encoding.encode_single_token("<|bos|>") == 891


def test_token_bytes_as_torch_reads_them(encoding: tiktoken.Encoding, trained: Path, tmp_path: Path) -> None:
    done = run("tokenizer", "export", str(trained), "--to", "nanochat", "--out", tmp_path / "out", "--json")
    values = result(done)
    assert values["vocab_size"] == 900 and values["missing_tokens"] == [] and values["checked_texts"] > 10
    with open(tmp_path / "out" / TENSOR, "rb") as file:
        sizes = torch.load(file, map_location="cpu")
    special = {encoding.encode_single_token(token) for token in encoding.special_tokens_set}
    expected = [
        0 if number in special else len(encoding.decode_single_token_bytes(number)) for number in range(900)
    ]
    assert sizes.dtype == torch.int32 and sizes.tolist() == expected
    assert np.array_equal(np.load(trained / "token_bytes.npy"), sizes.numpy())


def repeat_first(steps: list[Any]) -> None:
    steps.insert(0, steps[0])


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("it normalizes text", lambda json: json.update(normalizer={"type": "NFC"})),
        ("is not special", lambda json: json["added_tokens"][0].update(special=False)),
        ("not a byte-level BPE", lambda json: json["model"].update(type="WordPiece")),
        ("not one regular expression", lambda json: json.update(pre_tokenizer={"type": "Whitespace"})),
        (
            "one regular expression and a byte level",
            lambda json: repeat_first(json["pre_tokenizer"]["pretokenizers"]),
        ),
        ("does not isolate", lambda json: json["pre_tokenizer"]["pretokenizers"][0].update(invert=True)),
        ("do not rise in the order", lambda json: json["model"]["merges"].reverse()),
        ("order of its merges", lambda json: json["model"]["merges"].append(json["model"]["merges"][0])),
        ("ranks alone do not make the token", lambda json: json["model"]["merges"].pop()),
        ("single bytes are no tokens", lambda json: json["model"]["vocab"].pop("Ġ")),
    ],
)
def test_other_tokenizers_are_refused(trained: Path, tmp_path: Path, why: str, change: Any) -> None:
    folder = edited(trained, tmp_path / "tok", change)
    with pytest.raises(TokenizerError, match=why):
        export_to_nanochat(str(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def with_expression(folder: Path, out: Path, expression: str) -> Path:
    def change(json: dict[str, Any]) -> None:
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression

    return edited(folder, out, change)


def test_expressions_that_the_engines_read_differently_are_refused(trained: Path, tmp_path: Path) -> None:
    """A possessive quantifier, a flag of another meaning, and one that tiktoken cannot parse."""
    for number, (expression, why) in enumerate(
        [
            (r"\p{N}{1,3}+|\P{N}+", "read differently"),
            (r"(?m:.)+", "gives other ids"),
            (r"a++|\g<0>b|.", "refuses"),
        ]
    ):
        folder = with_expression(trained, tmp_path / str(number), expression)
        with pytest.raises(TokenizerError, match=why):
            export_to_nanochat(str(folder), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_bos_is_required_and_tokens_of_chats_are_named(trained: Path, tmp_path: Path) -> None:
    def rename(json: dict[str, Any]) -> None:
        json["added_tokens"][0]["content"] = "<|start|>"
        json["model"]["vocab"]["<|start|>"] = json["model"]["vocab"].pop("<|bos|>")

    with pytest.raises(TokenizerError, match=r"no special token <\|bos\|>"):
        export_to_nanochat(str(edited(trained, tmp_path / "a", rename)), tmp_path / "out")

    def drop(json: dict[str, Any]) -> None:
        for token in json["added_tokens"][1:]:
            json["model"]["vocab"].pop(token["content"], None)
        del json["added_tokens"][1:]

    report = export_to_nanochat(str(edited(trained, tmp_path / "b", drop)), tmp_path / "out")
    assert report.missing_tokens == NANOCHAT_TOKENS[1:]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abc", min_size=2, max_size=5), unique=True, max_size=12))
def test_ranks_survive_the_way_to_a_tokenizer_and_back(words: list[str]) -> None:
    """Also those that no merges make, and those that ranks make in another way."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {word.encode(): 256 + number for number, word in enumerate(words)}
    special = {"<|bos|>": len(ranks)}
    data = json.dumps(tokenizer_of_ranks(ranks, Encoding(None, len(ranks), special)))
    tokenizer = Tokenizer(
        name="made", kind="tiktoken", json=data, vocab_size=len(ranks) + 1, special_tokens=special
    )
    assert ranks_of(tokenizer).ranks == ranks
