"""Random kills of a build's processes, again and again, until its store is complete and compared.

    start the build ──> wait a moment ──> SIGKILL of one of its processes ──> continues, or is started again

Victims: the driver, the host, a worker; on Ray also a task and a whole node, which another replaces.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.raylets import Raylets
from tests.faults.processes import processes_of
from tests.jobs.builds import set_sizes_everywhere, start_build
from tests.laws.reference import write_corpus

MOST_SECONDS = 1.5
"""Longest time between a start and a kill."""
EACH = 4
"""Kills of one store before it may finish."""


@contextmanager
def three_files(folder: Path, documents: list[str], unit_bytes: int) -> Iterator[Path]:
    """Folder of a plain file of ranges, a stream of slices and a columnar file, in units of a size."""
    third = len(documents) // 3
    contents = [
        ("jsonl", documents[:third], True),
        ("jsonl.zst", documents[third : 2 * third], True),
        ("parquet", documents[2 * third :], False),
    ]
    write_corpus(folder / "in", contents)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes_everywhere(patch, folder / "site", unit_bytes)
        yield folder / "in"


class Chaos:
    """Builds of one corpus under random kills.

    Args:
        inputs: folder of the corpus.
        compare: checks a finished store, by its place.
        raylets: cluster for builds on Ray; None for builds on this machine.
        environment: further variables of the builds.
    """

    def __init__(
        self,
        inputs: Path,
        tokenizer: Path,
        compare: Callable[[str], None],
        seed: int,
        *,
        raylets: Raylets | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._inputs, self._tokenizer, self._compare = inputs, tokenizer, compare
        self._raylets, self._random = raylets, random.Random(seed)
        self._environment = dict(environment or {}) | (raylets.environment if raylets else {})
        self._nodes = [raylets.add(), raylets.add()] if raylets else []
        self.kills: dict[str, int] = {}
        """Number of kills by victim."""

    def run(self, places: Callable[[int], str], kills: int) -> None:
        """Build stores one after another, until this number of processes were killed."""
        number = 0
        while sum(self.kills.values()) < kills:
            left = min(EACH, kills - sum(self.kills.values()))
            self._build(places(number), left)
            number += 1

    def _build(self, place: str, kills: int) -> None:
        """Build one store, with at most this number of kills."""
        for _ in range(200):
            process = self._start(place)
            while kills and process.poll() is None:
                time.sleep(self._random.uniform(0.2, MOST_SECONDS))
                if process.poll() is None and self._kill_one(process):
                    kills -= 1
            text = process.communicate(timeout=200)[0]
            if process.returncode == 0:
                break
            died = process.returncode == -signal.SIGKILL or "ended unexpectedly" in text or "killed" in text
            assert died, f"{place}: exit code {process.returncode}: {text}"
        self._compare(place)

    def _start(self, place: str) -> subprocess.Popen[str]:
        on = "ray" if self._raylets else "local"
        return start_build(
            Path(place) if "://" not in place else place,  # type: ignore[arg-type]
            self._inputs,
            self._tokenizer,
            self._environment,
            on=on,
            engine="tokenizers",
            workers=1 if self._raylets else 2,
            val_fraction=0.1,
        )

    def _kill_one(self, process: subprocess.Popen[str]) -> bool:
        """Kill a random process of the build, of the kind killed least; False if it has just ended."""
        root = process.pid if self._raylets is None else self._raylets.pid
        hosts = processes_of("packline.jobs.host", root)
        tasks = list(processes_of("ray::run_slice", root))
        first = [pid for pid, parent in hosts.items() if parent in (process.pid, *tasks)]
        workers = [pid for pid, parent in hosts.items() if parent in first]
        choices = {"driver": [process.pid], "host": first, "worker": workers, "task": tasks}
        choices["node"] = self._nodes
        there = [kind for kind, victims in choices.items() if victims]
        least = min(self.kills.get(kind, 0) for kind in there)
        victim = self._random.choice([kind for kind in there if self.kills.get(kind, 0) == least])
        if victim == "node" and self._raylets is not None:
            self._raylets.kill(self._nodes.pop(self._random.randrange(len(self._nodes))))
            self._nodes.append(self._raylets.add())
        else:
            try:
                os.kill(self._random.choice(choices[victim]), signal.SIGKILL)
            except ProcessLookupError:
                return False
        self.kills[victim] = self.kills.get(victim, 0) + 1
        return True
