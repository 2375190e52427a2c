"""Conversations by named templates, and what happens where a tokenizer's own template cannot be proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.chat import talks
from tests.chat.model_formats import QWEN3_PUBLISHED
from tests.chat.talks import contents
from tests.chat.templates import CHATML_TOKENS

import packline
from packline.errors import InputError, RecipeError, ResumeMismatch, StoreNotFound
from packline.jobs.events import Note

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
    # What the hint says, with the same folder, gives just what a new one does.
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
