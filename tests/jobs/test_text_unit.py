"""One unit: which documents it keeps, which record stops a strict build, and no file left open."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.encoders.special_tokens import Boundary, BytesCounter
from packline.errors import OutOfSpace
from packline.jobs.plan import Unit
from packline.jobs.text_build import TextBuild
from packline.jobs.text_unit import EMPTY, KEEP, SPECIAL, TOO_LONG, TOO_SHORT, TextRunner, judge
from packline.ragged import Ragged, offsets_of
from packline.recipe import Recipe, RunOptions, Source
from packline.sources.batch import Batch, Reject, Texts
from packline.sources.files import InputFile
from packline.store.writer import ShardWriter

FILE = InputFile(0, 0, "a.jsonl", "a.jsonl", 1000, "", "jsonl", "")
TEXTS = st.lists(
    st.text(st.sampled_from("aé漢🙂<s>"), max_size=6) | st.sampled_from(["<s>", "a<s><s>"]), max_size=8
)


class BytesEncoder:
    """An encoder whose ids are bytes, with 0 at the end of each document."""

    tokenizer = SimpleNamespace(special_tokens={"<s>": 300})
    boundary, dtype = Boundary(0, "</s>"), np.dtype("<u2")

    def encode(self, texts: Texts, **_: Any) -> Ragged:
        data = [[*text.encode(), 0] for text in texts.to_list()]
        tokens = np.array([token for one in data for token in one], "<u2")
        return Ragged(tokens, offsets_of([len(one) for one in data]))


def runner_of(folder: Path, *, strict: bool = False, **source: Any) -> TextRunner:
    recipe = Recipe(sources=(Source(inputs=("a.jsonl",), **source),), tokenizer="t")
    encoder: Any = BytesEncoder()
    tokenizer: Any = SimpleNamespace(vocab_size=256)
    build = TextBuild(recipe, RunOptions(strict=strict), [FILE], tokenizer, encoder.boundary)
    runner = TextRunner(build, encoder, folder)
    runner.strict = strict
    return runner


@given(TEXTS, st.integers(0, 3), st.none() | st.integers(3, 5), st.booleans())
def test_a_document_is_kept_or_left_out_for_the_first_reason(
    texts: list[str], shortest: int, longest: int | None, reject: bool
) -> None:
    source = Source(inputs=("a",), min_chars=shortest, max_chars=longest)
    recipe = Recipe(sources=(source,), tokenizer="t", special_tokens="reject" if reject else "text")
    verdicts, specials = judge(Texts.of(texts), source, recipe, BytesCounter({"<s>": 300}))

    def verdict(text: str) -> int:
        if not text:
            return EMPTY
        if len(text) < shortest:
            return TOO_SHORT
        if longest is not None and len(text) > longest:
            return TOO_LONG
        return SPECIAL if reject and "<s>" in text else KEEP

    assert verdicts.tolist() == list(map(verdict, texts))
    assert specials.tolist() == [text.count("<s>") for text in texts]


def test_a_unit_that_fails_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [link for link in links if os.path.realpath(link).startswith(str(tmp_path))]

    def batches(*_: object) -> Iterator[Batch]:
        reject = Reject(0, 50, "malformed_json", "", b"x")
        yield Batch(0, Texts.of(["a"]), np.array([0]), rejects=[reject])
        assert opened(), "the files of the shard and of the rejects"
        monkeypatch.setattr(ShardWriter, "write", full)
        yield Batch(0, Texts.of(["b"]), np.array([60]))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(TextRunner, "_read", batches)
    with pytest.raises(OutOfSpace):
        next(runner_of(tmp_path).run(Unit("000001"), lambda *_: None))
    assert opened() == []
