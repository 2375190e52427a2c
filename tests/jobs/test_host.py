"""The host: in what state workers are forked from it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import msgspec

from packline.jobs.executors import Start, encode
from packline.jobs.host import open_runner
from packline.jobs.job import ReportProgress, Runner
from packline.jobs.plan import Unit


class Nothing(Runner[Unit, None]):
    """A runner that notes whether the garbage collector is on while it is opened."""

    def __init__(self) -> None:
        self.collecting = gc.isenabled()

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[None]:
        """Do nothing."""
        yield None


class Settings(msgspec.Struct):
    """Settings without any."""

    def open(self) -> Nothing:
        """Runner."""
        return Nothing()


def test_workers_are_forked_with_the_collector_on_and_nothing_to_look_through() -> None:
    """It is off while the tokenizer is loaded; a worker without it would keep every cycle of its life."""
    before = len(gc.get_objects())
    try:
        runner = open_runner(Start(__name__, "Settings", encode(Settings()), 1, ""))
        assert isinstance(runner, Nothing) and not runner.collecting
        assert gc.isenabled()
        assert len(gc.get_objects()) < before / 10
    finally:
        gc.enable()
        gc.unfreeze()
