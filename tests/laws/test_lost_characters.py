"""A tokenizer that does not keep every character has right ids: they stop no build and damage no store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.encoders.fuzzed_files import published
from tests.jobs.builds import build
from tests.store.stores import edit_tokens, reseal

from packline.encoders.parity import Reference
from packline.facade import Store
from packline.jobs.events import Note
from packline.store.verify import verify

BAR = "CPU load ▁▂▃ over a day"
TEXTS = [BAR, *["plain words, in 1 or 2 sentences"] * 9, BAR, "漢字 and ▁", "the last one"]


@pytest.fixture
def llama2(tmp_path: Path) -> Path:
    """Decodes `▁` to a space, as SentencePiece does; all else comes back."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(published()["llama2"]))
    reference = Reference(path.read_text())
    assert reference.round_trip == "exact" and not reference.keeps()
    return path


@pytest.mark.parametrize(("engine", "workers"), [("auto", 1), ("gigatoken", 0), ("tokenizers", 0)])
def test_a_document_that_does_not_come_back_stops_no_build(
    engine: str, workers: int, llama2: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    source = write_jsonl(tmp_path / "in/a.jsonl", TEXTS)
    told: list[Any] = []
    store = build(
        tmp_path / "out", source, llama2, eod="</s>", engine=engine, workers=workers, on_event=told.append
    )
    notes = [event.text for event in told if isinstance(event, Note)]
    assert [note for note in notes if note.startswith("1 of the documents that were decoded did not give")]
    reference = Reference(llama2.read_text())
    assert [tokens.tolist()[:-1] for tokens in store.documents] == [reference.encode(text) for text in TEXTS]
    assert store.manifest.tokenizer.round_trip == "exact"


@pytest.fixture
def lossy(llama2: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> tuple[Store, Path]:
    source = write_jsonl(tmp_path / "in/a.jsonl", TEXTS)
    return build(tmp_path / "out", source, llama2, eod="</s>"), source


def test_verify_calls_the_store_right_and_counts_such_documents(lossy: tuple[Store, Path]) -> None:
    report = verify(lossy[0].path, deep=True)
    assert report.ok and report.deep is not None
    (note,) = report.deep.notes
    assert note.startswith("3 documents do not decode exactly to their text, with ids equal to the ref")


def test_without_the_text_verify_does_not_say_what_it_cannot_know(lossy: tuple[Store, Path]) -> None:
    store, source = lossy
    source.unlink()
    report = verify(store.path, deep=True)
    assert report.ok and report.deep is not None
    assert any(note.startswith("3 documents decode to other text") for note in report.deep.notes)


def test_a_wrong_id_is_still_found(lossy: tuple[Store, Path]) -> None:
    def change(tokens: Any) -> None:
        tokens[1] = tokens[1] % 500 + 300

    edit_tokens(lossy[0].path, "train-a-000000", change)
    reseal(lossy[0].path)
    assert verify(lossy[0].path).ok
    assert "differs from the reference" in "\n".join(map(str, verify(lossy[0].path, deep=True).problems))
