"""The plan: every byte of every file in one unit, units of bounded size, as a function of the files alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs import units
from packline.jobs.units import COMPRESSION_GUESS, LARGEST_SLICE, LARGEST_UNIT, SMALLEST_UNIT, Stream, Unit
from packline.recipe import Recipe, Source
from packline.sources.files import InputFile

MB = 1 << 20
SIZES = st.integers(0, 3 * MB) | st.integers(0, 40 * MB) | st.integers(0, 9000 * MB)
SOURCES = (
    Source(inputs=("a",)),
    Source(inputs=("b",), documents="line"),
    Source(inputs=("c",), documents="separator", separator="--"),
)
RECIPE = Recipe(sources=SOURCES, tokenizer="t")


@st.composite
def inputs(draw: st.DrawFn) -> list[InputFile]:
    """Files of three sources, in the order of the sources."""
    files: list[InputFile] = []
    for source in range(3):
        for _ in range(draw(st.integers(0, 8))):
            kind = draw(st.sampled_from(["jsonl", "text", "json"]))
            packed = draw(st.sampled_from(["", "zstd"])) if kind != "json" else ""
            name = f"{len(files)}.{kind}"
            files.append(InputFile(len(files), source, name, name, draw(SIZES), "", kind, packed))  # type: ignore[arg-type]
    return files


def text_of(file: InputFile) -> int:
    return file.size * (COMPRESSION_GUESS if file.compression else 1)


def limit(files: list[InputFile]) -> int:
    """Text of a unit at most, by the module's own description: a 32nd of all, from 4 to 256 MB."""
    return min(max(sum(map(text_of, files)) // 32, SMALLEST_UNIT), LARGEST_UNIT)


def is_whole(file: InputFile) -> bool:
    """True if the file is one document or one array, which no reader can cut."""
    return file.format == "json" or (file.format == "text" and SOURCES[file.source].documents == "file")


def pieces(work: list[Unit | Stream], files: list[InputFile]) -> Iterator[tuple[int, int, int]]:
    for unit in work:
        if isinstance(unit, Stream):
            yield unit.file, 0, files[unit.file].size
        else:
            yield from ((span.file, span.start, span.stop) for span in unit.spans)


@given(inputs())
def test_every_byte_is_in_one_unit_and_in_order(files: list[InputFile]) -> None:
    work = units.plan_units(RECIPE, files)
    assert [unit.name for unit in work] == [f"{number:06d}" for number in range(len(work))]
    found = list(pieces(work, files))
    assert list(dict.fromkeys(file for file, _, _ in found)) == list(range(len(files)))
    for file in files:
        spans = [(start, stop) for number, start, stop in found if number == file.index]
        assert spans[0][0] == 0 and spans[-1][1] == file.size
        assert all(one[1] == other[0] for one, other in pairwise(spans))
    for unit in work:
        held = [unit.file] if isinstance(unit, Stream) else [span.file for span in unit.spans]
        assert {files[file].source for file in held} == {unit.source}
    assert sum(unit.text_bytes for unit in work) == sum(map(text_of, files))


@given(inputs())
def test_no_unit_is_larger_than_the_limit_unless_its_file_cannot_be_cut(files: list[InputFile]) -> None:
    most = limit(files)
    for unit in units.plan_units(RECIPE, files):
        if isinstance(unit, Stream):
            file = files[unit.file]
            assert text_of(file) > most and unit.slice_bytes == min(most, LARGEST_SLICE)
            assert file.compression or SOURCES[file.source].documents == "separator"
        elif unit.text_bytes > most:
            (span,) = unit.spans
            assert is_whole(files[span.file])


@given(inputs(), st.integers(1, 5))
def test_small_files_share_a_unit_as_long_as_they_fit(files: list[InputFile], most_files: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "FILES_A_UNIT", most_files)
        work = units.plan_units(RECIPE, files)
    most = limit(files)
    small = [
        isinstance(unit, Unit) and all(text_of(files[span.file]) <= most for span in unit.spans)
        for unit in work
    ]
    for place, (unit, other) in enumerate(pairwise(work)):
        assert isinstance(unit, Stream) or len(unit.spans) <= most_files
        if small[place] and small[place + 1] and unit.source == other.source:
            assert isinstance(unit, Unit) and isinstance(other, Unit)
            following = text_of(files[other.spans[0].file])
            assert unit.text_bytes + following > most or len(unit.spans) == most_files
