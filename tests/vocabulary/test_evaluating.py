"""Evaluating: each fault that is put in is found; the table's numbers, computed a second way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.cli.command import run_alone
from tests.conftest import python_sources
from tests.viewing.parsed import text_of

from packline.cli.tokenizer import evaluation_markdown, evaluation_page
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import InputError, TokenizerError
from packline.recipe import Recipe, Source
from packline.viewing.html import render_file
from packline.vocabulary import evaluating
from packline.vocabulary.evaluating import (
    CheckReport,
    compare_tokenizers,
    inspect_tokenizer,
    pieces_of,
    read_model_config,
    unknown_ids,
)
from packline.vocabulary.texts import LANGUAGES, PASSAGES
from packline.vocabulary.trained_folder import train_folder
from packline.vocabulary.training import train_bpe

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    (root / "a.txt").write_text("\n".join(text for _, text in python_sources(60_000)), "utf-8")
    recipe = Recipe(sources=(Source(inputs=(str(root / "a.txt"),)),), tokenizer="")
    train_folder(recipe, 700, root / "tok", special_tokens=("<|endoftext|>", "<|pad|>"))
    return root / "tok"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check without the engines, which take most of its time."""
    monkeypatch.setattr(evaluating, "_engine_findings", lambda reference: [])
    monkeypatch.setattr(evaluating, "_round_trip", lambda reference: [])


def edited(sound: Path, out: Path, file: str, edit: Edit) -> Path:
    shutil.copytree(sound, out)
    contents = json.loads((out / file).read_text("utf-8"))
    edit(contents)
    (out / file).write_text(json.dumps(contents), "utf-8")
    return out


def problems(report: CheckReport) -> list[tuple[str, str]]:
    return [(finding.about, finding.text) for finding in report.findings if finding.level == "problem"]


def test_a_sound_tokenizer_has_no_problem(sound: Path) -> None:
    report = inspect_tokenizer(str(sound))
    assert report.ok
    assert problems(report) == []
    about = {finding.about: finding.level for finding in report.findings if finding.level != "note"}
    assert about["round trip"] == about["control tokens"] == about["eos_token"] == "ok"
    assert about["engine tokenizers"] == about["engine gigatoken"] == about["engine fastokens"] == "ok"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("declared", "about", "said"),
    [
        (
            {"added_tokens_decoder": {"0": {"content": "self", "special": True}}},
            "special tokens",
            "gives 'self' id 0, but it has id ID",
        ),
        (
            {"added_tokens_decoder": {"7": {"content": "<|new|>"}}},
            "special tokens",
            "gives '<|new|>' id 7, but it is not in tokenizer.json",
        ),
        (
            {"additional_special_tokens": ["<|pad|>", {"content": "<|new|>"}]},
            "special tokens",
            "'<|new|>' is declared, but is no token (additional_special_tokens",
        ),
        (
            {"extra_special_tokens": {"image_token": "self"}},
            "special tokens",
            "'self' (id ID) is not marked special: text can become it (extra_special_tokens",
        ),
        (
            {"added_tokens_decoder": {"ID": {"content": "self", "special": True}}},
            "special tokens",
            "calls 'self' special, tokenizer.json does not: text can become it",
        ),
        ({"unk_token": "<unk>"}, "unk_token", "'<unk>' is declared, but is no token"),
        ({"eos_token": "</s>"}, "eos_token", "'</s>' is declared, but is no token"),
        ({"eos_token": "self"}, "eos_token", "text can become it"),
    ],
)
def test_declarations_that_contradict(
    sound: Path, tmp_path: Path, declared: dict[str, Any], about: str, said: str
) -> None:
    number = str(load_tokenizer(str(sound)).reference().token_to_id("self"))
    declared = json.loads(json.dumps(declared).replace("ID", number))
    folder = edited(sound, tmp_path / "t", "tokenizer_config.json", lambda c: c.update(declared))
    ((found, text),) = problems(inspect_tokenizer(str(folder)))
    assert found == about
    assert said.replace("ID", number) in text


def test_a_special_token_that_merges_make_too(sound: Path, tmp_path: Path) -> None:
    def edit(contents: dict[str, Any]) -> None:
        number = contents["model"]["vocab"]["se"]
        contents["added_tokens"].append(contents["added_tokens"][0] | {"id": number, "content": "se"})

    found = problems(inspect_tokenizer(str(edited(sound, tmp_path / "t", "tokenizer.json", edit))))
    assert [about for about, _ in found] == ["control tokens"]


def test_what_the_hub_declares_is_looked_at(sound: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "hub" / "models--some--repository"
    (place / "snapshots").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    edited(sound, place / "snapshots" / commit, "tokenizer_config.json", lambda c: c.update(pad_token="[P]"))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = run_alone("tokenizer", "check", "some/repository", cwd=tmp_path, **offline)
    assert done.returncode == 1, done.stderr
    assert "'[P]' is declared, but is no token" in done.stdout


def notes(report: CheckReport, about: str) -> list[str]:
    return [one.text for one in report.findings if (one.about, one.level) == (about, "note")]


@pytest.mark.usefixtures("quick")
def test_padding_that_is_the_end_is_said(sound: Path, tmp_path: Path) -> None:
    both = {"eos_token": "<|endoftext|>", "pad_token": {"content": "<|endoftext|>"}}
    folder = edited(sound, tmp_path / "t", "tokenizer_config.json", lambda c: c.update(both))
    report = inspect_tokenizer(str(folder))
    assert report.ok
    (said,) = notes(report, "pad_token")
    assert "same token as eos" in said
    assert notes(inspect_tokenizer(str(sound)), "pad_token") == ["none is declared"]
    config = {"vocab_size": 700, "eos_token_id": 0, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert notes(inspect_tokenizer(str(sound), str(tmp_path)), "pad_token_id") == [said]


@pytest.mark.usefixtures("quick")
def test_two_tokens_with_one_id(sound: Path, tmp_path: Path) -> None:
    def edit(contents: dict[str, Any]) -> None:
        contents["added_tokens"][1]["id"] = 0
        contents["model"]["vocab"]["<|pad|>"] = 0

    found = problems(inspect_tokenizer(str(edited(sound, tmp_path / "t", "tokenizer.json", edit))))
    assert any("both have id 0" in text for _, text in found)


def test_a_decoder_that_loses_something(sound: Path, tmp_path: Path) -> None:
    def edit(contents: dict[str, Any]) -> None:
        wrong = {"type": "Replace", "pattern": {"String": "0xdeadbeef"}, "content": "0x0"}
        contents["decoder"] = {"type": "Sequence", "decoders": [contents["decoder"], {"type": "Fuse"}, wrong]}

    found = problems(inspect_tokenizer(str(edited(sound, tmp_path / "t", "tokenizer.json", edit))))
    assert [about for about, _ in found] == ["round trip"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"vocab_size": 699}, "the embedding has 699 rows, but the highest id is 699"),
        ({"vocab_size": 700, "eos_token_id": 1}, "config.json has 1, the tokenizer <|endoftext|> is 0"),
        ({"vocab_size": 700, "pad_token_id": 700}, "has 700, which is no id"),
        ({"vocab_size": 700, "pad_token_id": 300}, "has 300, which is no special token"),
        ({"eos_token_id": 0}, "no vocab_size"),
        ({"vocab_size": "700"}, "has vocab_size '700': expected a number"),
        ({"vocab_size": 700, "eos_token_id": "0"}, "has '0': expected an id"),
        ({"vocab_size": 700, "pad_token_id": [1, True]}, "has [1, True]: expected an id"),
        ({"vocab_size": 700, "pad_token_id": -1}, "has -1, which is no id"),
    ],
)
def test_a_model_that_does_not_fit(sound: Path, tmp_path: Path, config: dict[str, Any], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = inspect_tokenizer(str(sound), str(tmp_path))
    assert not report.ok
    ((_, text),) = problems(report)
    assert said in text


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 700, "eos_token_id": [0, 1], "pad_token_id": 1},
        {"vocab_size": 768, "eos_token_id": 0},
        {"text_config": {"vocab_size": 700}, "eos_token_id": 0},
    ],
)
def test_a_model_that_fits(sound: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = inspect_tokenizer(str(sound), str(tmp_path / "config.json"))
    assert problems(report) == []
    notes = [
        finding.text for finding in report.findings if finding.about == "model" and finding.level == "note"
    ]
    assert notes == (
        ["68 rows of the embedding beyond the highest id 699 are never used"]
        if 768 in config.values()
        else []
    )


@pytest.mark.parametrize("text", ["[1]", "{", None])
def test_no_config_is_an_error_with_its_place(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_model_config(str(tmp_path))


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "mistral", "t5", "bert"])
def test_published_tokenizers_have_no_problem(shared: Path, name: str) -> None:
    assert problems(inspect_tokenizer(str(shared / "tokenizers" / name))) == []


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
