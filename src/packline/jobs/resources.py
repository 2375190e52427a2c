"""Resources available to this process: cores, memory, disk, as reported by the kernel.

A container's quota and a process's affinity are often far below the machine's core count; starting
workers for all cores would only make them compete.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from pathlib import Path

from packline.errors import OutOfSpace
from packline.recipe import RunOptions

GIB = 1 << 30
MEMORY_A_WORKER = 1 * GIB
SMALLEST_WORKER = GIB // 2


def usable_cores() -> int:
    """Cores of the affinity mask, bounded by the cgroup's CPU quota.

    >>> 1 <= usable_cores() <= (os.cpu_count() or 1)
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota) if quota else cores))


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the CPU quota amounts to: cgroup v2, then v1."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else max(int(quota) / int(period), 1.0)
    except (OSError, ValueError):
        pass
    try:
        limit = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return max(limit / period_us, 1.0) if limit > 0 else None
    except (OSError, ValueError):
        return None


def usable_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process and its children may use together: free memory, or the cgroup's limit."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    except OSError:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limits.append(pages // 2)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int((root / name).read_text()))
        except (OSError, ValueError):
            continue
    return min(limits)


def count_workers(options: RunOptions) -> tuple[int, int]:
    """Number of workers, and bytes of memory for each.

    >>> count_workers(RunOptions(workers=2, memory_bytes=2 << 30))
    (2, 1073741824)
    """
    available = options.memory_bytes or int(usable_memory() * 0.8)
    workers = options.workers if options.workers is not None else usable_cores()
    if options.workers is None:
        workers = max(1, min(workers, available // SMALLEST_WORKER))
    each = available // max(workers, 1)
    return workers, each if options.memory_bytes else min(each, MEMORY_A_WORKER)


def free_disk(folder: Path) -> int:
    """Free bytes on the disk of a folder, or of its first existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_disk(folder: Path, needed: int, purpose: str) -> None:
    """Refuse to begin what cannot finish.

    Args:
        needed: bytes still to be written.
        purpose: what they are for.

    Raises:
        OutOfSpace: fewer bytes are free.
    """
    if needed > (free := free_disk(folder)):
        raise OutOfSpace(
            f"the disk of {folder} is too small for {purpose}: expected {needed:,} bytes free, "
            f"found {free:,} bytes free",
            hint="make room, or choose an --out on another disk; finished units are kept",
        )


def resident_memory() -> int:
    """Resident memory of this process in bytes, including memory shared with its parent."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_memory()


def peak_memory() -> int:
    """Peak resident memory of this process, in bytes."""
    try:
        # Not getrusage: it still counts the process before it became this program.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def process_age() -> float:
    """Seconds since this process was started, interpreter and imports included."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.process_time()


def keep_freed_memory() -> None:
    """Make glibc keep freed buffers of many MB for the next batch instead of returning each to the kernel.

    Otherwise every buffer's pages are zeroed and mapped again: a tenth of the time of a batch. Arrow has its
    own allocator, which returns memory just as eagerly, so it is configured to use glibc's.
    """
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    m_mmap_threshold, m_trim_threshold = -3, -1
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 256 << 20)
    except (OSError, AttributeError):
        return


def die_with_parent() -> None:
    """On Linux: have the kernel end this process when its parent ends, for whatever reason."""
    pr_set_pdeathsig, sigkill = 1, 9
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill)
    except (OSError, AttributeError):
        return
