"""Processes that are started before a command line is parsed, since loading an encoder takes longest.

    little text   an engine in a separate process (`separate_engine`); this one loads the reference
    other text    the host of the workers, with the engine that takes longest to load

An expectation decides only what is loaded ahead: a build that does not need it ends the process, or loads
something else. This module loads nothing heavy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from packline.encoders import LITTLE_TEXT, separate_engine

if TYPE_CHECKING:
    from packline.jobs.host_process import HostProcess

MOST_FILES = 1000
"""Number of files that are looked at before the processes are started."""
BUILD = "packline.jobs.build_runner"
"""Module that the host of a build loads."""
DECIDING = {"--engine", "--special-tokens", "--workers", "--on"}
"""Settings of the encoder and its place: with them, nothing is started ahead."""

_HOSTS: list[HostProcess] = []
"""The host that was started ahead, until a job takes it."""


def start_for(words: Sequence[str]) -> None:
    """Start a process for a command line that names a tokenizer.

    Args:
        words: words of the command line.
    """
    names = [word.partition("=")[0] for word in words]
    if "--tokenizer" not in names or DECIDING.intersection(names):
        return
    place = names.index("--tokenizer")
    tokenizer = words[place].partition("=")[2] or "".join(words[place + 1 : place + 2])
    inputs = list(takewhile(lambda word: not word.startswith("-"), words[1:]))
    if words[0] == "build" and inputs and not looks_little(inputs):
        from packline.jobs.host_process import HostProcess

        _HOSTS.append(HostProcess(BUILD, tokenizer))
    else:
        separate_engine.start_ahead(tokenizer)


def take_host() -> HostProcess | None:
    """The host that was started ahead, if any."""
    return _HOSTS.pop() if _HOSTS else None


def end_ahead() -> None:
    """End the processes that were started ahead and are not used."""
    separate_engine.stop_ahead()
    while (host := take_host()) is not None:
        host.close(kill=True)


def looks_little(inputs: Iterable[str]) -> bool:
    """True if inputs are a few local files, and folders of them, with little text together.

    Others may be found to have little text later: the processes have then been started for nothing.
    """
    left, text = MOST_FILES, 0
    for given in inputs:
        paths: list[str | os.DirEntry[str]] = [given]
        try:
            if os.path.isdir(given):
                with os.scandir(given) as entries:
                    paths = list(islice(entries, left + 1))
            states = [os.stat(path) for path in paths]
        except OSError:
            return False
        left -= len(states)
        text += sum(state.st_size for state in states)
        if left < 0 or text >= LITTLE_TEXT or not all(stat.S_ISREG(state.st_mode) for state in states):
            return False
    return True
