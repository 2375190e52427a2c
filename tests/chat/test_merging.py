"""Merged stores of conversations, and of conversations and other sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chat import talks
from tests.formats.stores import make_store as make_ids
from tests.jobs.builds import digests

import packline
from packline.chat.sources import ConversationSource
from packline.errors import StoreError
from packline.facade import Store
from packline.jobs.merging import run_merge

TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]


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
