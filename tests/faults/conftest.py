"""What holds for all tests of faults."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A build that is broken off in this process leaves its open files to the collector, which warns."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Let the collector find them here, so that no other test hears of it."""
    yield
    gc.collect()
