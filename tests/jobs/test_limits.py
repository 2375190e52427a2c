"""Limits of documents and tokens: when enough is committed, and at what cost it is known."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.builds import SRC

from packline.jobs import limits
from packline.jobs.document_order import DocumentOrder
from packline.jobs.job import Session
from packline.jobs.limits import LimitedRun
from packline.jobs.plan import Unit
from packline.jobs.text_unit import Built
from packline.recipe import Recipe, Source
from packline.store.ledger import Ledger
from packline.store.manifest import Receipt, StreamReceipt
from packline.store.naming import STREAM

TOKENS = 5
"""Tokens of the n-th document of a unit: n modulo this, and one."""


def make_units(shapes: list[int]) -> list[Unit]:
    """A plan: 0 is a plain unit, another number a file of so many slices."""
    return [Unit(f"a-{place:06d}", place, slice_bytes=int(slices > 0)) for place, slices in enumerate(shapes)]


def names_of(shapes: list[int]) -> list[str]:
    """Units and slices in document order."""
    return [
        f"a-{place:06d}-{number:06d}" if slices else f"a-{place:06d}"
        for place, slices in enumerate(shapes)
        for number in range(max(slices, 1))
    ]


class Workers(Session):
    """Workers that make units of documents of known sizes, and report their results in any order.

    Args:
        documents: number of documents of each unit and slice, by name.
    """

    def __init__(
        self, shapes: list[int], documents: dict[str, int], folder: Folder, order: random.Random
    ) -> None:
        self.shapes, self.documents, self.folder, self.order = shapes, documents, folder, order
        self.rounds: list[int] = []
        self.width = 0

    def info(self) -> Any:
        return None

    def close(self) -> None:
        return

    def run(self, units: Any, on_event: Any, on_result: Any) -> None:
        self.rounds.append(len(units))
        queues = [list(self.results(unit)) for unit in units]
        while queues := [queue for queue in queues if queue]:
            name, result = self.order.choice(queues).pop(0)
            on_result(name, result)

    def results(self, unit: Unit) -> Iterator[tuple[str, Any]]:
        slices = self.shapes[unit.number]
        if not slices:
            yield unit.name, self.built(unit.name, unit)
            return
        for number in range(slices):
            there = unit.slice_name(number) in self.folder.receipts
            if number % unit.lanes == unit.lane and not there:
                built = self.built(unit.slice_name(number), unit)
                yield unit.name, built
                if not built.receipt.complete:
                    return
        yield unit.name, StreamReceipt("a", "a.zst", slices, "")

    def built(self, name: str, unit: Unit) -> Built:
        """The unit up to its limits, as a worker stops it."""
        ledger, complete = Ledger(), True
        for number in range(self.documents[name]):
            more = number % TOKENS + 1
            too_many = ledger.documents == unit.max_documents
            if too_many or (unit.max_tokens is not None and ledger.tokens + more > unit.max_tokens):
                complete = False
                break
            ledger.documents, ledger.tokens = ledger.documents + 1, ledger.tokens + more
        return Built(Receipt(name, "a", (), (), (), ledger, 0, complete), {}, {}, 0, 0.0, 0)


class Folder:
    """A store that knows what is committed, in which order."""

    place = "store"
    tmp: Path

    def __init__(self) -> None:
        self.receipts: dict[str, Receipt] = {}
        self.streams: dict[str, StreamReceipt] = {}

    def commit(self, receipt: Receipt, tmp: Path) -> None:
        assert receipt.unit not in self.receipts
        self.receipts[receipt.unit] = receipt

    def refresh(self) -> None:
        """No other process commits anything."""

    def commit_record(self, name: str, end: StreamReceipt) -> None:
        stream = name.removesuffix(STREAM)
        assert stream != name and stream not in self.streams
        self.streams[stream] = end


def expected(
    names: list[str], documents: dict[str, int], most_documents: int | None, most_tokens: int | None
) -> list[tuple[str, int, int]]:
    """Units and their documents and tokens, by taking one document after another."""
    found: list[tuple[str, int, int]] = []
    all_documents = all_tokens = 0
    for name in names:
        own = own_tokens = 0
        for number in range(documents[name]):
            more = number % TOKENS + 1
            full = most_documents is not None and all_documents == most_documents
            if full or (most_tokens is not None and all_tokens + more > most_tokens):
                return [*found, (name, own, own_tokens)] if own or not full else found
            own, own_tokens = own + 1, own_tokens + more
            all_documents, all_tokens = all_documents + 1, all_tokens + more
        found.append((name, own, own_tokens))
        if all_documents == most_documents or all_tokens == most_tokens:
            return found
    return found


@given(
    shapes=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    most_documents=st.none() | st.integers(1, 40),
    most_tokens=st.none() | st.integers(1, 120),
    workers=st.integers(0, 4),
    before=st.integers(0, 6),
    order=st.randoms(use_true_random=False),
)
def test_what_is_committed_is_what_one_document_after_another_gives(
    shapes: list[int],
    most_documents: int | None,
    most_tokens: int | None,
    workers: int,
    before: int,
    order: random.Random,
) -> None:
    """For any number of workers, any order of results, and after any number of units of an earlier run."""
    names = names_of(shapes)
    documents = {name: order.randrange(12) for name in names}
    recipe = Recipe(
        sources=(Source(inputs=("a",)),),
        tokenizer="t",
        limit_documents=most_documents,
        limit_tokens=most_tokens,
    )
    limited = expected(names, documents, most_documents, most_tokens)
    folder = Folder()
    session = Workers(shapes, documents, folder, order)
    for name, own, tokens in limited[:before]:
        whole = own == documents[name]
        ledger = Ledger(documents=own, tokens=tokens)
        folder.receipts[name] = Receipt(name, "a", (), (), (), ledger, 0, whole)
    units = make_units(shapes)
    for unit, following in itertools.pairwise(units):  # it went on once the end of a file was recorded
        if unit.slice_bytes and any(name.startswith(following.name) for name in folder.receipts):
            end = StreamReceipt("a", "a.zst", shapes[unit.number], "")
            folder.streams[unit.name] = end

    session.width = workers

    def lanes(unit: Unit, files: Any, width: int, text_bytes: int) -> list[Unit]:
        count = max(width, 1)
        return [msgspec.structs.replace(unit, lane=lane, lanes=count) for lane in range(count)]

    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "lanes_of", lanes)
        folder.tmp = Path(scratch)
        job: Any = SimpleNamespace(recipe=recipe, units=units, files=[], committed=folder, folder=folder)
        job.take, job.on_progress = lambda name, result: None, lambda event: None
        LimitedRun(job, session).run()
        assert not list(Path(scratch).iterdir())
    found = [(name, one.ledger.documents, one.ledger.tokens) for name, one in folder.receipts.items()]
    assert found == limited
    assert max(session.rounds, default=0) <= max(workers, 1)
    # The end of a file is recorded once all of it is committed, and nothing is known of what follows a limit.
    whole_documents, whole_tokens = sum(own for _, own, _ in limited), sum(tokens for *_, tokens in limited)
    reached = any(not one.complete for one in folder.receipts.values()) or len(limited) < len(names)
    reached = reached or whole_documents == most_documents or whole_tokens == most_tokens
    last = limited[-1][0] if limited else ""
    for unit, slices in zip(units, shapes, strict=True):
        parts = [unit.slice_name(number) for number in range(slices)]
        whole = bool(slices) and all(name in folder.receipts for name in parts)
        if slices and not (reached and last in parts):
            assert (unit.name in folder.streams) == whole


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_units_are_given_in_order_up_to_the_first_gap(shapes: list[int], order: random.Random) -> None:
    names = names_of(shapes)
    ends = [f"end a-{place:06d}" for place, slices in enumerate(shapes) if slices]
    events = [*names, *ends]
    order.shuffle(events)
    there: set[str] = set()
    streams: dict[str, StreamReceipt] = {}
    walk, given_so_far = DocumentOrder(make_units(shapes), there, streams), list[str]()
    for event in events:
        if event.startswith("end "):
            name = event.removeprefix("end ")
            streams[name] = StreamReceipt("a", "a.txt", shapes[int(name.removeprefix("a-"))], "")
        else:
            there.add(event)
        given_so_far += walk.advance()
        # Counted anew: units without a gap, and none behind a file whose end is not known.
        expected: list[str] = []
        for place, slices in enumerate(shapes):
            own = [name for name in names if name.startswith(f"a-{place:06d}")]
            expected += list(itertools.takewhile(there.__contains__, own))
            if not set(own) <= there or (slices and f"a-{place:06d}" not in streams):
                break
        assert given_so_far == expected
    assert given_so_far == names and walk.unit is None


class Counting(set[str]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def test_asking_after_each_of_many_commits_looks_at_each_unit_a_few_times() -> None:
    count = 2000
    receipts = Counting()
    walk = DocumentOrder(make_units([0] * count), receipts, {})
    for name in names_of([0] * count):
        receipts.add(name)
        assert list(walk.advance()) == [name]
    assert receipts.asked <= 4 * count


COUNT_READS = """
import sys
reads = 0
def hook(event, arguments):
    global reads
    if event == "open" and "/receipts/" in str(arguments[0]) and "r" in str(arguments[1]):
        reads += 1
sys.addaudithook(hook)
from packline.api import make_recipe
from packline.jobs.build_job import run_build
from packline.recipe import RunOptions, load_recipe
recipe, _ = load_recipe(sys.argv[1])
options = RunOptions(workers=2, engine="tokenizers")
run_build(recipe, sys.argv[2], options)
print(reads)
"""


def test_a_limit_costs_a_few_reads_of_each_receipt(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    count = 20
    lines = [f"tokenizer = '{tokenizer_json}'", "limit_tokens = 1000000"]
    for number in range(count):
        write_jsonl(tmp_path / f"in/{number}.jsonl", [f"text {number}"])
        lines.append(f"[[sources]]\nname = 's{number}'\ninputs = ['{tmp_path}/in/{number}.jsonl']")
    (tmp_path / "recipe.toml").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", COUNT_READS, tmp_path / "recipe.toml", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SRC)},
    )
    assert int(done.stdout) <= 6 * count
