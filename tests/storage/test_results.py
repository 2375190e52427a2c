"""Publishing: files, then the record; whatever is interrupted, a place is complete or known not to be."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.kills import Crash, killed_at, storage_calls

from packline.errors import PacklineError, StoreError
from packline.storage.local import LocalFolder
from packline.storage.results import EXPORT_BEGUN, WORK, FileFacts, Publication

FILES = st.dictionaries(st.sampled_from(["a", "b", "in/c", "in/d"]), st.binary(max_size=3), max_size=4)
RECORD = "record.json"


def result_in(folder: str | Path) -> Publication:
    return Publication(LocalFolder(Path(folder)), RECORD)


@settings(max_examples=30, deadline=None)
@given(FILES, st.binary(min_size=1, max_size=3))
def test_killed_at_any_call_and_published_again(files: dict[str, bytes], record: bytes) -> None:
    contents = {**files, RECORD: record}
    with tempfile.TemporaryDirectory() as place, storage_calls() as calls:
        result_in(place).publish(contents, contents)
    for number in range(len(calls)):
        with tempfile.TemporaryDirectory() as place:
            with pytest.raises(Crash), killed_at(number):
                result_in(place).publish(contents, contents)
            result = result_in(place)
            there = result.files()
            assert not result.is_complete() or there.keys() == contents.keys()
            result.publish(contents, contents)
            assert {name: LocalFolder(Path(place)).read(name) for name in result.files()} == contents


@pytest.mark.parametrize(
    ("there", "listed"),
    [(["a", "b"], ["a"]), (["a"], ["a", "b"]), (["a"], ["a", "a"])],
    ids=["not listed", "missing", "twice"],
)
def test_a_record_of_other_files_is_not_written(tmp_path: Path, there: list[str], listed: list[str]) -> None:
    for name in there:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(PacklineError, match="every file to be listed once"):
        result_in(tmp_path).publish({RECORD: b"{}"}, listed)
    assert not result_in(tmp_path).is_complete()


def test_hidden_files_of_others_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_bytes(b"x")
    result_in(tmp_path).publish({RECORD: b"{}"}, [RECORD])


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], ""),
        (["mine.txt"], "mine.txt"),
        (["mine.txt", f"{WORK}/lock"], ""),  # a job was stopped before it recorded anything
        (["mine.txt", f"{WORK}/own.json"], ""),
        (["a", f"{WORK}/build.json"], "an unfinished build, and no result"),
        (["mine.txt", RECORD], ""),
    ],
)
def test_what_is_not_ours_is_refused(tmp_path: Path, names: list[str], found: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    result = result_in(tmp_path)
    if not found:
        result.refuse_foreign(f"{WORK}/own.json", "result")
        return
    with pytest.raises(StoreError, match=f"holds (no result: found )?{found}"):
        result.refuse_foreign(f"{WORK}/own.json", "result")


@pytest.mark.parametrize("instant", range(6))
def test_a_job_that_another_process_begins_meanwhile_is_not_foreign(tmp_path: Path, instant: int) -> None:
    class Meanwhile(LocalFolder):
        calls = 0

        def facts(self, name: str) -> FileFacts | None:
            self.calls += 1
            if self.calls == instant + 1:
                LocalFolder(tmp_path).put_new(EXPORT_BEGUN, b"{}")
            return super().facts(name)

    Publication(Meanwhile(tmp_path), RECORD).refuse_foreign(EXPORT_BEGUN, "export")


def test_clearing_begins_with_the_record(tmp_path: Path) -> None:
    result_in(tmp_path).publish({"a": b"1", "b": b"2", RECORD: b"{}"})
    with storage_calls() as calls:
        result_in(tmp_path).clear(["a", "b"])
    for number in range(len(calls)):
        result_in(tmp_path).publish({"a": b"1", "b": b"2", RECORD: b"{}"})
        with pytest.raises(Crash), killed_at(number):
            result_in(tmp_path).clear(["a", "b"])
        there = result_in(tmp_path).files()
        assert RECORD not in there or len(there) == 3
    result_in(tmp_path).clear(["a", "b"])
    assert result_in(tmp_path).files() == {}
