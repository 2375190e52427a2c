"""The checksum of settings: everything that decides a unit's bytes, and nothing of other sources."""

from __future__ import annotations

from typing import Any

import msgspec

from packline.encoders.special_tokens import Boundary
from packline.jobs.folder import settings_checksum, unit_settings
from packline.recipe import Recipe, Source
from packline.sources.files import InputFile

BOUNDARY = Boundary(eod="e", eod_id=0, bos=None, bos_id=None)
FILE = InputFile(0, 0, "a", "in/a", 9, "1", "jsonl", "", "text", "id")
RECIPE = Recipe(
    sources=(Source(inputs=("in",), name="a"), Source(inputs=("b",), name="b")),
    tokenizer="t",
    val_fraction=0.1,
)


def key(
    recipe: Recipe = RECIPE,
    file: InputFile = FILE,
    tokenizer: str = "t",
    boundary: Boundary = BOUNDARY,
    slice_bytes: int = 0,
) -> str:
    return settings_checksum(unit_settings(recipe, 0, tokenizer, boundary), [file], slice_bytes)


def changed(number: int, **fields: Any) -> Recipe:
    sources = list(RECIPE.sources)
    sources[number] = msgspec.structs.replace(sources[number], **fields)
    return msgspec.structs.replace(RECIPE, sources=tuple(sources))


def test_settings_of_the_source_count_and_those_of_others_do_not() -> None:
    for fields in (
        {"min_chars": 3}, {"max_chars": 3}, {"label": "x"}, {"where": "n == 1"}, {"template": "{{ a }}"},
        {"split": "val"}, {"documents": "line"}, {"separator": "x"},
    ):  # fmt: skip
        assert key(changed(0, **fields)) != key() == key(changed(1, **fields)), fields
    # Others act through the files alone.
    for name, value in {
        "inputs": ("x",),
        "name": "x",
        "rare_fields": ("x",),
        "text": "x",
        "format": "text",
    }.items():
        assert key(changed(0, **{name: value})) == key(), name


def test_what_is_read_of_a_file_counts_and_which_file_it_is_does_not() -> None:
    def of_file(name: str, value: Any) -> str:
        return key(file=msgspec.structs.replace(FILE, **{name: value}))

    read = {"format": "text", "compression": "gzip", "text": "x", "id": None, "columns": ("a",)}
    which = {"index": 3, "name": "x", "path": "x", "size": 1, "modified": "2"}
    assert [name for name, value in (read | which).items() if of_file(name, value) != key()] == list(read)


def test_settings_of_the_build() -> None:
    def recipe(**fields: Any) -> Recipe:
        return msgspec.structs.replace(RECIPE, **fields)

    others = [
        key(recipe(seed=1)), key(recipe(val_fraction=0.2)), key(recipe(test_fraction=0.2)),
        key(recipe(special_tokens="parse")), key(recipe(max_document_bytes=1)), key(tokenizer="u"),
        key(boundary=msgspec.structs.replace(BOUNDARY, eod_id=1)), key(slice_bytes=4),
    ]  # fmt: skip
    assert len({key(), *others}) == len(others) + 1
    for fields in ({"limit_documents": 3}, {"limit_tokens": 3}, {"tokenizer": "u"}, {"eod": "e"}):
        assert key(recipe(**fields)) == key()
    given = changed(0, split="val")
    assert key(given) == key(msgspec.structs.replace(given, seed=1, val_fraction=0.5))
