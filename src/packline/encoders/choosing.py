"""Choice of engines at run time, by script.

No engine is fastest everywhere: one with a cache of words wins on prose and code once the cache is warm,
another on Chinese, Japanese and Korean, in each case by factors. So each batch is sorted by script (estimated
from the bytes per character), each group goes to the engine that is fastest on that script, and the results
are put back in order:

    batch      en zh en en zh          en en en ──> gigatoken ─┐
               sorted by script        zh zh    ──> fastokens ─┴─> en zh en en zh

The choice cannot change the output, so it is revised continuously: a small, bounded share of the text goes to
the engines that are not chosen, and the choice changes when one of them turns out to be clearly faster.
"Clearly", since an engine that sees half of the text is only half as warm: between two engines of about equal
speed, keeping the current one is faster.

Cost: two clock readings per call; a batch that goes to several engines is copied once more. Words are not
inspected.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from packline.encoders.engine import Engine
from packline.encoders.report import EngineName
from packline.ragged import Ragged, concatenate
from packline.sources.texts import Texts

TURNS = 2
"""Number of groups that each engine gets before one is chosen; the first includes one-time costs."""
TRYING = 0.01
"""Share of the time spent on trying engines that are not chosen."""
CLEARLY = 1.4
"""Speed ratio at which the choice changes to another engine."""
MEMORY = 0.5
"""Weight of the previous rate in the moving average; the last group has the rest."""

TOO_LITTLE = 32 << 10
"""Size in bytes below which a group is too small to measure an engine."""
NEARLY_ALL = 0.9

SCRIPTS = ("ascii", "latin", "wide")
"""One byte per character; mostly one; two or three (Greek, Cyrillic, Arabic, Indic, East Asian)."""


@dataclass
class _Engine:
    """Measurements of one engine on one script."""

    groups: int = 0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    """Moving average of the rate."""

    def add(self, size: int, seconds: float) -> None:
        rate = size / max(seconds, 1e-9)
        # The first group includes what is loaded at first use, so it is a poor measurement.
        memory = MEMORY if self.groups > 1 else 0.0
        self.bytes_per_second = memory * self.bytes_per_second + (1 - memory) * rate
        self.seconds += seconds
        self.groups += 1


@dataclass
class _Script:
    """Choice of an engine for one script."""

    engines: dict[EngineName, _Engine]
    chosen: EngineName | None = None

    def pick(self, usual: EngineName | None) -> EngineName:
        """Engine for the next group; `usual` is the engine that gets most of the text."""
        least = min(self.engines, key=lambda name: self.engines[name].groups)
        if self.engines[least].groups < TURNS:
            return least
        best = max(self.engines, key=lambda name: self.engines[name].bytes_per_second)
        chosen = self.chosen or usual or best
        if self.engines[best].bytes_per_second > CLEARLY * self.engines[chosen].bytes_per_second:
            chosen = best
        self.chosen = chosen
        others = {name: engine.seconds for name, engine in self.engines.items() if name != chosen}
        if others and sum(others.values()) < TRYING * self.engines[chosen].seconds:
            return min(others, key=lambda name: others[name])
        return chosen


@dataclass
class Chooser:
    """Several engines behind the interface of one."""

    engines: dict[EngineName, Engine]
    encoded_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of text encoded by each engine."""
    _scripts: dict[int, _Script] = field(default_factory=dict)

    def encode(self, texts: Texts) -> tuple[Ragged, list[EngineName]]:
        """Encode texts; return the ids of each text and the engine that encoded it."""
        if len(self.engines) == 1:
            name, engine = next(iter(self.engines.items()))
            self._count(name, len(texts.data))
            return engine.encode(texts), [name] * len(texts)
        scripts = script_of(texts)
        sizes = np.bincount(scripts, weights=texts.sizes, minlength=len(SCRIPTS)).astype(np.int64)
        calls = self._plan_calls(sizes)
        if len(calls) == 1:
            name, members = calls[0]
            return self._encode(name, members, texts, sizes), [name] * len(texts)
        parts, places, encoded_by = [], [], [calls[0][0]] * len(texts)
        for name, members in calls:
            place = np.flatnonzero(np.isin(scripts, members))
            parts.append(self._encode(name, members, texts.take(place), sizes))
            places.append(place)
            for index in place:
                encoded_by[index] = name
        back = np.empty(len(texts), np.int64)
        back[np.concatenate(places)] = np.arange(len(texts))
        return concatenate(parts).take(back), encoded_by

    def _plan_calls(self, sizes: np.ndarray) -> list[tuple[EngineName, list[int]]]:
        """Assign scripts to engines: together where the choice is settled, alone where they are measured."""
        settled: dict[EngineName, list[int]] = {}
        calls: list[tuple[EngineName, list[int]]] = []
        main = self._scripts.get(int(sizes.argmax()))
        usual = main.chosen if main else None
        for script in np.flatnonzero(sizes).tolist():
            known = self._scripts.setdefault(script, _Script({name: _Engine() for name in self.engines}))
            if sizes[script] < TOO_LITTLE:
                settled.setdefault(known.chosen or usual or self._default(), []).append(script)
                continue
            name = known.pick(usual)
            if name == known.chosen:
                settled.setdefault(name, []).append(script)
            else:
                calls.append((name, [script]))
        return calls + list(settled.items())

    def _default(self) -> EngineName:
        """Engine for the first few small texts of a script: the one that needs no warm-up."""
        return "fastokens" if "fastokens" in self.engines else next(iter(self.engines))

    def _encode(self, name: EngineName, members: list[int], texts: Texts, sizes: np.ndarray) -> Ragged:
        """Call an engine once; it counts as a measurement if nearly all of the text is of one script."""
        started = time.perf_counter()
        ragged = self.engines[name].encode(texts)
        seconds = time.perf_counter() - started
        main = max(members, key=sizes.__getitem__)
        total = int(sizes[members].sum())
        if total >= TOO_LITTLE and sizes[main] > NEARLY_ALL * total:
            self._scripts[main].engines[name].add(total, seconds)
        self._count(name, total)
        return ragged

    def _count(self, name: EngineName, size: int) -> None:
        self.encoded_bytes[name] = self.encoded_bytes.get(name, 0) + size

    def rates(self) -> dict[str, dict[str, float]]:
        """Latest rates in MB/s by script and engine, for reports."""
        return {
            SCRIPTS[script]: {
                name: round(one.bytes_per_second / 1e6, 1) for name, one in known.engines.items()
            }
            for script, known in self._scripts.items()
        }


def script_of(texts: Texts) -> np.ndarray:
    """Index into `SCRIPTS` for each text, int64 `[D]`, from its bytes per character.

    >>> script_of(Texts.of(["plain", "naïve", "漢字"])).tolist()
    [0, 1, 2]
    """
    characters = texts.characters()
    extra = texts.sizes - characters
    return (extra > 0).astype(np.int64) + (extra > characters // 3)
