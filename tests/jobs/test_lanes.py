"""Lanes: several workers read one file, and the store has the bytes that one of them gives."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.builds import build, digests, rejects, set_sizes_everywhere
from tests.laws.reference import write_corpus

from packline.jobs.cut_inputs import count_lanes, with_lanes
from packline.jobs.events import UnitDone
from packline.jobs.plan import Unit
from packline.sources.files import InputFile
from packline.sources.reader import Span


def file_of(compression: str, format: str, name: str) -> InputFile:
    return InputFile(0, 0, name, name, 1000, "", format, compression)  # type: ignore[arg-type]


def test_rows_have_one_lane_and_a_file_elsewhere_fewer() -> None:
    assert count_lanes(file_of("", "parquet", "a.parquet"), 64, 1) == 1
    near, far = (count_lanes(file_of("zstd", "jsonl", name), 64, 1) for name in ("a.zst", "s3://b/a.zst"))
    assert near == 8 and far == 4
    file = file_of("zstd", "jsonl", "a.zst")
    assert [count_lanes(file, 8, files) for files in (1, 3, 8, 9)] == [8, 2, 1, 1]


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 9))
def test_lanes_of_a_file_are_neighbours_and_share_all_of_its_slices(sliced: list[bool], workers: int) -> None:
    files = [file_of("zstd", "jsonl", f"{number}.zst") for number in range(len(sliced))]
    units = [
        Unit(f"u{number}", number, spans=(Span(number, 0, 9),), text_bytes=100, slice_bytes=int(is_sliced))
        for number, is_sliced in enumerate(sliced)
    ]
    found = with_lanes(units, files, workers)
    if workers < 2:
        assert found == units
        return
    groups = [list(group) for _, group in itertools.groupby(found, lambda unit: unit.name)]
    assert len(groups) == len(units)
    for group in groups:
        assert [unit.lane for unit in group] == list(range(group[0].lanes)) == list(range(len(group)))
        assert len(group) == 1 or group[0].slice_bytes
    order = [unit.slice_bytes > 0 for unit in found]
    assert order == sorted(order, reverse=True)  # the longest work first


def test_the_end_of_a_damaged_file_belongs_to_one_lane(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 30_000, 1 << 13)
    write_corpus(tmp_path / "in", [("jsonl", documents[:600], True)])
    (path,) = (tmp_path / "in").iterdir()
    packed = gzip.compress(path.read_bytes())
    (tmp_path / "in/x.jsonl.gz").write_bytes(packed[: len(packed) * 3 // 4])
    path.unlink()
    told: list[Any] = []
    for workers in (0, 3):
        told.clear()
        build(tmp_path / f"{workers}", tmp_path / "in", tokenizer_json, workers=workers, on_event=told.append)
    done = [event.unit for event in told if isinstance(event, UnitDone)]
    assert len(done) == len(set(done)) > 10 and done != sorted(done)  # of several workers
    assert digests(tmp_path / "0") == digests(tmp_path / "3")
    reasons = [entry["reason"] for entry in rejects(tmp_path / "3")]
    assert reasons.count("truncated_stream") == 1


SMALL_MEMORY = """
if "packline.jobs.host" in sys.orig_argv:
    from packline.encoders.encoder import Encoder
    from packline.jobs import text_unit
    text_unit.resident_memory = lambda: 1 << 60
    text_unit.RENEWED = 0
    renew = Encoder.renew
    def told(self, cache_bytes=0):
        sys.stderr.write("renewed\\\\n")
        renew(self, cache_bytes)
    Encoder.renew = told
"""


def test_an_engine_that_has_grown_is_loaded_anew_within_a_file(
    tmp_path: Path,
    documents: list[str],
    tokenizer_json: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 60_000, 1 << 13)
    write_corpus(tmp_path / "in", [("jsonl.zst", documents[:600], True)])
    build(tmp_path / "alone", tmp_path / "in", tokenizer_json)
    path = tmp_path / "site/sitecustomize.py"
    path.write_text(path.read_text() + SMALL_MEMORY.replace("\\\\n", "\\n"))
    build(tmp_path / "renewed", tmp_path / "in", tokenizer_json, workers=2, engine="gigatoken")
    assert capfd.readouterr().err.count("renewed") > 5
    assert digests(tmp_path / "renewed") == digests(tmp_path / "alone")
