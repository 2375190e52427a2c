"""Tasks and the mixture by name: what each data set becomes, counts, held-out words, the export to stacks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks
from tokenizers import Tokenizer

import packline
from packline.chat.conversations import read_conversation
from packline.chat.pieces import check_pieces, render_nanochat
from packline.chat.sources import PARTS, ConversationSource, preset_sources
from packline.chat.tasks import read_gsm8k, read_mmlu, read_words, spelling, spelling_bee
from packline.errors import InputError, RecipeError
from packline.sources.batch import RecordProblem

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
    store = packline.build_chat(sources, tokenizer, out=tmp_path / "store", scheme="nanochat", workers=0)
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
    assert store.verify().ok
    packline.export(store, to_format="stacks", out=tmp_path / "stacks", workers=0)
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
    assert [one.name for one in left] == [one.name for one in PARTS if one.name.split("-")[0] not in gone]
    assert all(one.inputs[0].startswith("hf://datasets/") for one in left)
    with pytest.raises(RecipeError, match="no part 'nothing'"):
        preset_sources("nanochat-sft", tmp_path, without=["nothing"])
    with pytest.raises(RecipeError, match="unknown preset"):
        preset_sources("other", tmp_path)


def test_sums_become_calls_of_python_and_their_outputs_are_not_trained_on() -> None:
    pieces = render_nanochat(read_conversation(read_gsm8k(SUM, {})))
    text = "".join(piece.text for piece in pieces)
    assert text == (
        "<|user_start|>48 and half of it?<|user_end|><|assistant_start|>Half is 48/2="
        "<|python_start|>48/2<|python_end|><|output_start|>24<|output_end|>24.\nSum "
        "<|python_start|>48+24<|python_end|><|output_start|>72<|output_end|>72.\n#### 72<|assistant_end|>"
    )
    untrained = "".join(piece.text for piece in pieces if not piece.trained)
    assert untrained == (
        "<|user_start|>48 and half of it?<|user_end|><|assistant_start|>"
        "<|output_start|>24<|output_end|><|output_start|>72<|output_end|>"
    )


def test_every_sum_that_is_published_renders(shared: Path) -> None:
    path = shared / "evals" / "gsm8k" / "test.jsonl"
    if not path.is_file():
        pytest.skip("no GSM8K beside the project")
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        talk = read_conversation(read_gsm8k(record, {}))
        pieces = render_nanochat(talk)
        check_pieces(talk, pieces)
        marks = re.findall(r"<<(.*?)=([^=<>]*)>>", record["answer"])
        outputs = [part.text for part in talk.messages[1].parts if part.kind == "python_output"]
        assert outputs == [result for _, result in marks]
        assert talk.messages[1].content == re.sub(r"<<.*?>>", "", record["answer"])


@pytest.mark.parametrize(
    "record",
    [QUESTION, {"train": QUESTION}, ["Sky?", "red", "blue", "grey", "pink", "B"], ["Sky?", *"abcd", "1"]],
)
def test_a_question_is_answered_by_its_letter_alone(record: Any) -> None:
    talk = read_conversation(read_mmlu(record, {}))
    assert talk.messages[1].content == "B"
    assert talk.messages[0].content.startswith("Multiple Choice question: Sky?\n- ")


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


def test_what_is_cut_is_what_the_original_rule_cuts_and_what_just_fits_is_not_among_it(
    shared: Path, tokenizer_json: Path, tmp_path: Path
) -> None:
    # The rule: one front token, the pieces, and all behind `most` tokens is lost. Here the end of the
    # document stands behind, so that a document may have one token more.
    path = shared / "evals" / "gsm8k" / "test.jsonl"
    if not path.is_file():
        pytest.skip("no GSM8K beside the project")
    folder = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", talks.NANOCHAT_TOKENS)
    tokenizer = Tokenizer.from_file(str(tokenizer_json))

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    lengths = []
    for line in path.read_text("utf-8").splitlines()[:200]:
        record = json.loads(line)
        length = 1 + (1 + count(record["question"]) + 1) + 1
        for piece in re.split(r"(<<[^>]*>>)", record["answer"]):
            code, _, output = piece[2:-2].rpartition("=") if piece.startswith("<<") else (piece, "", "")
            length += 4 + count(code) + count(output) if piece.startswith("<<") else count(piece)
        lengths.append(length + 1)
    most = sorted(lengths)[180]  # the length of one at least, which just fits
    source = ConversationSource(inputs=(str(path),), task="gsm8k", limit=200)
    settings: dict[str, Any] = {"scheme": "nanochat", "overflow": "truncate", "workers": 0}
    store = packline.build_chat([source], folder, out=tmp_path / "store", max_tokens=most + 1, **settings)
    mask = store.manifest.ledger.mask
    assert mask
    assert store.manifest.ledger.documents == 200
    assert mask.truncated == sum(length > most for length in lengths)
    assert mask.truncated_tokens == sum(max(length - most, 0) for length in lengths)
    assert [len(one) for one in store.documents] == [min(length, most) + 1 for length in lengths]
