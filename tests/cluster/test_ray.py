"""Builds, conversations and exports on several raylets: the bytes of one machine, whatever is killed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cluster.chaos import three_files
from tests.cluster.raylets import CHAT, Raylets, run_python, start_raylets
from tests.faults.processes import kill_all, kill_one, processes_of
from tests.jobs.builds import build, digests, start_build

import packline
from packline.errors import PacklineError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc"),
]
PLAIN = {"engine": "tokenizers", "val_fraction": 0.1}
"""The slowest engine, so that there is time to kill something."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Iterator[Path]:
    """About 1.5 MB."""
    with three_files(tmp_path_factory.mktemp("ray"), documents, 40_000) as folder:
        yield folder


@pytest.fixture(scope="module")
def raylets(corpus: Path) -> Iterator[Raylets]:
    """A head, and two nodes of one core each; tests that kill one add another."""
    with start_raylets() as cluster:
        cluster.add()
        cluster.add()
        yield cluster


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_json: Path) -> dict[str, str]:
    """Digests of the store that this machine builds alone."""
    out = tmp_path_factory.mktemp("whole") / "store"
    build(out, corpus, tokenizer_json, **{**PLAIN, "engine": "gigatoken"})
    return digests(out)


Start = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def start(raylets: Raylets, corpus: Path, tokenizer_json: Path) -> Iterator[Start]:
    """Starts drivers; those that a failed test leaves are ended, so that only this test fails."""
    drivers = []

    def run(out: Path) -> subprocess.Popen[str]:
        drivers.append(start_build(out, corpus, tokenizer_json, raylets.environment, on="ray", **PLAIN))
        return drivers[-1]

    yield run
    for driver in drivers:
        if driver.poll() is None:
            kill_all(driver.pid)
            driver.communicate()


def receipts(out: Path) -> int:
    return len(list(out.glob("receipts/*.json")))


def wait_for_receipts(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while receipts(out) < count:
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.01)


def end_of(process: subprocess.Popen[str]) -> str:
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    return text


def test_an_address_at_which_nothing_answers_is_refused_before_anything_is_written(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    (tmp_path / "in.txt").write_text("one two")
    began = time.monotonic()
    with pytest.raises(PacklineError, match=r"cannot connect to Ray at 127\.0\.0\.1:1: "):
        build(tmp_path / "out", tmp_path / "in.txt", tokenizer_json, on=packline.Ray("127.0.0.1:1"))
    assert time.monotonic() - began < 30 and not (tmp_path / "out").exists()


def test_the_driver_is_killed_and_run_again(start: Start, whole: dict[str, str], tmp_path: Path) -> None:
    process = start(tmp_path / "store")
    wait_for_receipts(tmp_path / "store", 3, process)
    process.kill()
    process.communicate()
    done = receipts(tmp_path / "store")
    again = start(tmp_path / "store")
    end_of(again)
    assert done >= 3
    assert digests(tmp_path / "store") == whole


def test_a_worker_and_a_task_are_killed_and_a_node_is_lost_while_another_joins(
    start: Start, raylets: Raylets, whole: dict[str, str], tmp_path: Path
) -> None:
    lost = raylets.add()  # the third node, so that two remain
    process = start(tmp_path / "store")

    def tasks() -> list[int]:
        hosts = processes_of("packline.jobs.host", raylets.pid)
        return [*set(hosts.values()) & set(processes_of("ray::run_slice", raylets.pid))]

    def workers() -> list[int]:
        hosts, of_tasks = processes_of("packline.jobs.host", raylets.pid), tasks()
        own = {pid for pid, parent in hosts.items() if parent in of_tasks}
        return [pid for pid, parent in hosts.items() if parent in own]

    for count, victims in ((2, workers), (6, tasks)):  # as if memory had run out
        wait_for_receipts(tmp_path / "store", count, process)
        kill_one(victims)
    wait_for_receipts(tmp_path / "store", 10, process)
    raylets.kill(lost)
    raylets.add()
    end_of(process)
    assert digests(tmp_path / "store") == whole


@pytest.mark.long(only=True)
def test_two_drivers_build_one_store(start: Start, whole: dict[str, str], tmp_path: Path) -> None:
    drivers = [start(tmp_path / "store") for _ in range(2)]
    for driver in drivers:
        end_of(driver)
    assert digests(tmp_path / "store") == whole


EXPORT_AND_ROWS = """
folder, on = given["folder"], given["on"]
packline.export(given["store"], to="llmc", out=f"{folder}/data", on=on, workers=1, link="copy",
    options={"shard_tokens": 200_000})
packline.write_rows(given["store"], out=f"{folder}/rows", on=on, workers=1, seq_len=512, seed=1)
print(packline.analyze(given["store"], on=on, workers=1).tokens)
"""


def test_conversations_exports_rows_and_counts(
    raylets: Raylets, corpus: Path, tokenizer_json: Path, documents: list[str], tmp_path: Path
) -> None:
    store = build(tmp_path / "store", corpus, tokenizer_json, **{**PLAIN, "engine": "gigatoken"})
    chats = tmp_path / "chats"
    chats.mkdir()
    for number in range(3):
        lines = [msgspec.json.encode({"prompt": "say it", "response": text}) for text in documents[number::3]]
        (chats / f"{number}.jsonl").write_bytes(b"\n".join(lines))
    found = []
    for on, environment in (("local", {}), ("ray", raylets.environment)):
        folder = tmp_path / on
        given = {
            "folder": str(folder),
            "on": on,
            "inputs": str(chats),
            "tokenizer": str(tokenizer_json),
            "out": f"{folder}/chat",
            "store": str(store.path),
        }
        text = run_python(CHAT + EXPORT_AND_ROWS, given, environment)
        found.append((digests(folder), text))
    assert found[0] == found[1]
    assert len(found[0][0]) > 8


def test_an_error_of_a_unit_names_it_as_on_one_machine(
    raylets: Raylets, corpus: Path, tokenizer_json: Path, tmp_path: Path
) -> None:
    process = start_build(
        tmp_path / "store", corpus, tokenizer_json, raylets.environment, on="ray", strict=True, **PLAIN
    )
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 3
    assert text.startswith("BadRecord | ")
