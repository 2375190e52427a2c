"""Evaluating: the numbers of the table, computed a second way from a fixed text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.conftest import python_sources
from tests.viewing.parsed import text_of

from packline.cli.tokenizer import evaluation_markdown, evaluation_page
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import TokenizerError
from packline.viewing.html import render_file
from packline.vocabulary.evaluating import compare_tokenizers, pieces_of, unknown_ids
from packline.vocabulary.texts import LANGUAGES, PASSAGES
from packline.vocabulary.training import train_bpe


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tokenizer of code and a smaller one of prose."""
    root = tmp_path_factory.mktemp("two")
    code = [text for _, text in python_sources(120_000)]
    for name, texts, size in (("ours", code, 1500), ("base", [*PASSAGES.values()], 600)):
        (root / name).mkdir()
        (root / name / "tokenizer.json").write_text(train_bpe(texts, size), "utf-8")
    return root / "ours", root / "base"


def test_the_table_is_what_a_second_computation_gives(folders: tuple[Path, Path]) -> None:
    ours, base = folders
    texts = {"fixed": "def f(x):\n    return x + 1\n" * 40, "korean": "한국어 문장입니다. 둘째 문장.\n"}
    found = compare_tokenizers(load_tokenizer(str(ours)), [str(base)], texts)
    read = {
        name: tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        for name, path in (("o", ours), ("b", base))
    }
    (comparison,) = found.comparisons
    used: dict[str, set[int]] = {"o": set(), "b": set()}
    whole = {"o": 0, "b": 0}
    for row in comparison.rows:
        text = texts[row.text]
        ids = {name: tokenizer.encode(text).ids for name, tokenizer in read.items()}
        for name in used:
            used[name] |= set(ids[name])
            whole[name] += len(ids[name])
        size = len(text.encode())
        assert row.bytes == size
        assert (row.ours.tokens, row.base.tokens) == (len(ids["o"]), len(ids["b"]))
        assert row.ours.bytes_per_token == size / len(ids["o"])
        assert row.base.bytes_per_token == size / len(ids["b"])
        assert row.diff_percent == pytest.approx(100 - 100 * len(ids["o"]) / len(ids["b"]))
        assert row.ours.fertility == len(ids["o"]) / len(text.split())
        assert row.better == ("ours" if len(ids["o"]) < len(ids["b"]) else "base")
    assert {row.text: row.better for row in comparison.rows} == {"fixed": "ours", "korean": "base"}
    assert (comparison.whole.ours.tokens, comparison.whole.base.tokens) == (whole["o"], whole["b"])
    words = sum(len(text.split()) for text in texts.values())
    assert comparison.whole.ours.fertility == pytest.approx(whole["o"] / words)
    assert {name: one.tokens for name, one in found.languages.items()} == {
        name: len(read["o"].encode(text).ids) for name, text in LANGUAGES.items()
    }
    # One id of each is special, and is not counted as unused.
    assert found.unused == read["o"].get_vocab_size() - 1 - len(used["o"])
    assert comparison.base_unused == read["b"].get_vocab_size() - 1 - len(used["b"])


def test_an_absent_baseline_is_named_and_the_rest_is_measured(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    found = compare_tokenizers(
        load_tokenizer(str(folders[0])), [str(tmp_path / "none.json"), str(folders[1])]
    )
    assert [(one.base, "found nothing" in one.reason) for one in found.absent] == [
        (str(tmp_path / "none.json"), True)
    ]
    assert [one.base for one in found.comparisons] == [str(folders[1])]


def test_a_tokenizer_that_does_not_give_text_back_is_an_error(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = json.loads((folders[0] / "tokenizer.json").read_text("utf-8"))
    vocab = whole["model"]["vocab"]
    # Two tokens change places with their merges left alone: only words with them come back as others.
    vocab["def"], vocab["self"] = vocab["self"], vocab["def"]
    broken = tmp_path / "tokenizer.json"
    broken.write_text(json.dumps(whole), "utf-8")
    assert compare_tokenizers(load_tokenizer(str(broken))).round_trip == "exact"  # a bijection still decodes
    whole["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "harbour"}, "content": ""},
            whole["decoder"],
            {"type": "Replace", "pattern": {"String": "ferry"}, "content": "fairy"},
        ],
    }
    broken.write_text(json.dumps(whole), "utf-8")
    with pytest.raises(TokenizerError, match="does not give the text 'news' back"):
        compare_tokenizers(load_tokenizer(str(broken)), texts={"news": "ferry"})


def word_level(folder: Path, words: list[str]) -> Path:
    """A tokenizer of some words, whose `[UNK]` stands for all others."""
    vocab = {word: number for number, word in enumerate(["[UNK]", *words])}
    whole = {
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
        "pre_tokenizer": {"type": "Whitespace"},
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    return folder


def test_few_tokens_for_what_is_not_known_are_not_better(folders: tuple[Path, Path], tmp_path: Path) -> None:
    words = word_level(tmp_path / "words", ["the", "cat"])
    texts = {"known": "the cat the cat", "unknown": "the dog sees two cats"}
    ours = load_tokenizer(str(folders[0]))
    (beside,) = compare_tokenizers(ours, [str(words)], texts).comparisons
    assert {row.text: row.base.unknown for row in beside.rows} == {"known": 0, "unknown": 4}
    assert {row.text: row.better for row in beside.rows} == {"known": "base", "unknown": "neither"}
    assert (beside.whole.base.unknown, beside.whole.better) == (4, "neither")
    found = compare_tokenizers(load_tokenizer(str(words)), [str(folders[0])], texts)
    assert [row.better for row in found.comparisons[0].rows] == ["ours", "neither"]
    for shown in (evaluation_markdown(found), text_of(evaluation_page(found), 160)):
        assert "has no tokens for parts of these texts" in shown
        (row,) = (
            line.replace("|", " ").split()
            for line in shown.splitlines()
            if "neither" in line and "unknown" in line
        )
        assert row[-2:] == ["-", "neither"]
        assert "unknown 4" in shown.replace("\n", " ")
        assert "lossy" in shown and "checked on every text" in shown  # the one, and the other


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"type": "Unigram", "vocab": [["a", 0.0], ["<unk>", 0.0]], "unk_id": 1}, {1}),
        ({"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}, set()),
        ({"type": "BPE", "vocab": {"a": 0, "?": 4}, "merges": [], "unk_token": "?"}, {4}),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": None}, set()),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<s>"}, {3}),
    ],
)
def test_what_stands_for_the_unknown(model: dict[str, Any], expected: set[int]) -> None:
    text = json.dumps({"model": model})
    special = {"<s>": 3}
    tokenizer = Tokenizer(name="t", kind="huggingface", json=text, vocab_size=5, special_tokens=special)
    assert unknown_ids(tokenizer) == expected


def test_every_surface_says_the_same_numbers(folders: tuple[Path, Path]) -> None:
    found = compare_tokenizers(load_tokenizer(str(folders[0])), [str(folders[1]), "no|such<tag>.json/x/y"])
    markdown, terminal = evaluation_markdown(found), text_of(evaluation_page(found), 160)
    html = render_file(evaluation_page(found))
    row = found.comparisons[0].rows[0]
    cells = [row.text, f"{row.bytes:,}", f"{row.base.tokens:,}", f"{row.base.bytes_per_token:.2f}"]
    cells += [
        f"{row.ours.tokens:,}",
        f"{row.ours.bytes_per_token:.2f}",
        f"{row.diff_percent:+.1f}%",
        row.better,
    ]
    assert "| " + " | ".join(cells) + " |" in markdown
    assert (
        "| Text Type | Bytes | base Tokens | Ratio | Ours Tokens | Ratio | Relative Diff % | Better |"
        in markdown
    )
    assert any(line.split() == cells for line in terminal.splitlines())
    assert all(cell in html for cell in cells)
    assert "<tag>" not in html
    assert "<tag>" not in markdown


def test_long_texts_are_cut_and_nothing_is_lost() -> None:
    text = "".join(f"line {number}\n" for number in range(30_000)) + "x" * 200_000
    pieces = pieces_of(text)
    assert "".join(pieces) == text
    assert len(pieces) > 5
