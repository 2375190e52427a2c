"""A table that one pass over the lengths makes: kept in memory while it is small, else as a plan on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packline.fingerprint import hash_value
from packline.store.reader import Store

LARGE = 8 << 20
"""Bytes of a table that go to the disk: all processes share it there, and no restart repeats the seconds of
its pass."""


def keep_table(
    store: Store,
    plans: str | Path | None,
    settings: dict[str, Any],
    make: Callable[[], tuple[np.ndarray, dict[str, Any]]],
    *,
    large: int,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Make a table, or map the one that was made before.

    Args:
        store: whose lengths the table is made of.
        plans: the folder of plans; default below the store.
        settings: what the table depends on besides the store.
        make: the pass: the table, and facts about it as JSON knows them.
        large: bytes that the table may take; decides where it is kept.

    Returns:
        The table and its facts.

    Raises:
        CorruptStore: the plan on disk is damaged, or of another store.
    """
    if large <= LARGE:
        return make()
    from packline.packing.plan import Plan, keep_plan, plan_folder

    def make_plan() -> Plan:
        table, facts = make()
        return Plan({"table": table}, facts)

    fingerprint = hash_value({"store": store.manifest.checksum, "table": settings})
    plan = keep_plan(plan_folder(store, fingerprint, plans), fingerprint, make_plan)
    return plan.arrays["table"], plan.facts
