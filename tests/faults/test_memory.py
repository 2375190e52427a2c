"""Memory is bounded, whatever the size of a file, a line or a corpus (promise 8).

Every measurement is of a fresh process tree: the kernel's own count of the largest process in it.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packline.store.reader import Store
from tests.conftest import python_sources
from tests.runtime.builds import SCRIPT, SRC, rejects

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="asks the kernel for peaks")]

MIB = 1 << 20
MEASURED = (
    SCRIPT
    + """
import resource
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(max(peaks) * (1 if sys.platform == "darwin" else 1024))
"""
)


def peak_of(out: Path, inputs: Path, tokenizer: Path, **settings: Any) -> int:
    """Bytes that the largest process of a build had resident at its peak."""
    arguments = {"inputs": [str(inputs)], "tokenizer": str(tokenizer), "out": str(out)} | settings
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, msgspec.json.encode(arguments).decode()],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SRC), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


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


@pytest.mark.parametrize("engine", ["auto", "gigatoken"])
def test_a_file_of_four_times_the_size_takes_no_more_memory(
    engine: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    write_large(tmp_path / "small/a.jsonl", 128 * MIB)
    write_large(tmp_path / "large/a.jsonl", 512 * MIB)
    began = time.monotonic()
    small = peak_of(tmp_path / "out-small", tmp_path / "small", tokenizer_json, workers=2, engine=engine)
    if time.monotonic() - began > 30:
        pytest.skip("this machine is too slow for the larger file")
    large = peak_of(tmp_path / "out-large", tmp_path / "large", tokenizer_json, workers=2, engine=engine)
    assert large < small * 1.3 + 32 * MIB, (small / MIB, large / MIB)
    assert large < 1024 * MIB


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_200_mb_beyond_the_limit_is_never_held_whole(
    packed: bool, tmp_path: Path, tokenizer_json: Path
) -> None:
    line = b'{"text": "' + b"a long line " * (200 * MIB // 12) + b'"}'
    data = b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n'
    path = tmp_path / f"in/a.jsonl{'.gz' if packed else ''}"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    limit = 16 * MIB
    peak = peak_of(
        tmp_path / "out", path, tokenizer_json, workers=1, engine="gigatoken", max_document_bytes=limit
    )
    assert peak < 400 * MIB, peak / MIB
    store = Store(tmp_path / "out")
    assert [store.text(0), store.text(1)] == ["before", "after"]
    (entry,) = rejects(tmp_path / "out")
    assert entry["reason"] == "too_large" and entry["raw"] == line and entry["position"] == 19


def test_a_line_of_200_mb_within_the_limit_is_a_document(tmp_path: Path, tokenizer_json: Path) -> None:
    words = "a long line of many words "
    text = words * (200 * MIB // len(words))
    path = tmp_path / "in/a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"text": "before"}\n' + json.dumps({"text": text}).encode() + b'\n{"text": "after"}\n')
    peak = peak_of(tmp_path / "out", path, tokenizer_json, workers=1)
    store = Store(tmp_path / "out")
    assert len(store.documents) == 3 and store.provenance(1).text_bytes == len(text)
    assert store.text(2) == "after"
    # A document is encoded at once, so it costs a multiple of itself; the limit is there to bound that.
    assert peak < 2500 * MIB, peak / MIB


def test_a_tiny_file_that_unpacks_to_a_gigabyte_of_one_line_is_a_reject(tmp_path: Path, tokenizer_json: Path) -> None:
    import zstandard

    path = tmp_path / "in/a.jsonl.zst"
    path.parent.mkdir()
    packer = zstandard.ZstdCompressor().compressobj()
    with open(path, "wb") as file:
        file.write(packer.compress(b'{"text": "before"}\n'))
        for _ in range(1024):
            file.write(packer.compress(b" " * MIB))
        file.write(packer.flush())
    assert path.stat().st_size < MIB
    peak = peak_of(tmp_path / "out", path, tokenizer_json, workers=1, engine="gigatoken", max_document_bytes=MIB)
    assert peak < 600 * MIB, peak / MIB
    assert len(Store(tmp_path / "out").documents) == 1


def test_peaks_are_measured_and_not_assumed(tmp_path: Path, tokenizer_json: Path) -> None:
    path = tmp_path / "in/a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"text": "short"}\n')
    peak = peak_of(tmp_path / "out", path, tokenizer_json, workers=1, engine="gigatoken")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 30 * MIB < peak < 400 * MIB and own
