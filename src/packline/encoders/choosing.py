"""Choosing engines while running, by script.

No engine is fastest everywhere: one with a cache of words wins on prose and code once it is warm,
another on Chinese, Japanese and Korean, by factors. So each batch is sorted by script (how many bytes
a character takes tells enough), each group goes to the engine that is fastest on its like, and the
results are put back in order:

    batch      en zh en en zh          en en en ──> gigatoken ─┐
               sorted by script        zh zh    ──> fastokens ─┴─> en zh en en zh

Choosing cannot change a byte, so it is revised all the time. A cache warms up, so the last rates count,
and the engine that is behind gets another try whenever all its tries together have cost less than a
twentieth of the time: what trying can cost is bounded, whatever the text.

Cost: two clock readings a group; a batch of mixed scripts is copied once more. It does not look at words.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from packline.encoders.engine import Engine, EngineName
from packline.ragged import Ragged, concatenate

TRYING = 0.05
"""The share of the time that may be lost to engines that turn out slower."""
MEMORY = 0.5
"""Weight of the past in a rate; the rest is the last group."""

SCRIPTS = ("ascii", "latin", "wide")
"""One byte a character; mostly so; two or three (Greek, Cyrillic, Arabic, Indic, East Asian)."""


@dataclass
class _Script:
    """What is known of the engines on one script."""

    rates: dict[EngineName, float] = field(default_factory=dict)
    """Bytes a second, of late."""
    seconds: float = 0.0
    lost_seconds: float = 0.0
    """What the groups that went to a slower engine would have saved with the fastest."""

    def pick(self, engines: Iterable[EngineName]) -> EngineName:
        for name in engines:
            if name not in self.rates:
                return name
        best, *others = sorted(self.rates, key=lambda name: -self.rates[name])
        return others[0] if others and self.lost_seconds < TRYING * self.seconds else best

    def add(self, name: EngineName, size: int, seconds: float) -> None:
        rate = size / max(seconds, 1e-9)
        others = [other for engine, other in self.rates.items() if engine != name]
        self.seconds += seconds
        self.lost_seconds += max(seconds - size / max(others), 0.0) if others else 0.0
        self.rates[name] = MEMORY * self.rates[name] + (1 - MEMORY) * rate if name in self.rates else rate


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
        known = self._scripts.setdefault(script, _Script())
        name = known.pick(self.engines)
        started = time.perf_counter()
        ragged = self.engines[name].encode(texts)
        known.add(name, size, time.perf_counter() - started)
        return ragged, name

    def rates(self) -> dict[str, dict[str, float]]:
        """By script and engine: the last rate in MB/s, for reports."""
        return {
            script: {name: round(rate / 1e6, 1) for name, rate in known.rates.items()}
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
