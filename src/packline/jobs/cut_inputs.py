"""Units: the inputs cut into pieces of work, source by source, as a function of the source's files alone.

    a unit    spans of one or many files: a range of a large file, or many small files together
              one file that cannot be cut; its reader commits it slice by slice

A unit has 4 to 256 MiB of text, more the more text of its source is before it: small enough to keep all cores
busy and to lose little work to an interruption, large enough to keep the number of shards low. Neither the
machine nor the number of workers matters, because each unit becomes a shard.

Units are also what a later build reuses, so a change should leave the units around it as they are:

    another source              is not looked at
    more files at the end       only what is before a file decides its size of units
    a longer file               is cut at multiples of that size, and not into equal parts
    a small file more or less   groups end before the file with the smallest hashed name in a window, so after
                                a few groups they end where they did before
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from packline.fingerprint import hash_bytes
from packline.jobs.plan import Unit
from packline.recipe import (
    Recipe,
    Source,
)
from packline.sources.files import InputFile
from packline.sources.listing import map_files
from packline.sources.reader import Span
from packline.store.ledger import source_names
from packline.store.naming import UnitName, source_slugs

UNIT_BYTES = ((128 << 20, 4 << 20), (2 << 30, 16 << 20), (16 << 30, 64 << 20))
"""Text of a source up to which its units have a size, and that size; each size divides the next."""
LARGEST_UNIT = 256 << 20
LARGEST_SLICE = 64 << 20
"""Maximum bytes of a slice: a file has few of them, and several workers may take turns."""
COMPRESSION_GUESS = 4
FILES_A_UNIT = 4096
HELD_FILES = 2 * FILES_A_UNIT
"""Small files that are held before groups of them are formed."""


def target_bytes(before: int) -> int:
    """Size of a unit with this number of bytes of text of its source before it.

    >>> target_bytes(0) >> 20, target_bytes(1 << 30) >> 20, target_bytes(1 << 40) >> 20
    (4, 16, 256)
    """
    for below, size in UNIT_BYTES:
        if before < below:
            return size
    return LARGEST_UNIT


def expected_text(file: InputFile) -> int:
    """Bytes of text of a file, as far as known by its size."""
    packed = bool(file.compression) or file.format == "parquet"
    return file.size * COMPRESSION_GUESS if packed else file.size


def is_one_document(file: InputFile, source: Source) -> bool:
    """True for a text file that is one document."""
    return file.format == "text" and source.documents == "file"


def plan_units(recipe: Recipe, files: Sequence[InputFile]) -> list[Unit]:
    """Plan all work, in the order of the documents: sources as in the recipe, files as listed."""
    slugs = source_slugs(source_names(recipe))
    planned = enumerate(_planned(recipe, files, slugs))
    return [msgspec.structs.replace(unit, number=number) for number, unit in planned]


def _planned(recipe: Recipe, files: Sequence[InputFile], slugs: Sequence[str]) -> Iterator[Unit]:
    has_footers = any(file.format == "parquet" for file in files)
    sizes = map_files(_FileSize, files) if has_footers else map(_FileSize, files)
    sized = zip(files, sizes, strict=True)
    for source, own in itertools.groupby(sized, lambda one: one[0].source):
        plan = _SourcePlan(source, slugs[source], recipe.sources[source])
        for file, size in own:
            yield from plan.add(file, size)
        yield from plan.group_small()


def number_units(recipe: Recipe, sources: Iterable[int]) -> list[Unit]:
    """Units of sources with these numbers, named after their place in the source; what each reads is known
    elsewhere, by its number.
    """
    slugs = source_slugs(source_names(recipe))
    counts: Counter[int] = Counter()
    units = []
    for number, source in enumerate(sources):
        units.append(Unit(str(UnitName(slugs[source], counts[source])), number, source))
        counts[source] += 1
    return units


class _SmallFile(NamedTuple):
    """A file to be grouped with others."""

    span: Span
    text: int
    before: int
    """Bytes of text of the source before it."""
    hashed: str
    """Hash of its name."""


class _SourcePlan:
    """The work of one source, file by file."""

    def __init__(self, number: int, slug: str, source: Source) -> None:
        self._number, self._slug, self._source = number, slug, source
        self._small: list[_SmallFile] = []
        self._before = self._units = 0

    def add(self, file: InputFile, size: _FileSize) -> Iterator[Unit]:
        """Work that is certain once the next file is known."""
        before = self._before
        target = target_bytes(before)
        self._before += size.text
        whole = Span(file.index, 0, size.end)
        if size.text < target // 4:
            self._small.append(_SmallFile(whole, size.text, before, hash_bytes(file.name.encode())))
            if len(self._small) >= HELD_FILES:
                yield from self.group_small(more=True)
            return
        yield from self.group_small()
        if file.format == "json" or is_one_document(file, self._source):  # no reader can cut it
            yield self._unit([whole], size.text)
        elif _must_slice(file, self._source, size, target):
            # Such a file is never reused in part, so its own size counts too: one file, few slices.
            yield self._unit([whole], size.text, min(target_bytes(before + size.text), LARGEST_SLICE))
        elif file.format == "parquet":
            for start, stop, text in _group_rows(size.groups, before):
                yield self._unit([Span(file.index, start, stop)], text)
        elif file.compression:
            yield self._unit([whole], size.text)
        else:
            for start, stop in itertools.pairwise(_cuts(size.end, before)):
                yield self._unit([Span(file.index, start, stop)], stop - start)

    def _unit(self, spans: Iterable[Span], text: int, slice_bytes: int = 0) -> Unit:
        name = str(UnitName(self._slug, self._units))
        self._units += 1
        return Unit(name, 0, self._number, tuple(spans), text, slice_bytes)

    def group_small(self, *, more: bool = False) -> Iterator[Unit]:
        """Units of the small files since the last large one.

        Args:
            more: others may follow, so a group that ends with the last file is not certain yet.
        """
        small, start = self._small, 0
        while start < len(small):
            stop = _end_of_group(small, start)
            if more and stop == len(small):
                break
            group = small[start:stop]
            yield self._unit((file.span for file in group), sum(file.text for file in group))
            start = stop
        self._small = small[start:]


def _end_of_group(small: Sequence[_SmallFile], start: int) -> int:
    """End of the group that begins at `start`.

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
    """Places at which a file is cut: multiples of the target; a rest below half of it joins the piece before.

    Args:
        end: size of the file.
        before: bytes of text of the source before the file.
    """
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


class _FileSize:
    """Text bytes of a file, as far as known without reading it."""

    __slots__ = ("end", "groups", "text")

    def __init__(self, file: InputFile) -> None:
        self.groups: Sequence[int] = ()
        self.end = file.size
        self.text = expected_text(file)
        if file.format == "parquet":
            self.groups = _row_groups(file)
            self.end = len(self.groups)
            self.text = sum(self.groups)


def _row_groups(file: InputFile) -> list[int]:
    """Uncompressed bytes of the wanted columns in each row group."""
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


def _must_slice(file: InputFile, source: Source, size: _FileSize, target: int) -> bool:
    """True for a file that is too large for one unit, and cannot be cut before it is read."""
    if file.format == "parquet":
        return max(size.groups) > 2 * max(target, LARGEST_SLICE)
    # Separators may overlap themselves, so where one begins depends on all text before it.
    uncut = bool(file.compression) or (file.format == "text" and source.documents == "separator")
    return uncut and size.text > target
