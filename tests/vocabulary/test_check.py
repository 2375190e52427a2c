"""Checking a tokenizer: each fault that is put in is found, and a sound one has no problem."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import run_alone
from tests.conftest import python_sources

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError
from packline.recipe import Recipe, Source
from packline.vocabulary import evaluating
from packline.vocabulary.evaluating import CheckReport, inspect_tokenizer, read_model_config
from packline.vocabulary.trained_folder import train_folder

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
