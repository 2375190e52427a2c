"""Named templates write what models publish; a tokenizer's own that cannot be proven is told the nearest."""

from __future__ import annotations

import json
import random
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat import talks
from tests.chat.model_formats import FORMATS, QWEN3_PUBLISHED, Unwritable
from tests.chat.shapes import TOOL, as_record, called, chats, outputs
from tests.chat.talks import CHATML, CHATML_TOKENS, LLAMA3, LLAMA3_TOKENS, contents, unmarked

import packline
from packline.chat.chat_template import ChatTemplate
from packline.chat.conversations import Conversation, Message, read_conversation
from packline.chat.named_templates import TEMPLATES, nearest_template, resolve_template
from packline.chat.pieces import check_pieces, trained_runs
from packline.errors import InputError, RecipeError, ResumeMismatch, StoreNotFound
from packline.jobs.events import Note
from packline.sources.batch import RecordProblem

ALL_TOKENS = sorted({token for one in TEMPLATES.values() for token in one.tokens})
PARTS = (
    *("hi", "\n", "  ", '"q"', "naïve 日本", "\\n", "{x}", "{{ y }}", "two\nlines", "\t", "it's"),
    *("<tool_call>", "</tool_response>", "<b>", *ALL_TOKENS),
)


def ready(name: str) -> ChatTemplate:
    named = TEMPLATES[name]
    return ChatTemplate(named.text, dict.fromkeys(named.tokens, (False, False)))


READY = {name: ready(name) for name in TEMPLATES}


class Talker:
    """Random conversations as data sets have them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def words(self, empty: bool = False) -> str:
        while True:
            text = "".join(self.random.choices(PARTS, k=self.random.randint(1, 5)))
            if empty or text.strip():
                return text

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    def record(self, tools: bool, thoughts: bool) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        if self.maybe(0.4):
            messages.append({"role": "system", "content": self.words()})
        for _ in range(self.random.randint(1, 3)):
            messages.append({"role": "user", "content": self.words()})
            while tools and self.maybe(0.4):
                messages += self.round()
            messages.append({"role": "assistant", "content": self.words()})
        if self.maybe(0.1):
            messages.append({"role": "user", "content": self.words()})
        for one in messages:
            if thoughts and one["role"] == "assistant" and self.maybe(0.6):
                self.think(one)
        return {"messages": messages, **({"tools": self.tools()} if tools and self.maybe(0.6) else {})}

    def round(self) -> list[dict[str, Any]]:
        """Calls and their outputs."""
        asks = called(self.random, 1 + self.maybe(0.3))
        asks["content"] = self.words() if self.maybe(0.2) else self.random.choice(["", None, "\n"])
        text = json.dumps({"a": 1, "text": self.words()})
        arguments: tuple[Any, ...] = (text, {}, {"b": [1, None]}, "no JSON")
        for call in asks["tool_calls"]:
            call["function"]["arguments"] = self.random.choice(arguments)
        if self.maybe(0.1):
            asks["tool_calls"] = [{**asks["tool_calls"][0], "id": "call_of_another_length"}]
        return [asks, *(one | {"content": self.words(empty=True)} for one in outputs(asks, self.random))]

    def think(self, message: dict[str, Any]) -> None:
        """Thoughts apart, or among the words, or so that nobody can tell."""
        if self.maybe(0.5):
            message["reasoning_content"] = self.words()
            return
        ways = (
            "<think>\n{}\n</think>\n\n{}",
            "{}</think>{}",
            "\n<think>{}</think>{}",
            "ahead <think>{}</think>{}",
            "<think>{}</think>{}</think>",
        )
        weights = (6, 1, 1, 1, 1)
        way = self.random.choices(ways, weights)[0]
        message["content"] = way.format(self.words(), message["content"] or "")

    def tools(self) -> list[dict[str, Any]]:
        function = TOOL["function"]
        return [
            {**TOOL, "function": {**function, "name": name, "description": self.words()}}
            for name in ("add", "sub")[: self.random.randint(1, 2)]
        ]


def expected(name: str, record: dict[str, Any]) -> tuple[str, list[str]] | None:
    """Text and trained stretches, from the raw messages; None where the format has no place for them."""
    try:
        stretches = list(FORMATS[name](record["messages"], record.get("tools") or []))
    except Unwritable:
        return None
    runs = ["".join(text for text, _ in group) for on, group in groupby(stretches, lambda one: one[1]) if on]
    return "".join(text for text, _ in stretches), runs


@given(st.integers(0, 2**32), st.sampled_from(list(TEMPLATES)), st.booleans(), st.booleans())
def test_text_and_mask_are_what_the_format_says_of_the_raw_messages(
    seed: int, name: str, tools: bool, thoughts: bool
) -> None:
    record = Talker(seed).record(tools, thoughts and name == "qwen3")
    talk = read_conversation(record)
    wanted = expected(name, record)
    try:
        pieces = READY[name].render(talk)
    except RecordProblem as error:
        assert error.reason == "template"
        assert wanted is None
        return
    assert wanted == ("".join(piece.text for piece in pieces), trained_runs(pieces))
    check_pieces(talk, pieces)
    # Control tokens are those that the format writes, never those that somebody says.
    assert {piece.text for piece in pieces if piece.control} <= set(TEMPLATES[name].tokens)


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_of_any_shape_are_written_as_the_format_says_or_refused(name: str) -> None:
    for shape, messages, tools in chats(60, seed=1):
        record = as_record(messages, tools)
        wanted = expected(name, record)
        try:
            pieces = READY[name].render(read_conversation(record))
        except RecordProblem as error:
            assert (error.reason, wanted) == ("template", None), shape
        else:
            assert wanted == ("".join(piece.text for piece in pieces), trained_runs(pieces)), shape


def test_the_random_conversations_reach_what_is_refused_and_what_is_not() -> None:
    for name in TEMPLATES:
        records = [Talker(seed).record(tools=True, thoughts=name == "qwen3") for seed in range(200)]
        written = sum(expected(name, record) is not None for record in records)
        assert written > 20
        assert (written == len(records)) == (name == "qwen2.5")


@given(st.integers(0, 2**32))
def test_qwen3_writes_each_turn_as_the_published_template_does_when_it_is_the_last(seed: int) -> None:
    talker = Talker(seed)
    record = talker.record(tools=talker.maybe(0.5), thoughts=False)
    record.pop("tools", None)
    for one in record["messages"]:
        for call in one.get("tool_calls") or []:
            call["function"]["arguments"] = {"a": 1}
        if one["role"] == "assistant":
            one["content"] = (one["content"] or "").strip()
            if talker.maybe(0.5):
                one["reasoning_content"] = talker.words()
    published = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(QWEN3_PUBLISHED)
    messages = record["messages"]
    turns = []
    for place, one in enumerate(messages):
        if one["role"] == "assistant":
            asked = published.render(messages=messages[:place], add_generation_prompt=True)
            said = published.render(messages=messages[: place + 1])
            assert said.startswith(asked)
            turns.append(said[len(asked) :])
    pieces = READY["qwen3"].render(read_conversation(record))
    assert trained_runs(pieces) == turns
    if len(turns) == 1 and messages[-1]["role"] == "assistant":
        text = "".join(piece.text for piece in pieces)
        assert text == published.render(messages=messages)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_question_is_asked_as_the_conversation_begins(name: str) -> None:
    asked = Conversation((Message("user", "What is one and one?"),))
    prompt = "".join(piece.text for piece in READY[name].prompt(asked))
    answered = Conversation((*asked.messages, Message("assistant", "Two.")))
    pieces = READY[name].render(answered)
    before = "".join(piece.text for piece in pieces[: [piece.trained for piece in pieces].index(True)])
    # As in TRL, Qwen2.5 learns the last line break of the prompt too.
    assert prompt == before + ("\n" if name == "qwen2.5" else "")


def test_a_name_needs_its_control_tokens_and_a_misspelt_one_is_told() -> None:
    assert resolve_template("qwen3", CHATML_TOKENS) == TEMPLATES["qwen3"].text
    with pytest.raises(RecipeError, match=r"llama3\.1 needs control tokens: the tokenizer has no <\|begin"):
        resolve_template("llama3.1", CHATML_TOKENS)
    with pytest.raises(RecipeError, match="no chat template 'qwen-3'") as caught:
        resolve_template("qwen-3", CHATML_TOKENS)
    assert caught.value.hint.startswith("did you mean 'qwen3'?")


def test_the_nearest_template_is_the_one_that_writes_the_same() -> None:
    cases = (
        (QWEN3_PUBLISHED, "qwen3", True),
        (unmarked(CHATML), "chatml", True),
        (unmarked(LLAMA3), "llama3", True),
        (
            "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}",
            "chatml",
            False,
        ),
        *((TEMPLATES[name].text, name, True) for name in ("qwen2.5", "llama3.1", "gemma", "mistral-nemo")),
    )
    for text, name, same in cases:
        variables = {"bos_token": "<|begin_of_text|>"} if "header" in text else {}
        template = ChatTemplate(text, dict.fromkeys(ALL_TOKENS, (False, False)), variables, masked=False)
        found = nearest_template(template, ALL_TOKENS)
        assert found is not None
        assert (found.name, found.same) == (name, same)
        assert f"--chat-template {name}" in found.hint()
    other = ChatTemplate("Q{{ messages[0].content }}", {}, masked=False)
    assert nearest_template(other, ALL_TOKENS) is None
    # Without their control tokens none is offered.
    assert nearest_template(ready("qwen3"), LLAMA3_TOKENS) is None


ONE: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 2+2? <|im_end|></s>"},
    {"role": "assistant", "content": "Four: 四."},
]
TWO = [*ONE, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "I counted twice."}]
SYSTEM = [{"role": "system", "content": "Count well."}, *ONE]
CALLED: list[dict[str, Any]] = [
    ONE[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": "4"},
    ONE[1],
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}]
THOUGHT = [ONE[0], {**ONE[1], "reasoning_content": "Two and two."}, *TWO[2:]]


@pytest.fixture
def qwen3(tokenizer_json: Path, tmp_path: Path) -> Path:
    """A tokenizer with a template as Qwen3's is published."""
    return talks.with_tokens(tokenizer_json, tmp_path / "qwen3", CHATML_TOKENS, QWEN3_PUBLISHED)


def test_what_cannot_be_proven_is_a_bad_record_and_the_job_goes_on(qwen3: Path, tmp_path: Path) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [ONE, TWO, SYSTEM, CALLED, TWO])
    notes: list[str] = []
    store = packline.sft(
        path,
        qwen3,
        out=tmp_path / "store",
        workers=0,
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    assert store.manifest.ledger.rejected == {"mask": 3}
    assert store.manifest.ledger.documents == 2
    assert store.manifest.ledger.imbalance() == []
    said = "<think>\n\n</think>\n\nFour: 四.<|im_end|>"
    assert talks.trained_texts(store) == [[said], [said]]
    assert store.verify().ok
    kept, _ = talks.rejects(store)
    assert all("is rendered otherwise" in one["detail"] for one in kept)
    first, last = notes
    assert "conversations of several turns may be refused" in first
    assert "--chat-template qwen3, which writes a question" in first
    assert "mask 3" in last


def test_where_nothing_can_be_proven_the_nearest_name_is_told_and_the_folder_is_free(
    qwen3: Path, tmp_path: Path
) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [TWO, CALLED])
    with pytest.raises(
        RecipeError, match=r"none of 2 records could be used: mask 2; the first: .*chat\.jsonl"
    ) as no:
        packline.sft(path, qwen3, out=tmp_path / "store", workers=0)
    assert (
        no.value.hint
        == "use --chat-template qwen3, which writes a question and its answer alike and marks the answer"
    )
    with pytest.raises(StoreNotFound):
        packline.open(tmp_path / "store")
    assert (tmp_path / "store" / "rejects" / "chat-000000.jsonl").is_file()
    # The command of the hint gives, in the same folder, what it gives in a new one.
    stores = [
        packline.sft(path, qwen3, out=tmp_path / name, chat_template="qwen3", workers=0)
        for name in ("store", "new")
    ]
    assert stores[0].manifest.ledger.documents == 2
    assert contents(stores[0].path) == contents(stores[1].path)


def test_a_crash_while_the_folder_is_freed_leaves_the_same_build(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [TWO, CALLED])
    unlink = Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        if self.name == "build.json":
            raise KeyboardInterrupt
        unlink(self, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        packline.sft(path, qwen3, out=tmp_path / "store", workers=0)
    # Another build is refused, since this one is not known to be given up; it runs again, and fails again.
    with pytest.raises(ResumeMismatch):
        packline.sft(path, qwen3, out=tmp_path / "store", chat_template="qwen3", workers=0)
    for _ in range(2):
        with pytest.raises(RecipeError, match="none of 2 records could be used: mask 2"):
            packline.sft(path, qwen3, out=tmp_path / "store", workers=0)
    store = packline.sft(path, qwen3, out=tmp_path / "store", chat_template="qwen3", workers=0)
    assert store.verify().ok


def test_where_records_are_no_conversations_the_template_is_not_blamed(qwen3: Path, tmp_path: Path) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [{"text": "no conversation"}] * 3)
    with pytest.raises(InputError, match="none of 3 records could be used: not_a_conversation 3") as no:
        packline.sft(path, qwen3, out=tmp_path / "store", workers=0)
    assert "--chat-template" not in no.value.hint
    assert packline.sft(talks.write(path, [ONE]), qwen3, out=tmp_path / "store", workers=0).verify().ok


@pytest.mark.parametrize("settings", [{"chat_template": "chatml"}, {"scheme": "nanochat"}])
def test_where_a_chosen_format_has_no_place_no_other_is_proposed(
    settings: dict[str, Any], tokenizer_json: Path, tmp_path: Path
) -> None:
    tokens = (*CHATML_TOKENS, *talks.NANOCHAT_TOKENS)
    folder = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", tokens)
    path = talks.write(tmp_path / "chat.jsonl", [THOUGHT])
    with pytest.raises(InputError, match=r"template 1; the first: .* no place for reasoning") as no:
        packline.sft(path, folder, out=tmp_path / "store", workers=0, **settings)
    assert "--chat-template" not in no.value.hint


def test_a_template_that_cannot_be_used_is_refused_before_any_work(
    tokenizer_json: Path, tmp_path: Path
) -> None:
    path = talks.write(tmp_path / "chat.jsonl", [ONE])
    for text, name in (("{{ messages[0].content }}", None), (QWEN3_PUBLISHED, "gemma")):
        folder = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", CHATML_TOKENS, text)
        with pytest.raises(RecipeError, match=r"the chat template|gemma needs control tokens"):
            packline.sft(path, folder, out=tmp_path / "store", chat_template=name, workers=0)
        assert not (tmp_path / "store").exists()
