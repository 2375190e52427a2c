"""State of processes: signals, the end with their parent, memory; a function in a child.

Signals that interrupt are Ctrl-C, SIGTERM of a scheduler, SIGHUP of a closed terminal. The main process is
interrupted by each of them, once: it cleans up and reports how to resume. Its child processes ignore them,
because a scheduler signals all processes of a job at once; they end when their parent stops them, or with it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """Let each signal raise `KeyboardInterrupt(number)`, once; ignored signals (`nohup`) stay ignored."""

    interrupted = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal interrupted
        if not interrupted:  # one is enough: cleaning up follows
            interrupted = True
            raise KeyboardInterrupt(number)

    if threading.current_thread() is threading.main_thread():
        for number in INTERRUPTING:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, interrupt)


def ignore_signals() -> None:
    """Leave the handling of interruptions to the parent process."""
    for number in INTERRUPTING:
        signal.signal(number, signal.SIG_IGN)


def signal_of(error: KeyboardInterrupt) -> int:
    """Number of the signal that interrupted.

    >>> signal_of(KeyboardInterrupt()), signal_of(KeyboardInterrupt(signal.SIGTERM))
    (2, 15)
    """
    return int(error.args[0]) if error.args else int(signal.SIGINT)


def die_with_parent() -> None:
    """On Linux: have the kernel end this process when its parent ends, for whatever reason."""
    import ctypes

    pr_set_pdeathsig, sigkill = 1, 9
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill)
    except (OSError, AttributeError):
        return


def keep_freed_memory() -> None:
    """Make glibc keep freed buffers of many MB for the next batch instead of returning each to the kernel.

    Otherwise every buffer's pages are zeroed and mapped again: a tenth of the time of a batch. Arrow has its
    own allocator, which returns memory just as eagerly, so it is configured to use glibc's.
    """
    import ctypes

    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    m_mmap_threshold, m_trim_threshold = -3, -1
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 256 << 20)
    except (OSError, AttributeError):
        return


def run_in_child(result: type[T], compute: Callable[[], T]) -> T:
    """Compute in a forked process, as libraries that were used in this one could no longer be forked.

    Args:
        result: type of the result, which JSON can represent.
    """
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def run(pipe: Connection) -> None:
        die_with_parent()
        ignore_signals()
        ours.close()
        pipe.send_bytes(msgspec.json.encode(compute()))

    process = fork.Process(target=run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        return msgspec.json.decode(ours.recv_bytes(), type=result)
    except EOFError:
        return compute()  # the child died: trying again in this process shows the error
    finally:
        ours.close()
        process.join()
