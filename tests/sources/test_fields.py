"""A field that is misspelt is refused before any work; one that is merely rare is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sources.reading import write_records

import packline
from packline.chat.sources import ConversationSource, find_conversation_files
from packline.errors import InputError, RecipeError
from packline.recipe import Recipe, Source
from packline.sources.fields import find_files
from packline.sources.files import InputFile
from packline.vocabulary.texts import TrainingTexts

RECORDS = [
    {"body": f"text {n}", "meta": {"score": n, "lang": "en"}, "key": n, "title": None} for n in range(9)
]


def found(path: Path, **fields: Any) -> list[InputFile]:
    source = Source(inputs=(str(path),), name="web", **fields)
    return find_files(Recipe(sources=(source,), tokenizer="none"))


MISSPELT: list[tuple[dict[str, Any], str, str]] = [
    ({"text": "boddy"}, "boddy", "body"),
    ({"text": "body", "id": "keey"}, "keey", "key"),
    ({"text": "body", "where": "meta.scor > 1"}, "meta.scor", "meta.score"),
    ({"text": "body", "where": "meta.langs != 'de'"}, "meta.langs", "meta.lang"),
    ({"template": "{{ boddy }}"}, "boddy", "body"),
    ({"template": "{{ body }} {{ titel }}"}, "titel", "title"),
]


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
@pytest.mark.parametrize(("fields", "wrong", "meant"), MISSPELT, ids=lambda one: one if one is str else None)
def test_a_misspelt_field_is_refused_and_the_meant_one_named(
    tmp_path: Path, kind: str, fields: dict[str, Any], wrong: str, meant: str
) -> None:
    path = write_records(tmp_path / f"a.{kind}", RECORDS)
    with pytest.raises((InputError, RecipeError)) as caught:
        found(path, **fields)
    assert wrong in caught.value.message and "body" in caught.value.message
    assert f"did you mean {meant!r}" in caught.value.hint if meant else caught.value.hint
    if kind != "parquet":
        assert len(found(path, **fields, rare_fields=(wrong,))) == 1


RIGHT: list[dict[str, Any]] = [
    {"text": "body"},
    {"text": "meta.lang"},
    {"text": "body", "id": "key", "where": "meta.score > 1"},
    {"text": "body", "where": "title is not None"},
    {"text": "body", "where": "deleted is None"},
    {"template": "{{ body }}{% if subtitle is defined %}{{ subtitle }}{% endif %}"},
    {"template": "{{ body }} {{ subtitle | default('') }}"},
    {"template": "{{ record['boddy'] }}"},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("fields", RIGHT, ids=str)
def test_what_is_there_or_need_not_be_is_not_refused(
    tmp_path: Path, kind: str, fields: dict[str, Any]
) -> None:
    assert len(found(write_records(tmp_path / f"a.{kind}", RECORDS), **fields)) == 1


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("place", [0, 11, 19])
def test_a_field_that_one_file_or_one_record_has_is_there(tmp_path: Path, kind: str, place: int) -> None:
    # Twenty files are not all looked at, but those that are reach from the first to near the last.
    for number in range(20):
        records = [dict(one) for one in RECORDS]
        if abs(number - place) <= 4:
            records[0]["flag"], records[-1]["flag"] = None, True
        write_records(tmp_path / f"in/{number:02d}.{kind}", records)
    assert len(found(tmp_path / "in", text="body", where="flag is not None")) == 20


def test_files_of_which_nothing_can_be_read_refuse_nothing(tmp_path: Path) -> None:
    for data in (b"", b"bad\n" * 9, b"[1]\n"):
        (tmp_path / "a.jsonl").write_bytes(data)
        assert found(tmp_path / "a.jsonl", text="body", where="n > 1")


def test_all_who_read_sources_refuse_it_before_any_work(tmp_path: Path, tokenizer_json: Path) -> None:
    path = write_records(tmp_path / "a.jsonl", RECORDS)
    recipe = Recipe(sources=(Source(inputs=(str(path),), text="boddy"),), tokenizer=str(tokenizer_json))
    with pytest.raises(RecipeError, match="'boddy'"):
        packline.build(path, tokenizer_json, text="boddy", out=tmp_path / "out")
    with pytest.raises(RecipeError, match="'boddy'"):
        packline.estimate(path, tokenizer_json, text="boddy")
    with pytest.raises(RecipeError, match="'boddy'"):
        TrainingTexts(recipe)
    chat = write_records(tmp_path / "chat.jsonl", [{"talks": [{"role": "user", "content": "a"}]}])
    with pytest.raises(RecipeError, match="'talk'") as caught:
        find_conversation_files((ConversationSource(inputs=(str(chat),), field="talk"),))
    assert "did you mean 'talks'" in caught.value.hint
    assert not (tmp_path / "out").exists()
