"""Signals that interrupt a job.

Signals that interrupt are Ctrl-C, SIGTERM of a scheduler, and SIGHUP of a closed terminal. The main process
is interrupted by each of them, once: it cleans up and reports how to resume. Its child processes ignore them,
because a scheduler signals all processes of a job at once; they end when their parent stops them, or with it.

This imports nothing heavy: every command begins with it.
"""

from __future__ import annotations

import signal
import threading

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
    """Number of the signal that interrupted."""
    return int(error.args[0]) if error.args else int(signal.SIGINT)
