"""Encodings and line ends of plain text: any of them gives the store of the same text in UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.reading import read_file, source_of

from packline.errors import RecipeError
from packline.recipe import NOT_CHARSETS, Recipe, Source, check_recipe
from packline.sources.fields import find_files

LATIN = st.text(st.characters(max_codepoint=0xFF, exclude_characters="\r\n\x1c\x1d\x1e\x85"), max_size=8)
LINES = st.lists(LATIN.filter(bool), min_size=1, max_size=5)
ENDS = ("\n", "\r\n", "\r")


def texts_of(folder: Path, data: bytes, **fields: object) -> list[str]:
    """Documents of a file with these bytes."""
    path = folder / "a.txt"
    path.write_bytes(data)
    recipe = check_recipe(Recipe(sources=(Source(inputs=(str(path),), **fields),), tokenizer="t"))  # type: ignore[arg-type]
    read = read_file(recipe.sources[0])
    assert not read.rejects
    return read.texts


@settings(max_examples=40)
@given(LINES, st.sampled_from(ENDS), st.sampled_from(["latin-1", "utf-16", "utf-32", "utf-8"]))
def test_a_whole_file_is_its_text_in_any_encoding(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, charset: str
) -> None:
    folder = tmp_path_factory.mktemp("text")
    text = end.join(lines)
    assert texts_of(folder, text.encode(charset), charset=charset) == [text.removeprefix("\ufeff")]
    unix = texts_of(folder, text.encode(charset), charset=charset, newlines="unix")
    assert unix == ["\n".join(lines)]


@settings(max_examples=40)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["latin-1", "cp1252", "utf-8"]))
def test_lines_and_parts_are_those_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, charset: str
) -> None:
    folder = tmp_path_factory.mktemp("text")
    lines = [line.encode(charset, "ignore").decode(charset) or "x" for line in lines]
    given_charset = {} if charset == "utf-8" else {"charset": charset}
    data = "".join(line + end for line in lines).encode(charset)
    for unix in ({}, {"newlines": "unix"}):
        assert texts_of(folder, data, documents="line", **given_charset, **unix) == lines
    parts = "--".join([f"{line}{end}".replace("--", "") for line in lines]).encode(charset)
    found = texts_of(folder, parts, documents="separator", separator="--", newlines="unix", **given_charset)
    if not any("-" in line for line in lines):
        assert found == [f"{line}\n" for line in lines]


@pytest.mark.parametrize(
    "fields",
    [
        {"charset": "latin-one"},
        {"charset": min(NOT_CHARSETS)},
        {"charset": "utf-16", "documents": "line"},
        {"charset": "shift_jis", "documents": "separator", "separator": "--"},
        {"charset": "latin-1", "documents": "separator", "separator": "é"},
        {"newlines": "dos"},
    ],
)
def test_an_encoding_that_cannot_be_read_or_cut_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(RecipeError):
        check_recipe(Recipe(sources=(Source(inputs=("a",), **fields),), tokenizer="t"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    [
        {"documents": "line"},
        {"documents": "separator", "separator": "."},
        {"charset": "cp1252"},
        {"newlines": "unix"},
    ],
)
def test_a_setting_of_plain_text_is_refused_for_records_alone(
    tmp_path: Path, setting: dict[str, str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "a.txt").write_text("a")
    records, both = source_of(tmp_path / "a.jsonl", **setting), source_of(tmp_path, **setting)
    with pytest.raises(RecipeError, match=f"{next(iter(setting))} = .* is for plain text"):
        find_files(Recipe(sources=(records, source_of(tmp_path / "a.txt")), tokenizer="none"))
    for sources in [(both,), (records, source_of(tmp_path / "a.txt", **setting))]:
        assert len(find_files(Recipe(sources=sources, tokenizer="none"))) == 2
