"""Passes over the provenance of many shards: their documents as ranges."""

from __future__ import annotations

from typing import NamedTuple

from packline.store.shard import Shard


class ShardPlaces(NamedTuple):
    """A shard, and the range of its documents among those of a pass."""

    shard: Shard
    number: int
    """Number of the shard in its store."""
    start: int
    stop: int
