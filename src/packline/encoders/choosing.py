"""Choosing engines while running, by script.

No engine is fastest everywhere: one with a cache of words wins on prose and code once it is warm,
another on Chinese, Japanese and Korean, by factors. So each batch is sorted by script (how many bytes
a character takes tells enough), each group goes to the engine that is fastest on its like, and the
results are put back in order. Choosing cannot change a byte, so it may be revised at any time:

    seen of a script      0 MB                 8 MB                        64 MB         256 MB ...
                          engines take turns   the faster one takes all    the other gets another try

A cache warms up, so the last rate counts, and a try is long enough to warm. Cost: two clock readings
a group; a batch of mixed scripts is copied once more. It does not look at words.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from packline.encoders.engine import Engine, EngineName
from packline.ragged import Ragged, concatenate

TURNS_BYTES = 8 << 20
"""Each engine sees about this much of a script before one is chosen."""
FIRST_TRY_BYTES = 64 << 20
TRY_AGAIN_FACTOR = 4
TRY_BYTES = 8 << 20
MEMORY = 0.7
"""Weight of the past in a rate; the rest is the last batch."""

SCRIPTS = ("ascii", "latin", "wide")
"""One byte a character; mostly so; two or three (Greek, Cyrillic, Arabic, Indic, East Asian)."""


@dataclass
class _Rate:
    seen_bytes: int = 0
    bytes_per_second: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        rate = size / max(seconds, 1e-9)
        if self.seen_bytes:
            rate = MEMORY * self.bytes_per_second + (1 - MEMORY) * rate
        self.bytes_per_second = rate
        self.seen_bytes += size


@dataclass
class _Script:
    """What is known of the engines on one script."""

    rates: dict[EngineName, _Rate]
    seen_bytes: int = 0
    next_try: int = FIRST_TRY_BYTES
    trying: EngineName | None = None
    try_ends: int = 0

    def pick(self) -> EngineName:
        if len(self.rates) == 1:
            return next(iter(self.rates))
        least = min(self.rates, key=lambda name: self.rates[name].seen_bytes)
        if self.rates[least].seen_bytes < TURNS_BYTES:
            return least
        if self.trying and self.seen_bytes < self.try_ends:
            return self.trying
        best = max(self.rates, key=lambda name: self.rates[name].bytes_per_second)
        self.trying = None
        if self.seen_bytes >= self.next_try:
            self.next_try *= TRY_AGAIN_FACTOR
            others = {name: rate for name, rate in self.rates.items() if name != best}
            self.trying = max(others, key=lambda name: others[name].bytes_per_second)
            self.try_ends = self.seen_bytes + TRY_BYTES
            return self.trying
        return best


@dataclass
class Chooser:
    """Several engines that look like one."""

    engines: dict[EngineName, Engine]
    _scripts: dict[str, _Script] = field(default_factory=dict)

    def encode(self, texts: list[str], text_bytes: np.ndarray) -> tuple[Ragged, list[EngineName]]:
        """Ids of each text, and which engine each script of the batch went to.

        Args:
            text_bytes: int64 `[D]`, UTF-8 bytes of each text.
        """
        if len(self.engines) == 1:
            name, engine = next(iter(self.engines.items()))
            return engine.encode(texts), [name] * len(texts)
        scripts = script_of(texts, text_bytes)
        present = np.unique(scripts)
        if len(present) == 1:
            ragged, name = self._encode_group(SCRIPTS[present[0]], texts, int(text_bytes.sum()))
            return ragged, [name] * len(texts)
        parts, places, names = [], [], [next(iter(self.engines))] * len(texts)
        for script in present:
            place = np.flatnonzero(scripts == script)
            group = [texts[index] for index in place]
            ragged, name = self._encode_group(SCRIPTS[script], group, int(text_bytes[place].sum()))
            parts.append(ragged)
            places.append(place)
            for index in place:
                names[index] = name
        back = np.empty(len(texts), np.int64)
        back[np.concatenate(places)] = np.arange(len(texts))
        return concatenate(parts).take(back), names

    def _encode_group(self, script: str, texts: list[str], size: int) -> tuple[Ragged, EngineName]:
        known = self._scripts.setdefault(script, _Script({name: _Rate() for name in self.engines}))
        name = known.pick()
        started = time.perf_counter()
        ragged = self.engines[name].encode(texts)
        known.rates[name].add(size, time.perf_counter() - started)
        known.seen_bytes += size
        return ragged, name

    def shares(self) -> dict[str, dict[str, float]]:
        """By script and engine: the share of bytes and the last rate in MB/s, for reports."""
        return {
            script: {
                name: round(rate.bytes_per_second / 1e6, 1)
                for name, rate in known.rates.items()
                if rate.seen_bytes
            }
            for script, known in self._scripts.items()
        }


def script_of(texts: list[str], text_bytes: np.ndarray) -> np.ndarray:
    """Places in `SCRIPTS`, int64 `[D]`, by bytes a character.

    >>> script_of(["plain", "naïve", "漢字"], np.array([5, 6, 6])).tolist()
    [0, 1, 2]
    """
    characters = np.fromiter(map(len, texts), np.int64, len(texts))
    extra = text_bytes - characters
    return (extra > 0).astype(np.int64) + (extra > characters // 3)
