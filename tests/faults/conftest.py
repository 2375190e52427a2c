"""What holds for all tests of faults."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.laws.reference import write_corpus

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


def write_thirds(folder: Path, documents: list[str], times: int) -> None:
    """One plain file of ranges, one stream of slices, one columnar file."""
    many = [f"{number} {text}" for number in range(times) for text in documents]
    third = len(many) // 3
    plain, stream, rows = many[:third], many[third : 2 * third], many[2 * third :]
    write_corpus(folder, [("jsonl", plain, True), ("jsonl.zst", stream, True), ("parquet", rows, False)])
