"""Choosing engines while running, by script.

No engine is fastest everywhere: one with a cache of words wins on prose and code once it is warm,
another on Chinese, Japanese and Korean, by factors. So each batch is sorted by script (how many bytes
a character takes tells enough), each group goes to the engine that is fastest on its like, and the
results are put back in order:

    batch      en zh en en zh          en en en ──> gigatoken ─┐
               sorted by script        zh zh    ──> fastokens ─┴─> en zh en en zh

Choosing cannot change a byte, so it is revised all the time: a small, bounded share of the text goes to
the engine that is not chosen, and when that turns out clearly faster, the choice changes. Clearly, since
an engine that sees half of the text is only half as warm: with two that are about equal, staying wins.

Cost: two clock readings a call; a batch that goes to several engines is copied once more. It does not
look at words.
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
"""Groups that each engine gets before one is chosen: the first pays for what is only done once."""
TRYING = 0.01
"""The share of the time that goes to trying engines that are not chosen."""
CLEARLY = 1.4
"""How many times faster another engine must be for the choice to change."""
MEMORY = 0.5
"""Weight of the past in a rate; the rest is the last group."""

TOO_LITTLE = 32 << 10
"""Bytes below which a group tells nothing of an engine."""
NEARLY_ALL = 0.9

SCRIPTS = ("ascii", "latin", "wide")
"""One byte a character; mostly so; two or three (Greek, Cyrillic, Arabic, Indic, East Asian)."""


@dataclass
class _Engine:
    """What is known of one engine on one script."""

    groups: int = 0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    """Of late."""

    def add(self, size: int, seconds: float) -> None:
        rate = size / max(seconds, 1e-9)
        # The first group pays for loading what is loaded at first use, so it says little.
        memory = MEMORY if self.groups > 1 else 0.0
        self.bytes_per_second = memory * self.bytes_per_second + (1 - memory) * rate
        self.seconds += seconds
        self.groups += 1


@dataclass
class _Script:
    """Which engine is chosen for one script."""

    engines: dict[EngineName, _Engine]
    chosen: EngineName | None = None

    def pick(self, usual: EngineName | None) -> EngineName:
        """The engine for the next group; `usual` is the one that most of the text goes to."""
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
    """Several engines that look like one."""

    engines: dict[EngineName, Engine]
    encoded_bytes: dict[str, int] = field(default_factory=dict)
    """Text that each engine has encoded."""
    _scripts: dict[int, _Script] = field(default_factory=dict)

    def encode(self, texts: Texts) -> tuple[Ragged, list[EngineName]]:
        """Ids of each text, and which engine encoded it."""
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
        """Which scripts go to which engine: together where the choice is settled, alone to be measured."""
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
        """For the first few small texts of a script: the engine that needs no warming."""
        return "fastokens" if "fastokens" in self.engines else next(iter(self.engines))

    def _encode(self, name: EngineName, members: list[int], texts: Texts, sizes: np.ndarray) -> Ragged:
        """One call of an engine; it counts as a measurement where nearly all of the text is of one script."""
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
        """By script and engine: the last rate in MB/s, for reports."""
        return {
            SCRIPTS[script]: {
                name: round(one.bytes_per_second / 1e6, 1) for name, one in known.engines.items()
            }
            for script, known in self._scripts.items()
        }


def script_of(texts: Texts) -> np.ndarray:
    """Places in `SCRIPTS`, int64 `[D]`, by bytes a character.

    >>> script_of(Texts.of(["plain", "naïve", "漢字"])).tolist()
    [0, 1, 2]
    """
    characters = texts.characters()
    extra = texts.sizes - characters
    return (extra > 0).astype(np.int64) + (extra > characters // 3)
