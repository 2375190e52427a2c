"""`kill -9` of real processes: nothing is lost, nobody is left behind (promise 2)."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import write_thirds
from tests.faults.processes import coordinator_of, kill_all, kill_one, members, wait_until_gone, workers_of
from tests.jobs.builds import build, digests, set_sizes_everywhere, start_build

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks at processes through /proc"
)


def text_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Iterator[Path]:
    """About 6 MB: one plain file of ranges, one stream of slices, one columnar file."""
    folder = tmp_path_factory.mktemp("killed")
    write_thirds(folder / "in", documents, 4)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes_everywhere(patch, folder / "site", 200_000)
        yield folder / "in"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_json: Path) -> dict[str, str]:
    """Digests of the store as a build without any fault makes it."""
    out = tmp_path_factory.mktemp("whole") / "store"
    build(out, corpus, tokenizer_json, engine="gigatoken", val_fraction=0.1)
    return digests(out)


Start = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def start(corpus: Path, tokenizer_json: Path) -> Start:
    def run(out: Path) -> subprocess.Popen[str]:
        return start_build(out, corpus, tokenizer_json, workers=2, engine="gigatoken", val_fraction=0.1)

    return run


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "the build was over before its time"
        time.sleep(0.002)


def receipts(out: Path) -> int:
    return len(list(out.glob("receipts/in-*.json")))


def resumed(process: subprocess.Popen[str], out: Path, whole: dict[str, str]) -> None:
    assert process.wait(60) == 0, text_of(process)
    assert digests(out) == whole


def is_slicing(out: Path) -> bool:
    """True in the midst of a file that is committed slice by slice."""
    names = [path.name for path in [*out.glob("receipts/*"), *out.glob(".packline/tmp/*/*")]]
    ended = any(name.endswith(".stream.json") for name in names)
    return not ended and any(re.search(r"-\d{6}-\d{6}\.", name) for name in names)


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_random_instants_a_build_comes_to_the_same_bytes(
    tmp_path: Path, start: Start, whole: dict[str, str]
) -> None:
    """`make test-long` kills more often."""
    chooser, wanted = random.Random(20), int(os.environ.get("PACKLINE_KILLS", "3"))
    process = start(tmp_path / "timed")
    wait_for(lambda: len(workers_of(process.pid)) >= 2, process)
    began = time.monotonic()
    assert process.wait() == 0
    seconds = time.monotonic() - began
    kills, builds, slicing, writing = 0, 0, 0, 0
    out = tmp_path / "out"
    while kills < wanted:
        process, pause = start(out), chooser.uniform(0, seconds)
        if chooser.random() < 0.85:  # while units run; else while all is being prepared
            while process.poll() is None and len(workers_of(process.pid)) < 2:
                time.sleep(0.005)
        if slicing * 4 <= kills:  # in the midst of slices, whatever the speed of the machine
            pause = 0
            while process.poll() is None and not is_slicing(out):
                time.sleep(0.002)
        try:
            code: int | None = process.wait(pause)
        except subprocess.TimeoutExpired:
            code = None
            kill_all(process.pid)
            process.wait()
            kills += 1
            slicing += is_slicing(out)
            writing += any((out / ".packline/tmp").glob("*"))
        assert code in (None, 0), text_of(process)
        assert not wait_until_gone(process.pid)
        if code == 0:
            assert digests(out) == whole, f"after {kills} kills"
            shutil.rmtree(out)
            builds += 1
    resumed(start(out), out, whole)
    # Kills came in the midst of slices and while units were written, not before or after it all.
    assert slicing >= wanted / 10 and writing >= wanted / 3, (slicing, writing, builds)


def test_killed_in_the_midst_of_a_stream_it_goes_on(
    tmp_path: Path, start: Start, whole: dict[str, str]
) -> None:
    out, kills = tmp_path / "out", 0
    for _ in range(10):
        process = start(out)
        while process.poll() is None and not (receipts(out) > 1 + 2 * kills and is_slicing(out)):
            time.sleep(0.002)
        if process.poll() is not None:  # it was over before its time: from the beginning
            assert process.returncode == 0, text_of(process)
            shutil.rmtree(out)
            kills = 0
            continue
        kill_all(process.pid)
        process.wait()
        assert not (out / "manifest.json").exists()
        kills += 1
        if kills == 2:
            break
    assert kills == 2
    resumed(start(out), out, whole)


@pytest.mark.long
def test_killed_while_units_are_taken_over_it_comes_to_the_same_bytes(
    tmp_path: Path, corpus: Path, tokenizer_json: Path, whole: dict[str, str]
) -> None:
    """Kills at instants that are spread over a build with reuse, each followed by the same command."""
    corpus = Path(shutil.copytree(corpus, tmp_path / "in"))  # other tests read the original
    build(tmp_path / "old", corpus, tokenizer_json, engine="gigatoken", val_fraction=0.1)
    with (corpus / "0.jsonl").open("ab") as file:
        file.write(b'{"text": "one more"}\n')
    build(tmp_path / "clean", corpus, tokenizer_json, engine="gigatoken", val_fraction=0.1)
    expected, before, kills, taking = digests(tmp_path / "clean"), digests(tmp_path / "old"), 0, 0
    assert expected != whole
    chooser, out = random.Random(14), tmp_path / "out"
    settings: dict[str, Any] = {"workers": 2, "engine": "gigatoken", "val_fraction": 0.1}
    settings["reuse"] = str(tmp_path / "old")
    while kills < int(os.environ.get("PACKLINE_KILLS", "3")):
        process = start_build(out, corpus, tokenizer_json, **settings)
        while process.poll() is None and not any((out / ".packline").glob("tmp/*/reuse")):
            time.sleep(0.0005)
        try:
            code: int | None = process.wait(chooser.uniform(0, (0.01, 0.4, 4)[kills % 3]))
        except subprocess.TimeoutExpired:
            code = None
            taking += any((out / ".packline").glob("tmp/*/reuse"))
            kill_all(process.pid)
            process.wait()
            kills += 1
        assert code in (None, 0), text_of(process)
        if code == 0:
            assert digests(out) == expected, f"after {kills} kills"
            shutil.rmtree(out)
    process = start_build(out, corpus, tokenizer_json, **settings)
    assert process.wait() == 0 and digests(out) == expected
    assert digests(tmp_path / "old") == before
    assert taking >= 1


def stop_workers(session: int) -> bool:
    """Stop the workers, so that the build is not over by itself; True if there are two of them."""
    workers = workers_of(session)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    stopped = members(session).keys() & workers
    if len(stopped) < 2:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    return len(stopped) >= 2


@pytest.mark.parametrize("who", ["asking", "coordinator"])
def test_nobody_outlives_the_process_that_is_killed(
    who: str, tmp_path: Path, start: Start, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    process = start(out)
    wait_for(lambda: receipts(out) >= 1 and stop_workers(process.pid), process)
    coordinator = coordinator_of(process.pid)
    assert coordinator is not None and len(members(process.pid)) >= 4
    os.kill(process.pid if who == "asking" else coordinator, signal.SIGKILL)
    left = wait_until_gone(process.pid)
    assert not left
    process.wait()
    if who == "coordinator":
        assert process.returncode == 3
        message = text_of(process)
        assert (
            "WorkerDied" in message and "exit code -9" in message and "run the same command again" in message
        )
    resumed(start(out), out, whole)


def test_a_worker_that_is_killed_is_told_with_its_unit_and_costs_only_that(
    tmp_path: Path, start: Start, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    process = start(out)
    wait_for(lambda: receipts(out) >= 1 and len(workers_of(process.pid)) >= 2, process)
    kill_one(lambda: workers_of(process.pid))
    assert process.wait(60) == 3
    message = text_of(process)
    died = r"WorkerDied \| a worker process ended unexpectedly \(SIGKILL\) during "
    assert re.search(died, message), message
    assert "lower --workers" in message and "Traceback" not in message
    assert not wait_until_gone(process.pid)
    done = receipts(out)
    resumed(start(out), out, whole)
    assert done >= 1


def test_an_interruption_ends_all_and_the_build_goes_on_later(
    tmp_path: Path, start: Start, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    process = start(out)
    wait_for(lambda: receipts(out) >= 1, process)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C on a terminal does
    assert process.wait(60) != 0
    assert "KeyboardInterrupt" in text_of(process)
    assert not wait_until_gone(process.pid)
    resumed(start(out), out, whole)


def test_a_second_build_into_the_same_folder_is_refused_and_harms_nothing(
    tmp_path: Path, start: Start, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    first = start(out)
    wait_for(lambda: receipts(out) >= 1, first)
    os.kill(first.pid, signal.SIGSTOP)
    os.kill(coordinator_of(first.pid) or 0, signal.SIGSTOP)
    second = start(out)
    assert second.wait(60) == 3
    message = text_of(second)
    assert f"StoreBusy | another build is writing into {out}" in message and "wait for it to end" in message
    os.killpg(first.pid, signal.SIGCONT)
    assert first.wait(60) == 0
    assert digests(out) == whole
