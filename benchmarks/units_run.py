"""A measurement of units without work."""

from __future__ import annotations

import msgspec


class UnitsRun(msgspec.Struct, frozen=True, kw_only=True):
    """Units without work, run by local processes; and the plan of a build with as many."""

    units: int
    workers: int
    round: int
    seconds: float
    """From the start of the job to its end, without the start of the interpreter."""
    driver_bytes: int
    """Memory that the job adds to the driver, at its peak."""
    plan_bytes: int
    plan_write_seconds: float
    plan_read_seconds: float
    busy_cores: float = 0.0
    """Cores busy with other work when the command began."""
