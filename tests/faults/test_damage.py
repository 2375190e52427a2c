"""The generator of damage itself: every kind changes the folder, and a seed gives the same damage again."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.faults.damage import KINDS, damage, files_of, link_copy


def state(folder: Path) -> dict[str, object]:
    """Content of a folder: names, kinds of files, bytes."""
    return {
        name: (path.lstat().st_mode, None if stat.S_ISFIFO(path.lstat().st_mode) else path.read_bytes())
        for name in files_of(folder)
        for path in [folder / name]
    }


@pytest.mark.parametrize("kind", KINDS)
def test_damage_changes_the_copy_and_never_the_original(tmp_path: Path, kind: str) -> None:
    original = tmp_path / "original"
    (original / "inner").mkdir(parents=True)
    for number, name in enumerate(("a.bin", "b.bin", "c.json", "inner/d.docs.parquet", "inner/empty")):
        (original / name).write_bytes(bytes(range(number, 90)) if number < 4 else b"")
    before = state(original)
    for seed in range(20):
        one, same = (link_copy(original, tmp_path / f"{name}-{seed}") for name in ("one", "same"))
        done, again = damage(one, seed, kinds=[kind]), damage(same, seed, kinds=[kind])
        assert state(one) != before
        assert state(original) == before
        assert (done.kind, done.file) == (again.kind, again.file)
        assert state(one) == state(same)
