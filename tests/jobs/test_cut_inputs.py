"""The plan: every byte of every file in one unit, of bounded size, and little changed by a small change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs import cut_inputs
from packline.jobs.cut_inputs import COMPRESSION_GUESS, LARGEST_SLICE, LARGEST_UNIT, plan_units, target_bytes
from packline.jobs.plan import Unit
from packline.recipe import Recipe, Source
from packline.sources.files import InputFile

MB = 1 << 20
SIZES = st.integers(0, 2 * MB) | st.integers(0, 40 * MB) | st.integers(0, 9000 * MB)
SOURCES = (
    Source(inputs=("a",), name="a"),
    Source(inputs=("b",), name="b", documents="line"),
    Source(inputs=("c",), name="c/d", documents="separator", separator="--"),
)
RECIPE = Recipe(sources=SOURCES, tokenizer="t")
SLUGS = ("a", "b", "c_d.3ac0190d")

OneFile = tuple[str, str, str, int]
"""Name, format, compression and size of a file."""


@st.composite
def one_source(draw: st.DrawFn, most: int = 8) -> list[OneFile]:
    """Files of a source, in order."""
    files: list[OneFile] = []
    for number in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(["jsonl", "text", "json"]))
        packed = draw(st.sampled_from(["", "zstd"])) if kind != "json" else ""
        files.append((f"{number}.{kind}", kind, packed, draw(SIZES)))
    return files


def inputs_of(sources: Sequence[Sequence[OneFile]]) -> list[InputFile]:
    """Inputs of a recipe with these sources."""
    files: list[InputFile] = []
    for source, own in enumerate(sources):
        for name, kind, packed, size in own:
            given: Any = (len(files), source, name, f"{source}/{name}", size, "", kind, packed)
            files.append(InputFile(*given))
    return files


def inputs() -> st.SearchStrategy[list[InputFile]]:
    """Files of three sources, in the order of the sources."""
    return st.tuples(one_source(), one_source(), one_source()).map(inputs_of)


def text_of(file: InputFile) -> int:
    return file.size * (COMPRESSION_GUESS if file.compression else 1)


def is_whole(file: InputFile) -> bool:
    """True if the file is one document or one array, which no reader can cut."""
    return file.format == "json" or (file.format == "text" and SOURCES[file.source].documents == "file")


def files_of(unit: Unit) -> list[int]:
    return [span.file for span in unit.spans]


def pieces(work: Iterable[Unit]) -> Iterator[tuple[int, int, int]]:
    for unit in work:
        yield from ((span.file, span.start, span.stop) for span in unit.spans)


def described(work: Sequence[Unit], files: list[InputFile], source: int = 0) -> list[Any]:
    """Work of one source without the numbers of sources and files in the recipe."""
    found: list[Any] = []
    for unit in work:
        if unit.source != source:
            continue
        spans = [(files[span.file].name, span.start, span.stop) for span in unit.spans]
        found.append((unit.name, spans, unit.slice_bytes, unit.text_bytes))
    return found


def befores(files: list[InputFile]) -> list[int]:
    """Text of the source before each file."""
    found, held = [], [0, 0, 0]
    for file in files:
        found.append(held[file.source])
        held[file.source] += text_of(file)
    return found


@given(inputs())
def test_every_byte_is_in_one_unit_and_in_order(files: list[InputFile]) -> None:
    work = plan_units(RECIPE, files)
    for source, slug in enumerate(SLUGS):
        names = [unit.name for unit in work if unit.source == source]
        assert names == [f"{slug}-{number:06d}" for number in range(len(names))]
    found = list(pieces(work))
    assert list(dict.fromkeys(file for file, _, _ in found)) == list(range(len(files)))
    for file in files:
        spans = [(start, stop) for number, start, stop in found if number == file.index]
        assert spans[0][0] == 0 and spans[-1][1] == file.size
        assert all(one[1] == other[0] for one, other in pairwise(spans))
    for unit in work:
        assert {files[file].source for file in files_of(unit)} == {unit.source}
    assert sum(unit.text_bytes for unit in work) == sum(map(text_of, files))


@given(inputs())
def test_units_are_about_as_large_as_the_text_before_them_asks(files: list[InputFile]) -> None:
    before = befores(files)
    for unit in plan_units(RECIPE, files):
        first = files[files_of(unit)[0]]
        if unit.slice_bytes:
            assert text_of(first) > target_bytes(before[first.index])
            assert first.compression or SOURCES[first.source].documents == "separator"
            end = before[first.index] + text_of(first)
            assert unit.slice_bytes == min(target_bytes(end), LARGEST_SLICE)
        elif len(unit.spans) == 1 and not is_whole(first):
            most = target_bytes(before[first.index] + unit.spans[0].start)
            assert 2 * unit.text_bytes < 3 * most <= 3 * LARGEST_UNIT
        elif len(unit.spans) > 1:
            assert unit.text_bytes <= target_bytes(before[first.index])
            for number in files_of(unit):
                assert 4 * text_of(files[number]) < target_bytes(before[number])


@given(inputs(), st.integers(1, 5))
def test_small_files_share_a_unit_up_to_a_number_of_files(files: list[InputFile], most_files: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_inputs, "FILES_A_UNIT", most_files)
        work = plan_units(RECIPE, files)
    assert all(len(files_of(unit)) <= most_files for unit in work)


@given(inputs(), one_source(), st.sampled_from([0, 1, 2]))
def test_another_source_is_not_looked_at(files: list[InputFile], other: list[OneFile], source: int) -> None:
    kept = described(plan_units(RECIPE, files), files, source)
    alone = [
        msgspec.structs.replace(file, index=number)
        for number, file in enumerate(file for file in files if file.source == source)
    ]
    assert described(plan_units(RECIPE, alone), alone, source) == kept
    sources = [SOURCES[1], SOURCES[source], SOURCES[0]]
    sources[0], sources[2] = (msgspec.structs.replace(one, name=f"x{n}") for n, one in enumerate(SOURCES[:2]))
    own = [(file.name, file.format, file.compression, file.size) for file in alone]
    changed = inputs_of([other, own, other])
    work = plan_units(Recipe(sources=tuple(sources), tokenizer="t", seed=3), changed)
    assert described(work, changed, 1) == kept


@given(one_source(), one_source(), st.integers(0, 9000 * MB), st.integers(0, 500 * MB))
def test_files_at_the_end_and_a_longer_file_change_the_last_unit_at_most(
    own: list[OneFile], more: list[OneFile], size: int, longer: int
) -> None:
    last = ("last.jsonl", "jsonl", "", size)
    grown, others = ("last.jsonl", "jsonl", "", size + longer), [("z" + one[0], *one[1:]) for one in more]
    for after in ([*own, grown], [*own, last, *others]):
        contents = ([*own, last], after)
        kept, found = (described(plan_units(RECIPE, f), f) for f in (inputs_of([one]) for one in contents))
        assert found[: len(kept) - 1] == kept[:-1]


def groups_of(sizes: dict[str, int]) -> set[tuple[str, ...]]:
    files = inputs_of([[(name, "jsonl", "", size) for name, size in sorted(sizes.items())]])
    return {tuple(files[number].name for number in files_of(unit)) for unit in plan_units(RECIPE, files)}


@pytest.mark.parametrize("change", ["insert", "remove", "resize"])
def test_a_change_of_one_small_file_among_2000_leaves_nine_groups_of_ten(change: str) -> None:
    import numpy as np

    mean, random = 100_000, np.random.default_rng(7)
    sizes = {f"{number:05d}": int(size) for number, size in enumerate(random.exponential(mean, 2000))}
    kept, shares = groups_of(sizes), []
    for number in random.integers(0, 2000, 6).tolist():
        changed = dict(sizes)
        if change == "insert":
            changed[f"{number:05d}-new"] = mean
        elif change == "remove":
            del changed[f"{number:05d}"]
        else:
            changed[f"{number:05d}"] = int(random.exponential(mean)) + 1
        shares.append(len(kept & groups_of(changed)) / len(kept))
    assert np.mean(shares) >= 0.9, (np.mean(shares), len(kept))
