"""Stores of wanted tokens, and the same figures counted slowly, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packline.facade import Store
from packline.testing import EOD_ID, make_store

Bodies = Sequence[Sequence[int]]


def store_of(folder: Path, shards: Sequence[Bodies], **settings: Any) -> Store:
    """A store of these documents, a list a shard; each is given its end of document. Ids from 1 on."""
    store = make_store(folder, [[len(body) + 1 for body in bodies] for bodies in shards], **settings)
    for shard, bodies in zip(store.manifest.shards, shards, strict=True):
        tokens = [token for body in bodies for token in (*body, EOD_ID)]
        np.array(tokens, store.dtype).tofile(folder / f"{shard.name}.bin")
    return Store(folder)


def most_common_share(values: Sequence[Any]) -> float:
    return max(Counter(values).values()) / len(values) if values else 0.0


def grams(body: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(body[place : place + 4]) for place in range(len(body) - 3)]


def longest_run(body: Sequence[int]) -> int:
    longest = run = 0
    for place, token in enumerate(body):
        run = run + 1 if place and body[place - 1] == token else 1
        longest = max(longest, run)
    return longest


def what_is_wrong(body: Sequence[int], special: Sequence[int] = (EOD_ID,)) -> dict[str, float]:
    """The reasons of `suspicious`, by definition."""
    found: dict[str, float] = {}
    if all(token in special for token in body):
        found["no text"] = 1.0
    if len(body) >= 32 and (share := most_common_share(grams(body))) >= 0.3:
        found["repetition"] = share
    if len(body) >= 32 and (share := most_common_share(list(body))) >= 0.5:
        found["one token"] = share
    if (run := longest_run(body)) >= 100:
        found["long run"] = float(run)
    return found


def equal_groups(bodies: Bodies) -> list[list[int]]:
    """Numbers of documents that are the same, groups of two and more."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, body in enumerate(bodies):
        groups.setdefault(tuple(body), []).append(number)
    return [group for group in groups.values() if len(group) > 1]
