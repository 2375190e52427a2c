"""`val_documents`: just so many documents for validation, as a function of inputs and recipe alone."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import result, run
from tests.jobs.builds import Stop, build, digests, set_sizes_everywhere, stop_after
from tests.laws.reference import write_corpus

import packline
from packline.errors import RecipeError, ResumeMismatch
from packline.jobs.totals import share_below
from packline.recipe import Recipe, Source
from packline.store.verify import verify
from packline.vocabulary.texts import TrainingTexts


def val_texts(store: Any) -> list[str]:
    """Texts of the validation split, in order."""
    places = range(len(store.documents))
    return [store.text(place) for place in places if store.provenance(place).split == "val"]


@given(
    shares=st.lists(st.integers(0, 30).map(lambda number: number / 31), min_size=1, max_size=40),
    cuts=st.integers(1, 5),
    data=st.data(),
)
def test_so_many_are_below_the_share_unless_equal_ones_stand_on_both_sides(
    shares: list[float], cuts: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(shares)))
    parts = [sorted(shares[start::cuts])[: count + 1] for start in range(cuts)]
    share = share_below(parts, count)
    below = sum(one < share for one in shares)
    ordered = sorted(shares)
    if count == len(shares) or ordered[count] != ordered[count - 1]:
        assert below == count
    else:
        assert below < count and ordered[below] == ordered[count]


def test_the_documents_of_smallest_hash_are_chosen_for_any_workers(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 7
    texts = [f"text number {number} of many" for number in range(300)]
    files = [("jsonl.zst", texts[:90]), ("jsonl", texts[90:200]), ("parquet", texts[200:])]
    write_corpus(tmp_path / "in", [(kind, some, True) for kind, some in files])
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 2000, 700)
    found = []
    for workers in (0, 2):
        out = tmp_path / f"out-{workers}"
        store = build(out, tmp_path / "in", tokenizer_json, workers=workers, val_documents=count, seed=3)
        found.append(digests(out))
        expected = sorted(texts, key=lambda text: xxhash.xxh3_64_intdigest(text.encode(), 3))[:count]
        assert sorted(val_texts(store)) == sorted(expected)
    assert found[0] == found[1]
    assert verify(tmp_path / "out-0", deep=True).ok


def test_only_documents_that_the_build_keeps_are_counted(tmp_path: Path, tokenizer_json: Path) -> None:
    lines = [{"text": f"{number} " * (number % 9), "score": number % 5} for number in range(200)]
    (tmp_path / "in").mkdir()
    data = "".join(json.dumps(line) + "\n" for line in lines) + "not json\n"
    (tmp_path / "in/a.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    (tmp_path / "given.txt").write_text("always val")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"tokenizer = '{tokenizer_json}'\nval_documents = 11\n"
        "[[sources]]\nname = 'a'\ninputs = ['in']\nmin_chars = 6\n"
        "where = 'score > 1'\n"
        "[[sources]]\nname = 'b'\ninputs = ['given.txt']\nsplit = 'val'\n"
    )
    store = packline.build(recipe, out=tmp_path / "out", workers=0)
    assert len(val_texts(store)) == 11 + 1
    assert store.manifest.ledger.documents < 150


def test_equal_texts_stay_together_and_the_smaller_number_is_said(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    ordered = sorted((f"t{n}" for n in range(20)), key=lambda one: xxhash.xxh3_64_intdigest(one.encode(), 0))
    path = write_jsonl(tmp_path / "in/a.jsonl", [*ordered, ordered[2], ordered[2]])
    words: list[str | Path] = ["build", path, "--tokenizer", tokenizer_json, "--workers", "0", "--json"]
    done = run(*words, "--out", "four", "--val-documents", "4", cwd=tmp_path)
    assert result(done)["warnings"] == [
        "the split val has 2 documents instead of 4: equal texts are in one split, and "
        "the next text is there so often that it would be more"
    ]
    assert val_texts(packline.open(tmp_path / "four")) == ordered[:2]
    assert result(run(*words, "--out", "five", "--val-documents", "5", cwd=tmp_path))["warnings"] == []


def test_a_resumed_build_keeps_its_choice_and_refuses_inputs_with_another(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, write_jsonl: Callable[..., Path]
) -> None:
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 1000, 300)
    texts = [f"text number {number:04d}" for number in range(200)]
    path = write_jsonl(tmp_path / "in/a.jsonl", texts)
    build(tmp_path / "straight", tmp_path / "in", tokenizer_json, val_documents=10)
    for name, change in (("same", False), ("touched", False), ("changed", True)):
        out = tmp_path / name
        with pytest.raises(Stop):
            build(out, tmp_path / "in", tokenizer_json, val_documents=10, on_event=stop_after(1))
        if name != "same":
            os.utime(path, (1e9, 1e9 + len(name)))
        if change:  # documents of no committed unit: of the same length, and of other hashes
            data = path.read_bytes()
            half = len(data) // 2
            path.write_bytes(data[:half] + data[half:].replace(b"number", b"nombre"))
            with pytest.raises(ResumeMismatch, match="another state"):
                build(out, tmp_path / "in", tokenizer_json, val_documents=10)
        else:
            build(out, tmp_path / "in", tokenizer_json, val_documents=10)
            assert digests(out) == digests(tmp_path / "straight")


def test_more_than_there_are_and_a_training_are_refused(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    path = write_jsonl(tmp_path / "in/a.jsonl", ["one", "two", ""])
    with pytest.raises(RecipeError, match=r"val_documents is 3: expected at most .* found 2"):
        build(tmp_path / "out", path, tokenizer_json, val_documents=3)
    recipe = Recipe(sources=(Source(inputs=(str(path),)),), tokenizer="", val_documents=1)
    with pytest.raises(RecipeError, match="val_documents"):
        TrainingTexts(recipe)


def test_conversations_have_just_so_many_too(tmp_path: Path, tokenizer_json: Path) -> None:
    lines = [{"prompt": f"question {number}", "response": f"answer {number}"} for number in range(60)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} "
        "{% else %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    found = []
    for workers in (0, 2):
        out = tmp_path / f"out-{workers}"
        settings: dict[str, Any] = {"chat_template": template, "val_documents": 9, "workers": workers}
        packline.sft(tmp_path / "chat.jsonl", tokenizer_json, out=out, **settings)
        found.append(digests(out))
    assert found[0] == found[1]
    texts = np.array([f"question {number} answer {number}" for number in range(60)])
    shares = [xxhash.xxh3_64_intdigest(text.encode(), 0) for text in texts]
    expected = set(np.argsort(np.array(shares, np.uint64))[:9].tolist())
    store = packline.open(tmp_path / "out-0")
    origins = [store.provenance(place) for place in range(60)]
    positions = sorted(origin.position for origin in origins)
    assert {positions.index(one.position) for one in origins if one.split == "val"} == expected
    assert verify(tmp_path / "out-0").ok
