"""Builds into an object store: the same bytes as into a folder, whatever was interrupted before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.chat import talks
from tests.chat.talks import PLAIN
from tests.chat.test_sft import make_tokenizer
from tests.jobs.builds import digests, set_sizes, stored
from tests.laws.reference import Contents, write_corpus
from tests.storage.fault_proxy import Schedule, fault_proxy
from tests.storage.kills import Crash, killed_at, storage_calls
from tests.storage.servers import Bucket

import packline
from packline.chat.sft import SftRequest, run_sft
from packline.chat.sources import ConversationSource
from packline.errors import PacklineError, StoreError, StoreNotFound
from packline.formats.import_ import ImportRequest, run_import
from packline.jobs.build_job import run_build
from packline.jobs.events import Finished, Planned, UnitDone
from packline.jobs.status import Status, status
from packline.jobs.work import SCRATCH, Command, Resuming
from packline.recipe import Recipe, RunOptions, Source
from packline.storage.places import ONE_WRITER

NUMBERS = [f"{number} " * (number % 11 + 1) for number in range(60)]
CORPUS: Contents = [("jsonl", NUMBERS[:25], True), ("jsonl.zst", NUMBERS[20:], True)]
SERIAL = RunOptions(workers=0, engine="tokenizers")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    set_sizes(monkeypatch, 1000, 200)
    write_corpus(tmp_path / "in", CORPUS)
    return tmp_path / "scratch"


def recipe_of(inputs: Path, tokenizer: Path, **more: Any) -> Recipe:
    return Recipe(sources=(Source(inputs=(str(inputs),)),), tokenizer=str(tokenizer), **more)


def built(place: str, inputs: Path, tokenizer: Path, options: RunOptions = SERIAL, **more: Any) -> Finished:
    return run_build(recipe_of(inputs, tokenizer, **more), place, options)


@pytest.mark.parametrize("more", [{}, {"limit_tokens": 400}, {"val_documents": 5}], ids=str)
def test_a_store_in_a_bucket_is_the_one_in_a_folder(
    more: dict[str, Any], bucket: Bucket, tmp_path: Path, tokenizer_json: Path, scratch: Path
) -> None:
    built(str(tmp_path / "local"), tmp_path / "in", tokenizer_json, **more)
    place = bucket.place("a/store")
    finished = built(place, tmp_path / "in", tokenizer_json, **more)
    assert not finished.nothing_to_do
    assert stored(place) == digests(tmp_path / "local")
    assert not [path for path in scratch.rglob("*") if path.is_file()]
    assert built(place, tmp_path / "in", tokenizer_json, **more).nothing_to_do


def places(kind: str, bucket: Bucket, tmp_path: Path) -> Iterator[str]:
    for number in count():
        yield bucket.place(f"store-{number}") if kind == "bucket" else str(tmp_path / f"store-{number}")


@pytest.mark.parametrize("more", [{}, {"limit_tokens": 100}], ids=str)
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_build_killed_before_any_call_of_its_storage_resumes(
    kind: str, more: dict[str, Any], bucket: Bucket, tmp_path: Path, tokenizer_json: Path
) -> None:
    shutil.rmtree(tmp_path / "in")
    write_corpus(tmp_path / "in", [("jsonl", NUMBERS[:9], True), ("jsonl.zst", NUMBERS[9:12], False)])
    there = places(kind, bucket, tmp_path)
    built(next(there), tmp_path / "in", tokenizer_json, **more)
    with storage_calls() as calls:
        built(first := next(there), tmp_path / "in", tokenizer_json, **more)
    expected = stored(first)
    assert len(calls) > 30
    for number in range(0, len(calls), 1 if kind == "folder" else 7):
        place = next(there)
        with pytest.raises(Crash), killed_at(number):
            built(place, tmp_path / "in", tokenizer_json, **more)
        built(place, tmp_path / "in", tokenizer_json, **more)
        assert stored(place) == expected, f"killed before call {number}: {calls[number]}"


@pytest.mark.parametrize("more", [{}, {"limit_tokens": 400}], ids=str)
def test_two_processes_that_run_the_same_build_do_no_harm(
    bucket: Bucket,
    tmp_path: Path,
    tokenizer_json: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, Any],
) -> None:
    """One of them stops for a while in its midst, and the other one, elsewhere, does it all meanwhile."""
    built(first := bucket.place("first"), tmp_path / "in", tokenizer_json, **more)
    place, met = bucket.place("second"), list[str]()

    def hear(event: Any) -> None:
        if isinstance(event, UnitDone) and not met:
            met.append(event.unit)
            with monkeypatch.context() as patch:
                patch.setenv(SCRATCH, str(tmp_path / "other"))
                built(place, tmp_path / "in", tokenizer_json, **more)
            assert stored(place).items() >= stored(first).items()

    run_build(recipe_of(tmp_path / "in", tokenizer_json, **more), place, SERIAL, hear)
    assert met and stored(place) == stored(first)


def test_conversations_and_imports_go_into_a_bucket(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path
) -> None:
    talk = talks.write(tmp_path / "chat.jsonl", [PLAIN, {"messages": talks.WEATHER}, {"messages": 7}] * 9)
    tokenizer = make_tokenizer(tokenizer_json, tmp_path / "tokenizer", "chatml")
    source = ConversationSource(inputs=(str(talk),))

    def sft(out: str) -> None:
        run_sft(SftRequest(sources=(source,), tokenizer=str(tokenizer), out=out, workers=0))

    sft(str(tmp_path / "sft"))
    for _ in range(2):
        sft(bucket.place("sft"))
        assert stored(bucket.place("sft")) == digests(tmp_path / "sft")

    packline.export(tmp_path / "sft", out=tmp_path / "data", to="megatron", workers=0)

    def convert(out: str) -> None:
        run_import(ImportRequest(str(tmp_path / "data"), None, str(tokenizer), out, workers=0))

    convert(str(tmp_path / "imported"))
    convert(bucket.place("imported"))
    assert stored(bucket.place("imported")) == digests(tmp_path / "imported")


def test_units_of_an_earlier_store_are_taken_over_into_a_bucket(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path
) -> None:
    built(str(tmp_path / "old"), tmp_path / "in", tokenizer_json)
    place = bucket.place("new")
    finished = run_build(recipe_of(tmp_path / "in", tokenizer_json), place, SERIAL, reuse=tmp_path / "old")
    assert not finished.run_text_bytes, "none is run"
    assert stored(place) == digests(tmp_path / "old")


def test_status_of_a_bucket_names_the_driver_and_the_command(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = bucket.place("store")
    with pytest.raises(StoreNotFound, match="no job has begun"):
        status(place)
    heard: list[Status] = []

    def hear(event: Any) -> None:
        if isinstance(event, Planned):
            heard.append(status(place))
        if isinstance(event, UnitDone):
            raise Crash

    monkeypatch.setattr(Resuming, "command", Command("packline build in", "/data"))
    with pytest.raises(Crash):
        run_build(recipe_of(tmp_path / "in", tokenizer_json), place, SERIAL, hear)
    (running,) = heard
    assert (running.state, running.units_done) == ("running", 0) and running.units_total
    assert running.driver.startswith("process ") and running.command == "packline build in"
    stopped = status(place)
    assert stopped.state == "interrupted" and stopped.units_done >= 1 and stopped.command_folder == "/data"
    built(place, tmp_path / "in", tokenizer_json)
    done = status(place)
    assert done.state == "finished" and done.bytes_on_disk > 0 and not done.driver


def test_a_store_that_ignores_conditions_is_refused_but_for_one_writer(
    lying_bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = lying_bucket.place("store")
    with pytest.raises(StoreError, match="ignores conditions"):
        built(place, tmp_path / "in", tokenizer_json)
    assert not stored(place)
    monkeypatch.setenv(ONE_WRITER, "1")
    built(place, tmp_path / "in", tokenizer_json)
    built(str(tmp_path / "local"), tmp_path / "in", tokenizer_json)
    assert stored(place) == digests(tmp_path / "local")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_build_through_a_store_on_a_bad_day_has_the_same_bytes(
    seed: int, bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(str(tmp_path / "local"), tmp_path / "in", tokenizer_json)
    with fault_proxy(bucket.endpoint, Schedule(seed=seed, rate=0.25)) as proxy:
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            built(bucket.place("store"), tmp_path / "in", tokenizer_json)
        assert len(proxy.faults()) > 3, len(proxy.requests)
    assert stored(bucket.place("store")) == digests(tmp_path / "local")


def test_a_store_that_begins_to_refuse_stops_a_build_which_then_resumes(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(str(tmp_path / "local"), tmp_path / "in", tokenizer_json)
    for number, name in enumerate((".bin", "receipts/", "manifest.json", "plan.zst")):
        place = bucket.place(f"store-{number}")

        def at(method: str, path: str, number: int, name: str = name) -> str | None:
            return "denied" if name in path and method == "PUT" else None

        with fault_proxy(bucket.endpoint, Schedule(at=at)) as proxy, monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            with pytest.raises(PacklineError) as caught:
                built(place, tmp_path / "in", tokenizer_json)
            assert caught.value.hint
        built(place, tmp_path / "in", tokenizer_json)
        assert stored(place) == digests(tmp_path / "local"), name
