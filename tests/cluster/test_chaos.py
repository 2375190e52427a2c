"""Random kills, on this machine, on Ray and into an object store; `python -m benchmarks chaos` does more."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.chaos import Chaos, three_files
from tests.cluster.raylets import start_raylets
from tests.jobs.builds import build, digests, stored
from tests.storage.servers import Bucket

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc"),
]
SEED = int(os.environ.get("PACKLINE_SEED", 15))


KILLS = int(os.environ.get("PACKLINE_KILLS", 2))
"""`make test-long` and `python -m benchmarks chaos` ask for more."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Iterator[Path]:
    with three_files(tmp_path_factory.mktemp("chaos"), documents[::2], 30_000) as folder:
        yield folder


Compare = Callable[[str], None]


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_json: Path) -> Compare:
    """Check of a store against that of a build without kills."""
    out = tmp_path_factory.mktemp("whole") / "store"
    build(out, corpus, tokenizer_json, engine="gigatoken", val_fraction=0.1)
    whole = digests(out)

    def check(place: str) -> None:
        assert stored(place) == whole

    return check


@pytest.mark.long(only=True)
def test_on_this_machine(corpus: Path, tokenizer_json: Path, compare: Compare, tmp_path: Path) -> None:
    Chaos(corpus, tokenizer_json, compare, SEED).run(lambda number: str(tmp_path / f"{number}"), KILLS)


@pytest.mark.long(only=True)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_on_ray(corpus: Path, tokenizer_json: Path, compare: Compare, tmp_path: Path) -> None:
    with start_raylets() as raylets:
        chaos = Chaos(corpus, tokenizer_json, compare, SEED, raylets=raylets)
        chaos.run(lambda number: str(tmp_path / f"{number}"), KILLS)


def test_into_an_object_store(
    corpus: Path, tokenizer_json: Path, compare: Compare, bucket: Bucket, tmp_path: Path
) -> None:
    environment = {"PACKLINE_SCRATCH": str(tmp_path / "scratch")}
    chaos = Chaos(corpus, tokenizer_json, compare, SEED, environment=environment)
    chaos.run(lambda number: bucket.place(f"store-{number}"), KILLS)
