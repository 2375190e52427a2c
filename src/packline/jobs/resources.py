"""Resources of this process: cores, memory and disk as reported by the kernel, and child processes.

A document is encoded as a whole. One that does not fit into the memory of a worker stops the build, and is
not left out: the contents of a store depend on the recipe alone, never on the memory of a machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from packline.encoders import EngineName
from packline.errors import OutOfMemory, OutOfSpace
from packline.jobs.signals import ignore_signals
from packline.recipe import RunOptions
from packline.storage.requests import process_cores

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup")
MEMORY_A_WORKER = 1 * GIB
SMALLEST_WORKER = GIB // 2


def usable_cores() -> int:
    """Cores of the affinity mask, bounded by the cgroup's CPU quota."""
    cores, quota = process_cores(), _cgroup_quota()
    return max(1, min(cores, int(quota) if quota else cores))


def _cgroup(*names: str) -> list[str]:
    """Words of the first of these files of the control group that there is, of version 2 or 1."""
    for name in names:
        with suppress(OSError):
            return (CGROUP / name).read_text().split()
    return []


def _cgroup_quota() -> float | None:
    words = _cgroup("cpu.max") or [*_cgroup("cpu/cpu.cfs_quota_us"), *_cgroup("cpu/cpu.cfs_period_us")]
    with suppress(ValueError):
        quota, period = map(int, words)
        return max(quota / period, 1.0) if quota > 0 else None
    return None


def usable_memory() -> int:
    """Bytes that this process and its children may use together: free memory, or the cgroup's limit."""
    free = _proc_kib("/proc/meminfo", "MemAvailable:")
    if free is None:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    words = _cgroup("memory.max", "memory/memory.limit_in_bytes")
    return min([free, *(int(word) for word in words if word.isdecimal())])


def _proc_kib(path: str, name: str) -> int | None:
    """A number of a file of the kernel in bytes; None where there is no such file."""
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def count_workers(options: RunOptions) -> tuple[int, int]:
    """Number of workers, and bytes of memory for each."""
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
    """Refuse to begin what cannot finish: `needed` bytes are still to be written."""
    if needed > (free := free_disk(folder)):
        raise OutOfSpace(
            f"the disk of {folder} is too small for {purpose}: expected {needed:,} bytes free, "
            f"found {free:,} bytes free",
            hint="make room, or choose an --out on another disk; finished units are kept",
        )


def resident_memory() -> int:
    """Resident memory of this process in bytes, including memory shared with its parent."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_memory()


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    # Not getrusage first: it still counts the process before it became this program.
    if (peak := _proc_kib("/proc/self/status", "VmHWM:")) is not None:
        return peak
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


READING = 8
"""Bytes of memory per byte of a record: the growing buffer, the text as a string, the text as UTF-8."""
ENCODING: dict[EngineName, int] = {
    "gigatoken": 16,
    "fastokens": 18,
    "nanotoken": 16,
    "tokenizers": 160,
}
"""Bytes of memory per byte of text, reading included. Measured on documents of 11 to 80 MB of real text:
up to 14.5, 16.2, 11 and 140.
"""
LEAST = 1 << 20
"""Lower bound of the limits, in bytes: batches are about this large."""
LARGE = 4 << 20
"""Size from which documents are checked, in bytes."""
UNBOUNDED = 1 << 62


class Room(msgspec.Struct, frozen=True):
    """Largest record and largest document that fit into the memory of a worker, in bytes."""

    record: int = UNBOUNDED
    document: int = UNBOUNDED
    memory: int = UNBOUNDED
    """Memory of a worker, in bytes."""
    factor: int = 0
    """Bytes of memory per byte of encoded text."""

    def refuse(self, place: str, size: int) -> None:
        """Stop at a document that does not fit, of this size in bytes."""
        base = max(self.memory - self.factor * self.document, 0)
        needed = -(-(base + self.factor * size) // (1 << 28)) / 4
        raise OutOfMemory(
            f"{place}: a document of {size / 1e6:,.1f} MB does not fit into the memory of a worker: expected "
            f"at most {self.document / 1e6:,.1f} MB with {self.memory / 2**30:,.2f} GiB",
            hint=f"give each worker {needed:,.2f} GiB (--memory is for all of them together; --workers is "
            "their number), or start a new build in which larger documents are bad records: "
            f"max_document_bytes = {max(self.document >> 20, 1) << 20} in a recipe",
        )


T = TypeVar("T")


def _call_libc(name: str, *arguments: int) -> None:
    import ctypes

    with suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), name)(*arguments)


def die_with_parent() -> None:
    """On Linux: have the kernel end this process when its parent ends, for whatever reason."""
    pr_set_pdeathsig, sigkill = 1, 9
    _call_libc("prctl", pr_set_pdeathsig, sigkill)


def keep_freed_memory() -> None:
    """Make glibc keep freed buffers of many MB for the next batch instead of returning each to the kernel.

    Otherwise every buffer's pages are zeroed and mapped again: a tenth of the time of a batch. Arrow has its
    own allocator, which returns memory just as eagerly, so it is configured to use glibc's.
    """
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    m_mmap_threshold, m_trim_threshold = -3, -1
    _call_libc("mallopt", m_mmap_threshold, 1 << 30)
    _call_libc("mallopt", m_trim_threshold, 256 << 20)


def release_freed_memory() -> None:
    _call_libc("malloc_trim", 0)


def run_in_child(compute: Callable[[], T]) -> T:
    """Compute in a forked process, as libraries that were used in this one could no longer be forked."""
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def run(pipe: Connection) -> None:
        die_with_parent()
        ignore_signals()
        ours.close()
        pipe.send(compute())

    process = fork.Process(target=run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        found: T = ours.recv()
        return found
    except EOFError:
        return compute()  # the child died: trying again in this process shows the error
    finally:
        ours.close()
        process.join()
