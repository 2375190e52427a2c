"""The server of the measurements speaks what the client of object stores needs, and the table adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.remote import LOCAL, REMOTE, serve
from benchmarks.render import remote_table
from benchmarks.results import RemoteRun, new_results
from packline.errors import InputChanged
from packline.storage.inputs import expand_remote, input_state, open_input
from packline.storage.places import open_storage

pytest.importorskip("obstore", reason="object stores need packline[remote]")


def test_the_server_lists_answers_ranges_and_creates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/a.txt").write_bytes(bytes(range(256)) * 100)
    with serve(tmp_path, made=2500) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (found,) = expand_remote("s3://bucket/*.txt")
        assert found.state == input_state(found.path)
        with open_input(found.path, found.state) as file:
            file.seek(1000)
            assert file.read(2000) == (bytes(range(256)) * 100)[1000:3000]
        storage = open_storage("s3://bucket/out")
        assert storage.put_new("x", b"one") and not storage.put_new("x", b"one")
        made = list(expand_remote("s3://made"))
        assert len(made) == 2500 and made == sorted(made, key=lambda one: one.path)
        (tmp_path / "bucket/a.txt").write_bytes(b"changed")
        with open_input(found.path, found.state) as file, pytest.raises(InputChanged):
            file.read(1)


def test_the_table_compares_with_the_disk() -> None:
    def run(contender: str, seconds: float) -> RemoteRun:
        return RemoteRun(
            contender=contender,
            input="a.jsonl",
            round=1,
            text_bytes=100_000_000,
            wall_seconds=seconds + 1,
            startup_seconds=2.0,
            seconds=seconds,
            cpu_seconds=3.0,
            largest_worker_bytes=1,
            checksum="",
            base=LOCAL,
        )

    results = new_results({})
    results.remote = [run(LOCAL, 4.0), run(REMOTE, 6.0)]
    lines = remote_table(results).splitlines()
    assert lines[-2].endswith("| 50 (50-50) |  |")
    assert lines[-1].endswith("| 25 (25-25) | 0.50 |")
