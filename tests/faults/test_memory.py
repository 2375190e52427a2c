"""Memory is bounded, whatever the size of a file, a line or a corpus (promise 8).

Every measurement is of a fresh process tree: the kernel's own count, for the largest process in it.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import python_sources
from tests.faults.processes import members
from tests.faults.test_inputs import written
from tests.jobs.builds import rejects, start_build

from packline.facade import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc for peaks"),
]

MIB = 1 << 20


def peak_of(out: Path, inputs: Path, tokenizer: Path, **settings: Any) -> int:
    """Bytes that the largest process of a build had resident at its peak.

    Asked of `/proc` while it runs: what `getrusage` says includes the process that started it.
    """
    process = start_build(out, inputs, tokenizer, **settings)
    peak = 0
    while process.poll() is None:
        for pid in members(process.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            found = re.search(r"VmHWM:\s*(\d+) kB", status)
            peak = max(peak, int(found[1]) * 1024 if found else 0)
        time.sleep(0.01)
    assert process.stdout is not None
    assert process.returncode == 0, process.stdout.read()
    return peak


def write_large(path: Path, size: int) -> None:
    """Real text with a number in each line of it, so that no two documents are equal."""
    sources = [text for _, text in python_sources(1_500_000)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        number = 0
        while file.tell() < size:
            text = sources[number % len(sources)].replace("\n    ", f"\n  {number} ")
            file.write(json.dumps({"text": text}).encode() + b"\n")
            number += 1


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two folders with a file each, one of which is six times as large."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, size in (("small", 20 * MIB), ("large", 120 * MIB)):
        write_large(folder / name / "a.jsonl", size)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("engine", ["gigatoken", pytest.param("auto", marks=pytest.mark.long(only=True))])
def test_a_file_of_six_times_the_size_takes_no_more_memory(
    engine: str, tmp_path: Path, corpora: dict[str, Path], tokenizer_json: Path
) -> None:
    began = time.monotonic()
    small = peak_of(tmp_path / "out-small", corpora["small"], tokenizer_json, workers=2, engine=engine)
    if time.monotonic() - began > 30:
        pytest.skip("this machine is too slow for the larger file")
    large = peak_of(tmp_path / "out-large", corpora["large"], tokenizer_json, workers=2, engine=engine)
    print(f"{engine}: {small / MIB:.0f} MiB, {large / MIB:.0f} MiB")
    assert large < small * 1.3 + 32 * MIB, (small / MIB, large / MIB)
    assert large < 1024 * MIB


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_100_mb_beyond_the_limit_is_never_held_whole(
    packed: bool, tmp_path: Path, tokenizer_json: Path
) -> None:
    line = b'{"text": "' + b"a long line " * (100 * MIB // 12) + b'"}'
    data = b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n'
    path = written(tmp_path, f"a.jsonl{'.gz' if packed else ''}", gzip.compress(data, 1) if packed else data)
    limit = 8 * MIB
    peak = peak_of(
        tmp_path / "out", path, tokenizer_json, workers=1, engine="gigatoken", max_document_bytes=limit
    )
    assert peak < 200 * MIB, peak / MIB
    store = Store(tmp_path / "out")
    assert [store.text(0), store.text(1)] == ["before", "after"]
    (entry,) = rejects(tmp_path / "out")
    assert entry["reason"] == "too_large" and entry["raw"] == line and entry["position"] == 19


def test_a_line_of_64_mb_within_the_limit_is_a_document(tmp_path: Path, tokenizer_json: Path) -> None:
    words = "a long line of many words "
    text = words * (64 * MIB // len(words))
    path = written(
        tmp_path,
        "a.jsonl",
        b'{"text": "before"}\n' + json.dumps({"text": text}).encode() + b'\n{"text": "after"}\n',
    )
    memory = 1536 * MIB
    peak = peak_of(tmp_path / "out", path, tokenizer_json, workers=1, memory_bytes=memory)
    store = Store(tmp_path / "out")
    assert len(store.documents) == 3 and store.provenance(1).text_bytes == len(text)
    assert store.text(2) == "after"
    assert peak < memory, peak / MIB


def test_a_tiny_file_that_unpacks_to_half_a_gigabyte_of_one_line_is_a_reject(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    import zstandard

    path = tmp_path / "in/a.jsonl.zst"
    path.parent.mkdir()
    packer = zstandard.ZstdCompressor().compressobj()
    with open(path, "wb") as file:
        file.write(packer.compress(b'{"text": "before"}\n'))
        for _ in range(512):
            file.write(packer.compress(b" " * MIB))
        file.write(packer.flush())
    assert path.stat().st_size < MIB
    peak = peak_of(
        tmp_path / "out", path, tokenizer_json, workers=1, engine="gigatoken", max_document_bytes=MIB
    )
    assert peak < 400 * MIB, peak / MIB
    assert len(Store(tmp_path / "out").documents) == 1


def test_a_build_of_one_document_takes_little_even_if_it_was_asked_for_by_a_large_process(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    path = written(tmp_path, "a.jsonl", b'{"text": "short"}\n')
    ballast = bytearray(800 * MIB)
    ballast[::4096] = b"x" * len(ballast[::4096])
    peak = peak_of(tmp_path / "out", path, tokenizer_json, workers=1, engine="gigatoken")
    assert 30 * MIB < peak < 300 * MIB
