"""Files that cannot be cut, read by several workers at once where there are fewer files than workers.

    x.jsonl.zst   lane 0 of 2   [0]   [2]   [4]      each lane decompresses all, and encodes its slices
                  lane 1 of 2      [1]   [3]   [5]   (`sources.slices`)

Names and bytes of slices are the same for any number of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from packline.jobs.plan import Unit
from packline.sources.files import InputFile
from packline.storage.places import is_remote

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
