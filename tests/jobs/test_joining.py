"""Several processes at one build: units made twice, other versions, and the finish without the inputs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.jobs.builds import stored
from tests.jobs.test_folder import IDENTITY, receipt_of, receipts_of

from packline.errors import ResumeMismatch, StoreBusy, StoreError
from packline.jobs import work
from packline.jobs.folder import StoreFolder
from packline.jobs.work import is_running
from packline.storage.results import WORK
from packline.testing import make_store


def shared(place: Path) -> StoreFolder:
    found = StoreFolder(place)
    found.shared = True
    return found


def test_processes_share_a_build_and_leave_each_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "ENDING_SECONDS", 0)
    names = iter(["host-1", "host-1", "host-2", "host-2", "host-3"])
    monkeypatch.setattr(work, "process_name", lambda: next(names))
    out = tmp_path / "out"
    with shared(out) as one:
        assert one.begin(IDENTITY, "{}") is None
        mine = one.tmp / "unfinished"
        mine.touch()
        with shared(out) as two:
            assert two.begin(IDENTITY, "{}") is not None
            assert one.tmp != two.tmp and mine.exists() and is_running(out / WORK)
            with pytest.raises(StoreBusy):
                StoreFolder(out).__enter__()
            for process in (one, two):  # a unit that is made twice
                process.commit(receipt_of(process, "made-000001"))
            assert list(receipts_of(two)) == ["made-000001"]
            receipt = receipt_of(two, "made-000001")
            (two.tmp / "train-made-000001.bin").write_bytes(b"other")
            with pytest.raises(StoreError, match=r"train-made-000001\.bin exists with another content"):
                two.commit(receipt)
        assert one.alone() and is_running(out / WORK)
        fcntl.flock(one.descriptor, fcntl.LOCK_SH)
    assert not is_running(out / WORK)
    with StoreFolder(out) as last:
        last.begin(IDENTITY, "{}")
        assert not mine.exists()


HOLDING = """
import os, sys, time
from packline.jobs.folder import StoreFolder
folder = StoreFolder(sys.argv[1])
folder.shared = True
folder.__enter__()
(folder.tmp / "unfinished").write_bytes(b"x")
print(folder.tmp, flush=True)
if os.fork() == 0 or sys.argv[2] == "parent":  # a worker holds the folder as well as its parent does
    time.sleep(60)
"""


def test_what_killed_slices_have_left_is_removed_by_the_next_and_only_that(tmp_path: Path) -> None:
    out, started = tmp_path / "out", list[subprocess.Popen[str]]()
    with shared(out) as process:
        process.begin(IDENTITY, "{}")
    for kind in ("parent", "parent", "worker"):
        command = [sys.executable, "-c", HOLDING, str(out), kind]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
    try:
        folders = [Path(one.stdout.readline().strip()) for one in started if one.stdout is not None]
        assert len({*folders}) == 3 and all((folder / "unfinished").exists() for folder in folders)
        os.killpg(started[0].pid, signal.SIGKILL)
        started[2].wait(30)  # its worker runs on
        started[0].wait(30)
        with shared(out):
            assert [folder.exists() for folder in folders] == [False, True, True]
    finally:
        for one in started:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate(timeout=30)


def test_a_build_of_other_versions_is_refused(tmp_path: Path) -> None:
    with StoreFolder(tmp_path / "out") as process:
        process.begin(IDENTITY, "{}")
        other = msgspec.structs.replace(IDENTITY, versions=IDENTITY.versions | {"pyarrow": "1.0"})
        with pytest.raises(ResumeMismatch, match=r"other versions: pyarrow: '.*' -> '1\.0'") as caught:
            process.begin(other, "{}")
        assert "install" in caught.value.hint


def test_a_process_that_begins_once_the_store_is_published_deletes_nothing(tmp_path: Path) -> None:
    out = make_store(tmp_path / "store", [[3, 4]]).path
    before = stored(str(out))
    with shared(out) as late:
        late.begin(IDENTITY, "{}")
        assert before.items() <= stored(str(out)).items()
