"""A table made by one pass over the lengths: kept in memory if small, otherwise as a plan on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packline.fingerprint import hash_value
from packline.store.reader import StoreReader

LARGE = 8 << 20
"""Bytes above which a table goes to disk, where all processes share it and no restart repeats its pass, which
takes seconds."""


def keep_table(
    store: StoreReader,
    plans: str | Path | None,
    settings: dict[str, Any],
    make: Callable[[], tuple[np.ndarray, dict[str, Any]]],
    *,
    large: int,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Make a table, or map an existing one.

    Args:
        store: store whose lengths the table is computed from.
        plans: folder of plans; default below the store.
        settings: everything the table depends on in addition to the store.
        make: runs the pass and returns the table, and facts about it as JSON values.
        large: bytes that the table may take; determines where it is kept.

    Returns:
        The table and its facts.

    Raises:
        CorruptStore: the plan on disk is damaged, or belongs to another store.
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
