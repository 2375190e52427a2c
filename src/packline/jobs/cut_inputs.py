"""Units: the inputs cut into pieces of work, source by source, as a function of the source's files alone.

    a unit    spans of one or many files: a range of a large file, or many small files together
              one file that cannot be cut; its reader commits it slice by slice

A unit has 4 to 256 MiB of text, more the more text of its source is before it. Units are also what a later
build reuses, so a change leaves the units around it as they are: only what is before a file decides its size
of units; a file is cut at multiples of that size; and groups of small files end before the file with the
smallest hashed name in a window, so after a few groups they end as before.

Where there are fewer files that cannot be cut than workers, several lanes read the same one. Names and bytes
of slices are the same for any number of lanes.

    x.jsonl.zst   lane 0 of 2   [0]   [2]   [4]      each lane decompresses all, and encodes its slices
                  lane 1 of 2      [1]   [3]   [5]   (`sources.reader`)
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from packline.fingerprint import hash_bytes
from packline.jobs.plan import Unit
from packline.recipe import Recipe, Source
from packline.sources.files import InputFile
from packline.sources.listing import map_files
from packline.sources.reader import Span
from packline.storage.places import is_remote
from packline.store.ledger import source_names
from packline.store.naming import UnitName, source_slugs

UNIT_BYTES = ((128 << 20, 4 << 20), (2 << 30, 16 << 20), (16 << 30, 64 << 20))
"""Text of a source up to which its units have a size, and that size; each size divides the next."""
LARGEST_UNIT = 256 << 20
LARGEST_SLICE = 64 << 20
"""Maximum bytes of a slice: a file has few of them, and several workers may take turns."""
COMPRESSION_GUESS = 4
FILES_A_UNIT = 4096


def target_bytes(before: int) -> int:
    """Size of a unit with this number of bytes of text of its source before it."""
    for below, size in UNIT_BYTES:
        if before < below:
            return size
    return LARGEST_UNIT


def expected_text(file: InputFile) -> int:
    packed = bool(file.compression) or file.format == "parquet"
    return file.size * COMPRESSION_GUESS if packed else file.size


def is_one_document(file: InputFile, source: Source) -> bool:
    return file.format == "text" and source.documents == "file"


Work = tuple[tuple[Span, ...], int, int]
"""Spans, bytes of text, and the size of slices, of a unit."""


def plan_units(recipe: Recipe, files: Sequence[InputFile]) -> list[Unit]:
    """Plan all work, in the order of the documents: sources as in the recipe, files as listed."""
    has_footers = any(file.format == "parquet" for file in files)
    sizes = map_files(_size_of, files) if has_footers else map(_size_of, files)
    sized = zip(files, sizes, strict=True)
    slugs, units = source_slugs(source_names(recipe)), list[Unit]()
    for source, own in itertools.groupby(sized, lambda one: one[0].source):
        for place, work in enumerate(_work_of(recipe.sources[source], own)):
            units.append(Unit(str(UnitName(slugs[source], place)), len(units), source, *work))
    return units


def number_units(recipe: Recipe, sources: Iterable[int]) -> list[Unit]:
    """Units of sources with these numbers, named after their place in the source; what each reads is known
    elsewhere, by its number.
    """
    slugs = source_slugs(source_names(recipe))
    places = defaultdict[int, Iterator[int]](itertools.count)
    names = ((source, UnitName(slugs[source], next(places[source]))) for source in sources)
    return [Unit(str(name), number, source) for number, (source, name) in enumerate(names)]


class _SmallFile(NamedTuple):
    span: Span
    text: int
    before: int
    """Bytes of text of the source before it."""
    hashed: str
    """Hash of its name."""


def _work_of(source: Source, sized: Iterable[tuple[InputFile, _Size]]) -> Iterator[Work]:
    small: list[_SmallFile] = []
    before = 0
    for file, size in sized:
        target = target_bytes(before)
        whole = (Span(file.index, 0, size.end),)
        if size.text < target // 4:
            small.append(_SmallFile(whole[0], size.text, before, hash_bytes(file.name.encode())))
            before += size.text
            continue
        yield from _group_small(small)
        small.clear()
        if file.format == "json" or is_one_document(file, source):  # no reader can cut it
            yield whole, size.text, 0
        elif _must_slice(file, source, size, target):
            # Such a file is never reused in part, so its own size counts too: one file, few slices.
            yield whole, size.text, min(target_bytes(before + size.text), LARGEST_SLICE)
        elif file.format == "parquet":
            for start, stop, text in _group_rows(size.groups, before):
                yield (Span(file.index, start, stop),), text, 0
        elif file.compression:
            yield whole, size.text, 0
        else:
            for start, stop in itertools.pairwise(_cuts(size.end, before)):
                yield (Span(file.index, start, stop),), stop - start, 0
        before += size.text
    yield from _group_small(small)


def _group_small(small: Sequence[_SmallFile]) -> Iterator[Work]:
    start = 0
    while start < len(small):
        stop = _end_of_group(small, start)
        group, start = small[start:stop], stop
        yield tuple(file.span for file in group), sum(file.text for file in group), 0


def _end_of_group(small: Sequence[_SmallFile], start: int) -> int:
    """End of the group that begins with a file.

    Once a group has a quarter of the target, each file that it still has room for may begin the next; the one
    with the smallest hashed name does. Two plans that begin a group at different files therefore soon agree
    on one that begins another. Every file counts as 1/4096 of the target at least, which bounds their number.
    """
    target = target_bytes(small[start].before)
    least, held, best = target // FILES_A_UNIT, 0, 0
    for place in range(start + 1, len(small) + 1):
        held += max(small[place - 1].text, least)
        if held > target:
            return best or max(place - 1, start + 1)
        if 4 * held >= target and place < len(small):
            best = place if not best or small[place].hashed < small[best].hashed else best
    return len(small)


def _cuts(end: int, before: int) -> list[int]:
    """Places at which a file is cut: multiples of the target; a rest below half of it is not cut off."""
    cuts = [0]
    while True:
        target = target_bytes(before + cuts[-1])
        cut = (cuts[-1] // target + 1) * target
        if end - cut < target // 2:
            return [*cuts, end]
        cuts.append(cut)


def _group_rows(groups: Sequence[int], before: int) -> Iterator[tuple[int, int, int]]:
    """Row groups of a Parquet file put together up to the target: first, end, and bytes of text."""
    start = held = 0
    for group, text in enumerate(groups):
        if held and held + text > target_bytes(before):
            yield start, group, held
            before, start, held = before + held, group, 0
        held += text
    yield start, len(groups), held


class _Size(NamedTuple):
    """Text bytes of a file, as far as known without reading it; its end, in bytes or row groups."""

    text: int
    end: int
    groups: Sequence[int] = ()


def _size_of(file: InputFile) -> _Size:
    if file.format != "parquet":
        return _Size(expected_text(file), file.size)
    groups = _row_groups(file)
    return _Size(sum(groups), len(groups), groups)


def _row_groups(file: InputFile) -> list[int]:
    from packline.sources.parquet import open_parquet

    def wanted(path: str) -> bool:
        return path.partition(".")[0] in file.columns if file.columns else path == file.text

    with file.open() as raw:
        metadata = open_parquet(raw, file.path).metadata
        sizes = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            columns = [group.column(place) for place in range(group.num_columns)]
            sizes.append(
                sum(column.total_uncompressed_size for column in columns if wanted(column.path_in_schema))
            )
        return sizes


def _must_slice(file: InputFile, source: Source, size: _Size, target: int) -> bool:
    """True for a file that is too large for one unit, and cannot be cut before it is read."""
    if file.format == "parquet":
        return max(size.groups) > 2 * max(target, LARGEST_SLICE)
    # Separators may overlap themselves, so where one begins depends on all text before it.
    uncut = bool(file.compression) or (file.format == "text" and source.documents == "separator")
    return uncut and size.text > target


MOST_LANES = 8
"""Number of lanes above which a file is hardly done any sooner, as reading costs a seventh of encoding."""


def with_lanes(units: Sequence[Unit], files: Sequence[InputFile], workers: int) -> list[Unit]:
    """The units, each sliced file as often as it has lanes, and before all others: they take longest."""
    if workers < 2:
        return list(units)
    text_bytes = sum(unit.text_bytes for unit in units)
    sliced = [unit for unit in units if unit.slice_bytes]
    lanes = (lane for unit in sliced for lane in lanes_of(unit, files, workers, text_bytes))
    return [*lanes, *(unit for unit in units if not unit.slice_bytes)]


def lanes_of(unit: Unit, files: Sequence[InputFile], workers: int, text_bytes: int) -> Iterator[Unit]:
    """The lanes of a sliced file; `text_bytes` is the text of all units to be run, this one included."""
    file = files[unit.spans[0].file]
    count = count_lanes(file, workers, text_bytes / max(unit.text_bytes, 1))
    return (msgspec.structs.replace(unit, lane=lane, lanes=count) for lane in range(count))


def count_lanes(file: InputFile, workers: int, files: float) -> int:
    """Number of lanes of a file, where there are fewer files like it than workers."""
    if file.format == "parquet":
        return 1  # rows are decoded to be counted, which costs as much as encoding them
    most = MOST_LANES // 2 if is_remote(file.path) else MOST_LANES  # each lane downloads the whole file
    return max(1, min(most, int(workers / max(files, 1))))
