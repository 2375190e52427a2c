"""Signals that interrupt: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a terminal that is closed.

The process that was asked for the work is interrupted by each of them, once: it clears up and says how to
resume. The processes that work for it ignore them, because a scheduler sends a signal to all processes of a
job at once; they end when the one above them says so, or with it.
"""

from __future__ import annotations

import signal
import threading

INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """Let each signal raise `KeyboardInterrupt(number)`, once; what is ignored already (`nohup`) stays so."""

    interrupted = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal interrupted
        if not interrupted:  # one is enough: what follows is clearing up
            interrupted = True
            raise KeyboardInterrupt(number)

    if threading.current_thread() is threading.main_thread():
        for number in INTERRUPTING:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, interrupt)


def ignore_signals() -> None:
    """Leave it to the process above this one what an interruption means."""
    for number in INTERRUPTING:
        signal.signal(number, signal.SIG_IGN)


def signal_of(error: KeyboardInterrupt) -> int:
    """The number of the signal that interrupted.

    >>> signal_of(KeyboardInterrupt()), signal_of(KeyboardInterrupt(signal.SIGTERM))
    (2, 15)
    """
    return int(error.args[0]) if error.args else int(signal.SIGINT)
