"""Speed of engines on a sample: each script of it, with each engine, twice.

Engines cache words, so the first pass measures the beginning of a build and the second a long build of
similar text. Only the beginning of a long text is used. Cost: two encodings of the sample per engine.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from packline.encoders.choosing import SCRIPTS, script_of
from packline.encoders.engine import Engine
from packline.encoders.parity import beginning_of
from packline.sources.texts import Texts

LONGEST_TEXT = 256 << 10
REFERENCE_BYTES = 256 << 10
"""Bytes to time the reference on: it is about 100 times slower, so less text is enough."""


class Timing:
    """Encodes the sample with every engine, script by script, and keeps the times of both passes."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._engines = engines
        self._groups: dict[int, list[Texts]] = {}
        self._bytes: Counter[int] = Counter()
        self._cold: dict[tuple[int, str], list[float]] = {}
        self._warm: dict[tuple[int, str], list[float]] = {}

    def encode(self, texts: list[str]) -> tuple[int, int]:
        """Bytes and tokens of these texts (only the beginning of a long one)."""
        if list(self._engines) == ["tokenizers"]:
            texts = _first_bytes(texts, REFERENCE_BYTES)
        parts = Texts.of([beginning_of(text, LONGEST_TEXT) for text in texts])
        scripts = script_of(parts)
        tokens = count = 0
        for script in np.unique(scripts).tolist():
            group = parts.take(np.flatnonzero(scripts == script))
            size = len(group.data)
            for name, engine in self._engines.items():
                seconds, count = _timed(engine, group)
                _add(self._cold, (script, name), size, seconds)
            tokens += count
            self._groups.setdefault(script, []).append(group)
            self._bytes[script] += size
        return len(parts.data), tokens

    def again(self) -> None:
        """Run the second pass, over everything encoded."""
        for script, groups in self._groups.items():
            for name, engine in self._engines.items():
                seconds = sum(_timed(engine, group)[0] for group in groups)
                _add(self._warm, (script, name), self._bytes[script], seconds)

    def seconds_a_byte(self) -> tuple[float, float]:
        """Warm and cold seconds per byte, with the best engine of each script."""
        size = max(sum(self._bytes.values()), 1)
        warm = cold = 0.0
        for script, share in self._bytes.items():
            warm += share * min(_each(self._warm, script))
            cold += share * min(_each(self._cold, script))
        return warm / size, cold / size

    def rates(self) -> dict[str, dict[str, float]]:
        """Warm MB/s by script and engine."""
        return {
            SCRIPTS[script]: {
                name: round(1e-6 * self._warm[script, name][0] / max(self._warm[script, name][1], 1e-9), 1)
                for name in self._engines
            }
            for script in sorted(self._bytes)
        }


def _timed(engine: Engine, texts: Texts) -> tuple[float, int]:
    started = time.perf_counter()
    ragged = engine.encode(texts)
    return time.perf_counter() - started, len(ragged.tokens)


def _add(times: dict[tuple[int, str], list[float]], key: tuple[int, str], size: int, seconds: float) -> None:
    known = times.setdefault(key, [0.0, 0.0])
    known[0] += size
    known[1] += seconds


def _each(times: dict[tuple[int, str], list[float]], script: int) -> list[float]:
    return [seconds / max(size, 1) for (one, _), (size, seconds) in times.items() if one == script]


def _first_bytes(texts: list[str], size: int) -> list[str]:
    step = max(-(-sum(map(len, texts)) // size), 1)
    return texts[::step]
