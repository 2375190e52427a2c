"""What a build may use is asked of the kernel, and asked for the right process."""

from __future__ import annotations

from pathlib import Path

import pytest

from packline.jobs import resources
from packline.recipe import RunOptions

MIB = 1 << 20


def test_cores_are_those_of_the_mask_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    for quota, cores in ((None, 6), (2.5, 2), (0.3, 1), (64.0, 6)):
        monkeypatch.setattr(resources, "_cgroup_quota", lambda quota=quota: quota)
        assert resources.usable_cores() == cores


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000\n", 1.0), ("junk", None)],
)
def test_the_quota_is_read_from_the_cgroup(
    text: str, quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text(text)
    assert resources._cgroup_quota() == quota


def test_memory_is_bounded_by_the_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    free = resources.usable_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.usable_memory() <= free * 1.5
    (tmp_path / "memory.max").write_text("123456789\n")
    assert resources.usable_memory() == 123456789


@pytest.mark.parametrize(
    ("workers", "memory_mib", "free_mib", "expected"),
    [
        (None, None, 100_000, (4, 1024)),  # a worker takes 1 GiB where there is more
        (None, None, 2560, (4, 512)),  # a fifth of the free memory stays free
        (2, 8192, 100, (2, 4096)),  # what is asked for is taken, and shared
        (0, 8192, 100, (0, 8192)),  # this process alone
        (None, 1200, 100_000, (2, 600)),  # no more workers than have 512 MiB each
        (3, 512, 100_000, (3, 170)),
    ],
)
def test_memory_is_shared_by_the_workers(
    workers: int | None,
    memory_mib: int | None,
    free_mib: int,
    expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "usable_cores", lambda: 4)
    monkeypatch.setattr(resources, "usable_memory", lambda: free_mib * MIB)
    count, each = resources.count_workers(
        RunOptions(workers=workers, memory_bytes=memory_mib and memory_mib * MIB)
    )
    assert (count, each // MIB) == expected
