"""Sources of conversations: presets and their counts; units cover each file as often as it repeats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks

import packline
from packline.chat.sources import (
    PARTS,
    UNIT_BYTES,
    ConversationSource,
    find_conversation_files,
    plan_conversations,
    preset_sources,
)
from packline.errors import InputError, RecipeError
from packline.sources.files import InputFile

WORDS = [f"{a}{b}{c}" for a in "bcdfgh" for b in ("a", "ee", "oo") for c in ("t", "nn", "sh", "dle")]
TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
QUESTION = {"question": "Sky?", "choices": ["red", "blue", "grey", "pink"], "answer": 1}
SUM = {
    "question": "48 and half of it?",
    "answer": "Half is 48/2=<<48/2=24>>24.\nSum <<48+24=72>>72.\n#### 72",
}


def make_data(folder: Path) -> Path:
    """A small data set a part."""
    for name in ("smoltalk", "mmlu", "gsm8k"):
        (folder / name).mkdir(parents=True)
    for split, count in (("train", 6), ("test", 2)):
        talks.write(folder / "smoltalk" / f"{split}.jsonl", [{"messages": TALK}] * count)
        talks.write(folder / "gsm8k" / f"{split}.jsonl", [SUM] * count)
    talks.write(folder / "mmlu" / "auxiliary_train.jsonl", [{"train": QUESTION}] * 3)
    rows = [f'"Sky {n}?",red,blue,grey,pink,B\n' for n in range(4)]
    (folder / "mmlu" / "test").mkdir()
    for subject in ("one", "two"):
        (folder / "mmlu" / "test" / f"{subject}_test.csv").write_text("".join(rows))
    talks.write(folder / "identity_conversations.jsonl", [TALK] * 5)
    (folder / "words.txt").write_text("\n".join(WORDS))
    return folder


def test_the_mixture_has_its_parts_as_often_as_it_says(tokenizer_json: Path, tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    sources = [
        ConversationSource(**{**_fields(one), "options": {**one.options, "count": 50}})
        if "spelling" in one.name
        else ConversationSource(**{**_fields(one), "limit": 5 if one.name == "mmlu-val" else one.limit})
        for one in preset_sources("nanochat-sft", data)
    ]
    held_out: dict[str, Any] = {
        "inputs": (str(data / "words.txt"),),
        "options": {"count": 50, "of": "held_out"},
    }
    sources.append(ConversationSource(**held_out, name="spelling-val", task="spelling", split="val"))
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", talks.NANOCHAT_TOKENS)
    store = packline.sft(sources, tokenizer, out=tmp_path / "store", scheme="nanochat", workers=0)
    counts = {name: ledger.documents for name, ledger in store.manifest.sources.items()}
    assert counts == {
        "smoltalk": 6,
        "mmlu": 3,
        "gsm8k": 12,
        "identity": 10,
        "spelling": 50,
        "spelling_bee": 50,
        "smoltalk-val": 2,
        "mmlu-val": 5,
        "gsm8k-val": 2,
        "spelling-val": 50,
    }
    assert store.manifest.ledger.rejected == {}
    assert store.provenance(0).label == "smoltalk"
    assert store.verify().ok
    packline.export(store, to="stacks", out=tmp_path / "stacks", workers=0)
    config = json.loads((tmp_path / "stacks" / "config.json").read_text())
    assert (config["train_conversations"], config["val_conversations"]) == (131, 59)
    assert config["train_source_counts"] == {name: n for name, n in counts.items() if "-val" not in name}
    texts = talks.whole_texts(store)
    asked: dict[str, set[str]] = {"spelling": set(), "spelling-val": set()}
    for number, text in enumerate(texts):
        if found := re.search(r"Spell the word: (\w+)<", text):
            asked[store.provenance(number).source].add(found[1])
    assert all(asked.values())
    assert not asked["spelling"] & asked["spelling-val"]


def _fields(source: ConversationSource) -> dict[str, Any]:
    return {name: getattr(source, name) for name in source.__struct_fields__}


def test_what_is_missing_is_named_and_may_be_left_out_or_come_from_the_hub(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="smoltalk, mmlu, gsm8k, identity, spelling"):
        preset_sources("nanochat-sft", tmp_path)
    with pytest.raises(InputError, match="no data for identity, spelling"):
        preset_sources("nanochat-sft", tmp_path, hub=True)
    gone = ["identity", "spelling", "spelling_bee"]
    left = preset_sources("nanochat-sft", tmp_path, hub=True, without=gone)
    assert [one.name for one in left] == [one.source.name for one in PARTS if one.source.label not in gone]
    assert all(one.inputs[0].startswith("hf://datasets/") for one in left)
    with pytest.raises(RecipeError, match="no part 'nothing'"):
        preset_sources("nanochat-sft", tmp_path, without=["nothing"])
    with pytest.raises(RecipeError, match="unknown preset"):
        preset_sources("other", tmp_path)


@given(st.lists(st.tuples(st.integers(0, 3 * UNIT_BYTES), st.booleans()), min_size=1, max_size=4), st.data())
def test_units_cover_every_byte_of_every_file_once_per_repetition(
    files: list[tuple[int, bool]], data: st.DataObject
) -> None:
    repeat, limit = data.draw(st.integers(1, 3)), data.draw(st.none() | st.just(7))
    sources = tuple(
        ConversationSource(inputs=(str(number),), repeat=repeat, limit=limit) for number in range(len(files))
    )
    inputs = [
        InputFile(number, number, str(number), str(number), size, "", "jsonl", "gzip" if packed else "")
        for number, (size, packed) in enumerate(files)
    ]
    units = plan_conversations(sources, inputs)
    for number, (size, packed) in enumerate(files):
        for turn in range(repeat):
            mine = [one for one in units if (one.file, one.turn) == (number, turn)]
            edges = [0, *(one.stop for one in mine)]
            assert edges[-1] == size and [one.start for one in mine] == edges[:-1]
            assert len(mine) == 1 or not (packed or limit)
            assert all(one.stop - one.start <= UNIT_BYTES for one in mine) or packed or limit
    assert len(units) == sum(one.turn < repeat for one in units)


def test_a_limit_is_shared_by_the_files_of_a_source_in_their_order(tmp_path: Path) -> None:
    for number, count in enumerate((3, 1, 4)):
        talks.write(tmp_path / f"{number}.jsonl", [TALK] * count)
    sources = (ConversationSource(inputs=(str(tmp_path),), limit=5, repeat=2),)
    units = plan_conversations(sources, find_conversation_files(sources))
    assert [(one.file, one.turn, one.most) for one in units] == [
        (0, 0, 5), (0, 1, 5), (1, 0, 2), (1, 1, 2), (2, 0, 1), (2, 1, 1)
    ]  # fmt: skip


def test_the_preset_is_the_mixture_of_the_project_that_it_comes_from(tmp_path: Path) -> None:
    sources = preset_sources("nanochat-sft", make_data(tmp_path / "data"))
    said = [(one.name, one.split, one.repeat, one.limit, one.options.get("count")) for one in sources]
    assert said == [
        ("smoltalk", "train", 1, None, None),
        ("mmlu", "train", 1, None, None),
        ("gsm8k", "train", 2, None, None),
        ("identity", "train", 2, None, None),
        ("spelling", "train", 1, None, 200_000),
        ("spelling_bee", "train", 1, None, 80_000),
        ("smoltalk-val", "val", 1, None, None),
        ("mmlu-val", "val", 1, 5200, None),
        ("gsm8k-val", "val", 1, 420, None),
    ]
