"""Real builds, followed by real loaders: killed on either side, failing, limited, and finished."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.conftest import write_thirds
from tests.faults.processes import kill_all
from tests.jobs.builds import SRC, set_sizes_everywhere, start_build
from tests.storage.servers import Bucket

from packline.errors import BuildStopped
from packline.facade import Store
from packline.jobs.work import SCRATCH
from packline.loading.follow import follow
from packline.loading.loader import Loader
from packline.storage.places import open_storage

SEQ_LEN = 64
ORDER: dict[str, Any] = {
    "batch_size": 8,
    "seed": 5,
    "order": "blocks",
    "block_rows": 16,
    "window_blocks": 8,
    "prefetch": 2,
}


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ranges of a plain file, slices of a stream, row groups: about 20 units."""
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 200_000)
    write_thirds(tmp_path / "in", documents, 3)
    return tmp_path / "in"


@pytest.fixture
def start(corpus: Path, tokenizer_json: Path) -> Callable[..., subprocess.Popen[str]]:
    def run(out: Path, **settings: Any) -> subprocess.Popen[str]:
        chosen = {"workers": 2, "engine": "tokenizers", "val_fraction": 0.1, **settings}
        return start_build(out, corpus, tokenizer_json, **chosen)

    return run


def mark(batch: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest()


def marks(store: Path, **rows: Any) -> list[str]:
    return [mark(batch) for batch in Loader(Store(store).rows(SEQ_LEN, **rows), **ORDER)]


def wait_for(count: int, out: Path, process: subprocess.Popen[str]) -> None:
    while len(list(out.glob("receipts/*.json"))) < count:
        assert process.poll() is None
        time.sleep(0.005)


def kill_after(count: int, out: Path, process: subprocess.Popen[str]) -> None:
    """Kill a build that has committed this number of units."""
    wait_for(count, out, process)
    kill_all(process.pid)
    process.wait()


@pytest.mark.parametrize(
    "rows",
    [pytest.param({}, marks=pytest.mark.slow), {"packing": "best_fit", "pack_window": 2}],
    ids=["concat", "best_fit"],
)
def test_a_running_build_gives_the_batches_of_its_store(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], rows: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    process = start(out)
    follower = follow(out, seq_len=SEQ_LEN, **rows, **ORDER)
    early = not follower.finished
    found = [mark(batch) for batch in follower]
    assert process.wait() == 0
    assert early and found == marks(out, **rows) and len(found) > 50


def test_a_killed_build_is_reported_and_followed_again_when_it_is_resumed(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    kill_after(4, out, start(out))
    follower = follow(out, seq_len=SEQ_LEN, grace=0.2, **ORDER)
    found = []
    with pytest.raises(BuildStopped, match="no process is building"):
        for batch in follower:
            found.append(mark(batch))
    state = json.loads(json.dumps(follower.state_dict()))
    process = start(out)
    again = follow(out, seq_len=SEQ_LEN, **ORDER)
    again.load_state_dict(state)
    found += [mark(batch) for batch in again]
    assert process.wait() == 0
    assert found == marks(out)


@pytest.mark.slow
def test_one_follower_waits_for_a_resumed_build(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    kill_after(2, out, start(out))
    resumed: list[subprocess.Popen[str]] = []

    def resume(waiting: Any) -> None:
        if not resumed:
            resumed.append(start(out))

    found = [mark(batch) for batch in follow(out, seq_len=SEQ_LEN, grace=None, on_wait=resume, **ORDER)]
    assert resumed and resumed[0].wait() == 0
    assert found == marks(out)


def test_a_build_that_fails_is_reported(
    tmp_path: Path, corpus: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    last = sorted(corpus.glob("*.jsonl"))[-1]
    last.write_bytes(last.read_bytes() + b'{"text": 7}\n')
    out = tmp_path / "out"
    process = start(out, strict=True)
    wait_for(1, out, process)
    with pytest.raises(BuildStopped, match=r"step \d+ needs more than the first \d+ of"):
        list(follow(out, seq_len=SEQ_LEN, grace=1.0, **ORDER))
    assert process.wait() == 3


@pytest.mark.parametrize(
    "limit",
    [{"limit_tokens": 60_000}, pytest.param({"limit_documents": 200}, marks=pytest.mark.slow)],
    ids=["tokens", "documents"],
)
def test_a_limited_build_is_followed_up_to_its_limit(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], limit: dict[str, int]
) -> None:
    out = tmp_path / "out"
    process = start(out, **limit)
    found = [mark(batch) for batch in follow(out, seq_len=SEQ_LEN, **ORDER)]
    assert process.wait() == 0
    assert found == marks(out)


FOLLOW = """
import hashlib, json, os, sys
import packline
out, log, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
loader = packline.follow(out, **settings)
states = []
if os.path.exists(log):
    states = [json.loads(line) for line in open(log).read().splitlines()]
    if states:
        loader.load_state_dict(states[-1]["state"])
with open(log, "a") as file:
    for batch in loader:
        mark = hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest()
        file.write(json.dumps({"mark": mark, "state": loader.state_dict()}) + "\\n")
        file.flush()
"""


def marks_in(log: Path) -> list[str]:
    """Marks of the batches of all followers so far, without a line that is not whole."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line)["mark"] for line in lines]


def kill_follower(follower: subprocess.Popen[Any], log: Path) -> None:
    follower.kill()
    follower.wait()
    if log.exists():  # a line may be cut
        log.write_bytes(log.read_bytes()[: log.read_bytes().rfind(b"\n") + 1])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_builds_and_followers_that_are_killed_in_turn_give_the_same_batches(
    kind: str,
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make test-long` kills more often."""
    chooser, wanted = random.Random(27), int(os.environ.get("PACKLINE_KILLS", "4"))
    process = start(tmp_path / "whole")
    began = time.monotonic()
    assert process.wait() == 0
    seconds, expected = time.monotonic() - began, marks(tmp_path / "whole")
    bucket: Bucket | None = request.getfixturevalue("bucket") if kind == "bucket" else None
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    settings = {"seq_len": SEQ_LEN, **ORDER, "grace": None}
    kills, runs, resumed = {"build": 0, "follower": 0}, 0, 0
    while not resumed or min(kills.values()) < wanted // 2:
        assert runs < 30, (kills, resumed)
        log = tmp_path / f"log-{runs}"
        out: Any = tmp_path / f"out-{runs}" if bucket is None else bucket.place(f"out-{runs}")
        command = [sys.executable, "-c", FOLLOW, str(out), str(log), json.dumps(settings)]
        process, follower = start(out), subprocess.Popen(command, env=environment)
        ended = time.monotonic() + 120
        while follower.poll() is None:
            assert time.monotonic() < ended, f"run {runs} does not end: {kills}"
            victim = min(kills, key=lambda one: kills[one])
            if resumed:
                time.sleep(chooser.uniform(0, seconds / 3))
            else:  # the build dies when it has published units, and a follower that has read them
                while process.poll() is None and not any(open_storage(out).walk(".packline/partial")):
                    time.sleep(0.002)
            before, until = len(marks_in(log)), time.monotonic() + 20
            while victim == "follower" and follower.poll() is None and len(marks_in(log)) == before:
                if process.poll() is not None and time.monotonic() > until:
                    break
                time.sleep(0.002)
            enough = resumed and min(kills.values()) >= wanted // 2
            if enough or (victim == "build" and process.poll() is not None):
                continue
            if victim == "build":
                kill_all(process.pid)
                process.wait()
                if resumed:
                    process = start(out)
            elif follower.poll() is None:
                kill_follower(follower, log)
                resumed += open_storage(out).facts("manifest.json") is None
                follower = subprocess.Popen(command, env=environment)
                if process.poll():  # it was killed before
                    process = start(out)
            kills[victim] += 1
        assert follower.returncode == 0 and process.wait() == 0, process.stdout and process.stdout.read()
        assert marks_in(log) == expected, f"run {runs} after {kills}"
        runs += 1
    print(f"{kills}, {runs} runs, {resumed} followers resumed while their store was built")
    assert resumed >= wanted / 20 and min(kills.values()) >= wanted / 8, (kills, resumed)


def test_a_killed_follower_goes_on_from_its_last_state(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    process = start(out)
    command = [sys.executable, "-c", FOLLOW, str(out), str(log), json.dumps({"seq_len": SEQ_LEN, **ORDER})]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    for _ in range(2):
        follower = subprocess.Popen(command, env=environment)
        before = log.stat().st_size if log.exists() else 0
        while follower.poll() is None and (log.stat().st_size if log.exists() else 0) < before + 3000:
            time.sleep(0.005)
        kill_follower(follower, log)
    assert subprocess.run(command, env=environment).returncode == 0
    assert process.wait() == 0
    assert marks_in(log) == marks(out)


@pytest.mark.slow
def test_workers_of_torch_follow_by_themselves(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    from packline.torch import LoaderDataset

    out = tmp_path / "out"
    process = start(out)
    dataset = LoaderDataset(follow(out, seq_len=SEQ_LEN, **ORDER))
    batches = torch_data.DataLoader(dataset, batch_size=None, num_workers=2)
    found = [mark({name: values.numpy() for name, values in batch.items()}) for batch in batches]
    assert process.wait() == 0
    assert found == marks(out)
