"""The work folder of a build: at any moment a receipt has all its files, and one job has the lock."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.kills import failing_at

from packline.errors import ResumeMismatch, StoreBusy
from packline.fingerprint import hash_bytes
from packline.jobs import work as work_module
from packline.jobs.folder import BuildIdentity, StoreFolder, digest_inputs, input_differences
from packline.jobs.receipts import CommittedReceipts
from packline.recipe import Recipe, Source
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import Receipt
from packline.store.tables import ShardEntry

IDENTITY = BuildIdentity(
    Recipe(sources=(Source(inputs=("a",)),), tokenizer="t"), "f" * 32, {}, digest_inputs([])
)
OTHER = msgspec.structs.replace(IDENTITY, tokenizer="0" * 32)
FILES = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 1)), max_size=4)


def receipt_of(folder: StoreFolder, unit: str) -> Receipt:
    """Receipt of a unit with two files and a reject, which wait in the work folder."""
    entries = []
    for name in (f"train-{unit}.bin", f"train-{unit}.idx", f"rejects/{unit}.raw"):
        (folder.tmp / Path(name).name).write_bytes(name.encode())
        entries.append(FileEntry(name, len(name), hash_bytes(name.encode())))
    shard = ShardEntry(f"train-{unit}", "train", 1, 1, tuple(entries[:2]))
    return Receipt(unit, "made", (), (shard,), (entries[2],), Ledger(), 0)


def files_of(folder: StoreFolder) -> set[str]:
    found = {path.name for path in folder.path.glob("train-*")}
    return found | {f"rejects/{path.name}" for path in folder.path.glob("rejects/*")}


def receipts_of(folder: StoreFolder) -> dict[str, Receipt]:
    committed = CommittedReceipts(folder.storage)
    committed.refresh()
    return committed.receipts


def listed(folder: StoreFolder) -> set[str]:
    receipts = receipts_of(folder).values()
    shards = {entry.name for receipt in receipts for shard in receipt.shards for entry in shard.files}
    return shards | {entry.name for receipt in receipts for entry in receipt.rejects}


STEPS: dict[str, Callable[[StoreFolder], None]] = {
    "commit": lambda folder: folder.commit(receipt_of(folder, "made-000001")),
    "release": lambda folder: folder.release(),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_receipt_has_all_its_files_whatever_step_fails(tmp_path: Path, step: str) -> None:
    ended = False
    for number in range(30):
        out = tmp_path / str(number)
        with StoreFolder(out) as folder:
            folder.begin(IDENTITY, "{}")
            folder.commit(receipt_of(folder, "made-000000"))
            try:
                with failing_at(number, KeyboardInterrupt(), "fsync", "link", "replace", "unlink"):
                    STEPS[step](folder)
                ended = True
            except KeyboardInterrupt:
                pass
        with StoreFolder(out) as folder:
            assert listed(folder) <= files_of(folder)
            assert folder.identity() is not None or not receipts_of(folder), "of no build, of no other build"
            folder.begin(folder.identity() or OTHER, "{}")
            assert files_of(folder) == listed(folder), "the others are deleted"
        if ended:
            return
    pytest.fail("no run without a failure")


def test_another_build_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    with StoreFolder(tmp_path / "out") as folder:
        assert folder.begin(IDENTITY, "{}") is None and folder.begin(IDENTITY, "{}") == IDENTITY
        with pytest.raises(ResumeMismatch, match="the tokenizer's content: ffffffffffff -> 000000000000"):
            folder.begin(OTHER, "{}")
        folder.release()
        assert folder.begin(OTHER, "{}") is None


def test_a_lock_is_of_the_file_in_the_folder_and_not_of_a_deleted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = fcntl.flock, list[int]()

    def ends_meanwhile(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:  # another job has ended since this one opened the file
            shutil.rmtree(tmp_path / "out")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ends_meanwhile)
    monkeypatch.setattr(work_module, "ENDING_SECONDS", 0)
    with StoreFolder(tmp_path / "out") as folder:
        assert len(calls) == 2
        assert os.path.samestat(os.fstat(folder.descriptor), (folder.work / "lock").stat())
        with pytest.raises(StoreBusy):
            StoreFolder(tmp_path / "out").__enter__()


@given(FILES, FILES)
def test_inputs_differ_in_nothing_only_if_they_are_equal(
    old: list[tuple[str, int]], new: list[tuple[str, int]]
) -> None:
    lines = input_differences(old, new)
    assert bool(lines) == (old != new)
    changed = {name for name in {*dict(old), *dict(new)} if dict(old).get(name) != dict(new).get(name)}
    assert {line.split()[1].rstrip(":") for line in lines if line.startswith("input ")} == changed
