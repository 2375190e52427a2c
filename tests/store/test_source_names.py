"""What a source is called: as its inputs are typed, and not by where they happen to lie."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packline.recipe import Recipe, Source
from packline.store.ledger import source_names

word = st.text("abcxyz_-0123456789", min_size=1, max_size=6)
words = st.lists(word, min_size=1, max_size=4)


def name_of(*inputs: str) -> str:
    (name,) = source_names(Recipe(sources=(Source(inputs=inputs),), tokenizer="t"))
    return name


@given(words, st.lists(word, min_size=2, max_size=5, unique=True), st.sampled_from(["", "/", "s3://", "./"]))
def test_files_that_a_shell_put_for_a_glob_are_called_as_the_glob_is(
    folders: list[str], files: list[str], start: str
) -> None:
    folder = start + "/".join(folders)
    listed = [f"{folder}/{file}.jsonl" for file in files]
    assert name_of(*listed) == name_of(f"{folder}/*.jsonl") == name_of(folder) == folders[-1]
    assert name_of(*listed) == name_of(*listed[::-1]), "whichever is named first"


@given(st.lists(word, min_size=2, max_size=5, unique=True), st.sampled_from(["", "/", "./"]))
def test_files_without_a_folder_in_common_are_called_after_none_of_them(files: list[str], start: str) -> None:
    assert name_of(*(f"{start}{file}.jsonl" for file in files)) == "source"


@given(words, words, words)
def test_files_of_several_folders_are_called_after_the_one_that_holds_them(
    above: list[str], one: list[str], other: list[str]
) -> None:
    top = "/".join(above)
    assert name_of(f"{top}/1/{'/'.join(one)}.txt", f"{top}/2/{'/'.join(other)}.txt") == above[-1]


@given(words)
def test_one_file_is_called_by_its_own_name(parts: list[str]) -> None:
    path = "/".join(parts)
    assert name_of(f"{path}.v2.jsonl.gz") == name_of(f"{path}.txt", f"{path}.txt") == parts[-1]
