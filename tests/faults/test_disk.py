"""The folder that a build writes into: full, read-only, foreign, not a folder."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.builds import build, digests, set_sizes_everywhere
from tests.laws.reference import write_corpus

from packline.errors import OutOfSpace, StoreError


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 300_000)
    half = len(documents) // 2
    write_corpus(tmp_path / "in", [("jsonl", documents[:half], True), ("jsonl.zst", documents[half:], True)])
    return tmp_path / "in"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 KB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid():
        pytest.skip("only root may mount a small disk")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=600k", "packline", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        # Lazily: a store that is still open has its files mapped.
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_told_and_with_room_again_the_bytes_are_the_same(
    workers: int, small_disk: Path, corpus: Path, tmp_path: Path, tokenizer_json: Path
) -> None:
    out = small_disk / "out"
    for _ in range(2):
        with pytest.raises(OutOfSpace, match=r"the disk of .* is full") as caught:
            build(out, corpus, tokenizer_json, workers=workers, engine="gigatoken")
        assert str(out) in caught.value.message
        assert "make room" in caught.value.hint and "finished units are kept" in caught.value.hint
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    build(out, corpus, tokenizer_json, workers=workers, engine="gigatoken")
    build(tmp_path / "clean", corpus, tokenizer_json)
    assert digests(out) == digests(tmp_path / "clean")


@pytest.mark.parametrize("most", [30_000, 150_000])
def test_a_file_that_may_not_grow_is_a_full_disk(
    most: int, corpus: Path, tmp_path: Path, tokenizer_json: Path
) -> None:
    """The kernel takes the part of a write that still fits and says nothing; only the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OutOfSpace, match="is full"):
            build(tmp_path / "out", corpus, tokenizer_json)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    build(tmp_path / "out", corpus, tokenizer_json)
    build(tmp_path / "clean", corpus, tokenizer_json)
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")


def test_a_slice_is_written_whole_where_the_disk_takes_it_in_parts(
    corpus: Path, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins
    import io

    class Stingy(io.FileIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            return super().write(memoryview(data)[: max(len(data) // 2, 1)])

    def opened(path: object, mode: str = "r", **options: object) -> object:
        if ".packline" in str(path) and mode == "wb" and options.get("buffering") == 0:
            return Stingy(str(path), "w")
        return real(path, mode, **options)  # type: ignore[call-overload]

    real = builtins.open
    build(tmp_path / "clean", corpus, tokenizer_json)
    monkeypatch.setattr(builtins, "open", opened)
    build(tmp_path / "out", corpus, tokenizer_json)
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")


def test_a_folder_that_cannot_be_written_is_told(corpus: Path, tmp_path: Path, tokenizer_json: Path) -> None:
    # Nobody, not even root, makes folders there.
    out = Path("/proc/packline-store")
    if not out.parent.is_dir():
        pytest.skip("no folder here that nobody can write")
    with pytest.raises(StoreError, match=f"cannot write into {out}") as caught:
        build(out, corpus, tokenizer_json)
    assert caught.value.hint == "choose another --out"  # no permission would help


def test_a_read_only_disk_is_told(small_disk: Path, corpus: Path, tokenizer_json: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"cannot write into .*: Read-only file system"):
        build(small_disk / "out", corpus, tokenizer_json)


def test_a_folder_of_something_else_is_left_alone(corpus: Path, tmp_path: Path, tokenizer_json: Path) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years of work")
    with pytest.raises(
        StoreError, match=r"is not empty and holds no packline build: found chapter\.tex"
    ) as caught:
        build(out, corpus, tokenizer_json)
    assert "new or empty folder" in caught.value.hint
    assert [path.name for path in out.iterdir()] == ["chapter.tex"]


def test_a_file_in_place_of_the_folder_is_told(corpus: Path, tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(StoreError, match="is a file: expected a folder"):
        build(tmp_path / "out", corpus, tokenizer_json)
    assert (tmp_path / "out").read_text() == "precious"
    with pytest.raises(StoreError, match="cannot write into"):
        build(tmp_path / "out/deeper", corpus, tokenizer_json)
