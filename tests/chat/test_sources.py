"""Sources of conversations: mixtures, units, tasks that make them from data sets, and merged stores."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks
from tests.formats.stores import make_store as make_ids
from tests.jobs.builds import digests

import packline
from packline.chat.conversations import read_conversation
from packline.chat.sources import (
    PARTS,
    UNIT_BYTES,
    ConversationSource,
    find_conversation_files,
    plan_conversations,
    preset_sources,
)
from packline.chat.tasks import read_gsm8k, read_mmlu, read_words, spelling, spelling_bee
from packline.errors import InputError, RecipeError, StoreError
from packline.facade import Store
from packline.jobs.merging import run_merge
from packline.sources.batch import RecordProblem
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


@pytest.mark.parametrize(
    "record",
    [QUESTION, {"train": QUESTION}, ["Sky?", "red", "blue", "grey", "pink", "B"], ["Sky?", *"abcd", "1"]],
)
def test_a_question_is_answered_by_its_letter_alone(record: Any) -> None:
    talk = read_conversation(read_mmlu(record, {}))
    assert talk.messages[1].content == "B"
    assert talk.messages[0].content.startswith("Multiple Choice question: Sky?\n- ")


def test_what_follows_the_last_equals_sign_of_a_mark_is_its_output() -> None:
    talk = read_conversation(read_gsm8k({"question": "?", "answer": "<<1+1=2=2.0>>2, <<7>>"}, {}))
    parts = [(part.kind, part.text) for part in talk.messages[1].parts]
    assert parts == [
        ("python", "1+1=2"),
        ("python_output", "2.0"),
        ("text", "2, "),
        ("python", "7"),
        ("python_output", ""),
    ]


@pytest.mark.parametrize("record", [{}, {"question": "x"}, ["a", "b"], 7, {**QUESTION, "answer": 9}])
def test_records_of_another_layout_are_malformed(record: Any) -> None:
    for read in (read_mmlu, read_gsm8k):
        with pytest.raises(RecordProblem, match="not_a_conversation"):
            read(record, {})


@given(st.integers(0, 2**62), st.integers(1, 40))
def test_spellings_are_right_whatever_the_seed(seed: int, count: int) -> None:
    options = {"count": count, "seed": seed, "held_out": 0.3}
    talks_made = list(spelling(WORDS, options))
    assert talks_made == list(spelling(WORDS, options))
    for one in talks_made:
        word, _, letters = one["messages"][1]["content"].partition(": ")
        assert one["messages"][0]["content"] == f"Spell the word: {word}"
        assert letters.replace(",", "") == word in WORDS
        assert letters.count(",") == len(word) - 1
    held_out = list(spelling(WORDS, {**options, "of": "held_out"}))
    words = [{one["messages"][0]["content"] for one in made} for made in (talks_made, held_out)]
    assert not words[0] & words[1]


@given(st.integers(0, 2**62))
def test_letters_are_counted_right_by_hand_and_by_python(seed: int) -> None:
    for one in spelling_bee(WORDS, {"count": 10, "seed": seed}):
        text, code, output, end = (part["text"] for part in one["messages"][1]["content"])
        found = re.fullmatch(r"'(\w+)'\.count\('(\w)'\)", code)
        assert found
        word, letter = found.groups()
        count = sum(one == letter for one in word)
        assert output == str(count) and end.endswith(f"#### {count}") and f"That is {count}." in text
        lines = re.findall(r"^(\d+):(\w)( yes, that makes (\d+))?$", text, re.MULTILINE)
        assert [(int(place), said) for place, said, _, _ in lines] == list(enumerate(word, 1))
        assert [int(number) for _, said, _, number in lines if number] == list(range(1, count + 1))
        asked = one["messages"][0]["content"]
        assert word in asked and letter in asked


def test_words_are_those_of_letters_and_there_have_to_be_some() -> None:
    assert read_words(b"apple\nPear\nna\xc3\xafve\napple\nfig 3\n", "here") == ["apple", "fig"]
    with pytest.raises(InputError, match="here has no words"):
        read_words(b"1 2 3", "here")
    for options in ({"count": 0}, {"count": 1, "of": "all"}, {"counts": 1}):
        with pytest.raises(RecipeError, match="options of spelling"):
            next(spelling(WORDS, options))


@given(st.integers(0, 2**62), st.integers(1, 20), st.integers(1, 20))
def test_a_conversation_does_not_depend_on_how_many_are_made(seed: int, few: int, more: int) -> None:
    for task in (spelling, spelling_bee):
        short, long = (list(task(WORDS, {"count": n, "seed": seed})) for n in (few, few + more))
        assert long[:few] == short and len(long) == few + more


def test_merged_conversations_are_those_built_together(tokenizer_json: Path, tmp_path: Path) -> None:
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", talks.NANOCHAT_TOKENS)
    sources = []
    for number, name in enumerate(("one", "two", "three")):
        path = talks.write(tmp_path / f"{name}.jsonl", [TALK] * (number + 2) + [{"messages": []}])
        sources.append(ConversationSource(inputs=(str(path),), name=name, repeat=number + 1))

    def build(out: str, chosen: list[ConversationSource]) -> Store:
        settings = {"scheme": "nanochat", "workers": 0}
        return packline.sft(chosen, tokenizer, out=tmp_path / out, **settings)  # type: ignore[arg-type]

    build("whole", sources)
    build("a", sources[:1])
    build("b", sources[1:])
    run_merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert digests(tmp_path / "merged") == digests(tmp_path / "whole")
    assert len(Store(tmp_path / "merged").manifest.imported) == 1
    assert Store(tmp_path / "merged").verify(deep=True).ok


def test_conversations_and_text_are_merged_and_checked_by_their_own_rules(
    tokenizer_json: Path, tmp_path: Path
) -> None:
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", talks.NANOCHAT_TOKENS)
    path = talks.write(tmp_path / "chat.jsonl", [TALK] * 3)
    chat = packline.sft([str(path)], tokenizer, out=tmp_path / "chat", scheme="nanochat", workers=0)
    eod = chat.manifest.tokenizer.eod
    words = tmp_path / "words.txt"
    words.write_text("some words of plain text")
    bos = chat.manifest.tokenizer.bos
    packline.build(words, tokenizer, out=tmp_path / "words", eod=eod, bos=bos, workers=0)
    run_merge([chat.path, tmp_path / "words"], tmp_path / "both")
    merged = Store(tmp_path / "both")
    assert merged.has_loss and merged.manifest.imported_sources == {"chat"}
    report = merged.verify(deep=True)
    assert report.ok, report.problems
    assert report.deep is not None and "sources that were imported (chat)" in report.deep.notes[0]


def test_a_store_of_other_ids_is_refused(tokenizer_json: Path, tmp_path: Path) -> None:
    one = make_ids(tmp_path / "one", [[5, 6]], vocab_size=1000, eod_id=0)
    other = make_ids(tmp_path / "two", [[5, 6]], vocab_size=1000, eod_id=3)
    with pytest.raises(StoreError, match="eod_id of the tokenizer: 0 and 3"):
        run_merge([one.path, other.path], tmp_path / "out")
