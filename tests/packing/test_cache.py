"""Plans on disk: whole or not there, refused when anything is wrong, and safe with several writers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.errors import CorruptStore, OutOfSpace, StoreError
from packline.facade import Store
from packline.packing import cache as plans
from packline.packing.cache import (
    PLAN,
    Plan,
    find_plan,
    load_plan,
    plan_fingerprint,
    plan_folder,
    save_plan,
)
from packline.testing import make_store

ARRAYS = {"order": np.array([3, 1, 2], "<u4"), "long_rows": np.array([0, 2**40], "<i8")}
FACTS = {"rows": 7, "name": "é", "deep": {"a": [1, 2.5, None]}}
FINGERPRINT = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan that was saved."""
    save_plan(tmp_path / "plans" / "p", FINGERPRINT, Plan(ARRAYS, FACTS))
    return tmp_path / "plans" / "p"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store", [[3, 4]])


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True),
        st.tuples(st.sampled_from(["<u2", "<u4", "<i4", "<i8", ">i8", ">u2"]), st.integers(0, 50)),
        max_size=4,
    ),
    st.integers(1, 64),
)
def test_what_is_saved_is_loaded(kinds: dict[str, tuple[str, int]], block: int) -> None:
    generator = np.random.default_rng(0)
    arrays = {name: generator.integers(0, 2**15, size).astype(dtype) for name, (dtype, size) in kinds.items()}
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "BLOCK_BYTES", 8 * block)
        saved = save_plan(Path(place) / "a" / "p", FINGERPRINT, Plan(arrays, FACTS))
        loaded = load_plan(Path(place) / "a" / "p", FINGERPRINT)
        assert loaded is not None and loaded.facts == saved.facts == FACTS
        assert loaded.folder == Path(place) / "a" / "p"
        for plan in (saved, loaded):
            assert plan.arrays.keys() == arrays.keys()
            for name, array in arrays.items():
                assert np.array_equal(plan.arrays[name], array)
                assert plan.arrays[name].dtype == array.dtype.newbyteorder("<")
        assert [path.name for path in (Path(place) / "a").iterdir()] == ["p"]


def test_arrays_are_little_endian_and_aligned(folder: Path) -> None:
    place = (folder / PLAN).read_bytes().index(bytes([3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]))
    assert place % 64 == 0


def test_a_mapped_array_cannot_be_written_to(folder: Path) -> None:
    plan = load_plan(folder, FINGERPRINT)
    assert plan is not None
    with pytest.raises(ValueError, match="read-only"):
        plan.arrays["order"][0] = 1


def test_another_fingerprint_is_refused(folder: Path) -> None:
    with pytest.raises(CorruptStore, match=f"expected fingerprint ffff, found {FINGERPRINT}") as caught:
        load_plan(folder, "ffff")
    assert "delete" in caught.value.hint


def test_every_flipped_byte_is_noticed(folder: Path) -> None:
    data = (folder / PLAN).read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        (folder / PLAN).write_bytes(changed)
        with pytest.raises(CorruptStore, match=str(folder)):
            load_plan(folder, FINGERPRINT)
    (folder / PLAN).write_bytes(data)
    assert load_plan(folder, FINGERPRINT) is not None


@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "gone", "a link out"])
def test_a_file_of_the_wrong_size_is_refused_even_without_checksums(folder: Path, change: str) -> None:
    data = (folder / PLAN).read_bytes()
    (folder / PLAN).unlink()
    if change == "gone":
        assert load_plan(folder, FINGERPRINT, check=False) is None
        return
    contents = {"shorter": data[:-1], "longer": data + b"\1", "empty": b""}
    if change in contents:
        (folder / PLAN).write_bytes(contents[change])
    else:
        (folder.parent / "elsewhere").write_bytes(data)
        (folder / PLAN).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(CorruptStore, match=str(folder)):
        load_plan(folder, FINGERPRINT, check=False)


def test_a_plan_is_made_once_and_kept(store: Store, tmp_path: Path) -> None:
    made: list[Plan] = []

    def make() -> Plan:
        made.append(Plan(ARRAYS, FACTS))
        return made[-1]

    def find(save: bool, plans: Any = tmp_path / "plans") -> Plan:
        return find_plan(store, plans, {"a": 1}, make, size=0, save=save)

    assert find(False) is made[0] and find(True, {}) is made[1]
    assert not (tmp_path / "plans").exists()
    kept = [find(save) for save in (True, True, False)]
    assert len(made) == 3
    for plan in kept:
        assert plan.folder is not None and plan.folder.parent == tmp_path / "plans" and plan.facts == FACTS
        assert {name: array.tolist() for name, array in plan.arrays.items()} == {
            name: array.tolist() for name, array in ARRAYS.items()
        }


def test_a_damaged_plan_is_refused_and_not_made_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Plan:
        raise AssertionError("made again")

    fingerprint = plan_fingerprint(store, {})
    folder = plan_folder(store, fingerprint, tmp_path)
    save_plan(folder, fingerprint, Plan(ARRAYS, FACTS))
    monkeypatch.setattr(plans, "CHECKED_BYTES", 0)  # as if it were large
    data = (folder / PLAN).read_bytes()
    (folder / PLAN).write_bytes(data.replace(bytes([3, 0, 0, 0, 1, 0, 0, 0, 2]), bytes(9)))
    assert find_plan(store, tmp_path, {}, make, size=0, save=True).arrays["order"].tolist() == [0, 0, 0]
    with pytest.raises(CorruptStore, match=r"is damaged: expected checksum"):
        find_plan(store, tmp_path, {}, make, size=0, save=True, check=True)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutOfSpace):
        save_plan(tmp_path / "p", FINGERPRINT, Plan(ARRAYS, FACTS))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write the plan") as caught:
        save_plan(tmp_path / "file" / "p", FINGERPRINT, Plan(ARRAYS, FACTS))
    assert "plans=" in caught.value.hint


def test_what_a_killed_writer_left_disturbs_nobody(folder: Path) -> None:
    (folder.parent / ".p.0badcafe.tmp").write_bytes(b"half")
    plan = save_plan(folder, FINGERPRINT, Plan(ARRAYS, FACTS))
    assert plan.arrays["order"].tolist() == [3, 1, 2]


def test_the_plan_that_was_there_first_stays(folder: Path) -> None:
    inode = (folder / PLAN).stat().st_ino
    plan = save_plan(folder, FINGERPRINT, Plan(ARRAYS, FACTS))
    assert (folder / PLAN).stat().st_ino == inode and plan.facts == FACTS
    assert [path.name for path in folder.parent.iterdir()] == ["p"]
    with pytest.raises(CorruptStore, match="another store"):
        save_plan(folder, "f" * 32, Plan(ARRAYS, FACTS))
    assert [path.name for path in folder.parent.iterdir()] == ["p"]


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from packline.packing.cache import Plan, load_plan, save_plan
place, fingerprint = Path(sys.argv[1]), sys.argv[2]
arrays = {"order": np.arange(200_000, dtype=np.uint32)}
print("ready", flush=True)
sys.stdin.readline()
for number in range(8):
    folder = place / str(number)
    plan = load_plan(folder, fingerprint) or save_plan(folder, fingerprint, Plan(arrays, {}))
    assert np.array_equal(plan.arrays["order"], arrays["order"])
print("done")
"""


def test_processes_that_make_the_same_plans_at_once_all_get_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "plans"), FINGERPRINT]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        out, _ = writer.communicate(timeout=60)
        assert (out, writer.returncode) == ("done\n", 0)
    assert sorted(path.name for path in (tmp_path / "plans").iterdir()) == [str(n) for n in range(8)]


def test_plans_live_in_the_store_or_where_one_says(store: Store, tmp_path: Path) -> None:
    assert plan_folder(store, FINGERPRINT) == store.path / "plans" / FINGERPRINT[:16]
    assert plan_folder(store, FINGERPRINT, tmp_path / "here") == tmp_path / "here" / FINGERPRINT[:16]
    other = make_store(tmp_path / "other", [[3, 5]])
    assert plan_fingerprint(other, {"a": 1}) != plan_fingerprint(store, {"a": 1})


def test_plans_of_a_store_that_cannot_be_written_to_live_in_the_cache(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached = tmp_path / "cache" / "packline" / "plans" / FINGERPRINT[:16]
    assert plan_folder(store, FINGERPRINT) == store.path / "plans" / FINGERPRINT[:16]
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert plan_folder(store, FINGERPRINT) == cached
    # A plan that is somewhere is found there, whoever may write where by now.
    save_plan(cached, FINGERPRINT, Plan(ARRAYS, FACTS))
    assert plan_folder(store, FINGERPRINT) == cached
    save_plan(store.path / "plans" / FINGERPRINT[:16], FINGERPRINT, Plan(ARRAYS, FACTS))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert plan_folder(store, FINGERPRINT) == store.path / "plans" / FINGERPRINT[:16]
