"""The laws of storage under faults, on a local folder and on S3: as if nothing had happened, or an error."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.fault_proxy import FAULTS, FaultProxy, Schedule, fault_proxy
from tests.storage.servers import Bucket

from packline.errors import StoreError
from packline.storage import clients, objects, requests
from packline.storage.clients import relayed
from packline.storage.local import LocalFolder
from packline.storage.objects import ObjectFolder, probe
from packline.storage.places import open_storage
from packline.storage.results import Storage

KEYS = (f"laws/{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_PAUSE", 0.01)


NAMES = st.sampled_from(["a", "b", "in/c"])
DATA = st.sampled_from([b"", b"one", b"two", b"three" * 3000])
PUTS = st.lists(st.tuples(NAMES, DATA), max_size=5)


@contextmanager
def faulty(bucket: Bucket, schedule: Schedule) -> Iterator[tuple[ObjectFolder, FaultProxy]]:
    """A new folder of a bucket, reached through a proxy."""
    with fault_proxy(bucket.endpoint, schedule) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield ObjectFolder(bucket.place(next(KEYS))), proxy


def once(fault: str, method: str) -> Schedule:
    done: list[int] = []

    def at(found: str, path: str, number: int) -> str | None:
        if found != method or done:
            return None
        done.append(number)
        return fault

    return Schedule(at=at)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_is_created_whatever_the_store_answers_once(
    bucket: Bucket,
    fault: str,
    tmp_path: Path,
) -> None:
    data = os.urandom(50_000)
    (tmp_path / "x").write_bytes(data)
    with faulty(bucket, once(fault, "PUT")) as (storage, proxy):
        storage.put_files({"in/x": tmp_path / "x"})
        assert [found[2] for found in proxy.faults()] == [fault]
        assert storage.read("in/x") == data and not (tmp_path / "x").exists()
        assert not storage.put_new("in/x", data)
        with pytest.raises(StoreError, match="another content"):
            storage.put_new("in/x", data[::-1])


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("conflict", "flipped")])
def test_reads_and_listings_are_whole_whatever_the_store_answers_once(bucket: Bucket, fault: str) -> None:
    data = os.urandom(900_000)  # several parts
    with faulty(bucket, Schedule(rate=0)) as (storage, _):
        storage.put_new("a", data)
        place = storage.place
    reads: dict[str, Callable[[Any], bytes]] = {
        "GET": lambda storage: storage.read("a"),
        "HEAD": lambda storage: data if storage.facts("a").size == len(data) else b"",
        "GET list": lambda storage: data if [facts.name for facts in storage.walk()] == ["a"] else b"",
        "GET folder": lambda storage: data if storage.list("") == ["a"] else b"",
    }
    for method, read in reads.items():
        with faulty(bucket, once(fault, method.split()[0])) as (storage, proxy):
            storage = ObjectFolder(place)
            assert read(storage) == data, method
            assert len(proxy.faults()) == 1


@contextmanager
def storages(kind: str, bucket: Bucket | None, seed: int) -> Iterator[tuple[Storage, Storage]]:
    """The same new place for two writers."""
    if bucket is None:
        with tempfile.TemporaryDirectory() as folder:
            yield LocalFolder(Path(folder, "out")), LocalFolder(Path(folder, "out"))
        return
    with faulty(bucket, Schedule(seed=seed, rate=0.4)) as (one, _):
        yield one, ObjectFolder(one.place)


@pytest.fixture(params=["local", "s3"])
def kind(request: pytest.FixtureRequest) -> tuple[str, Bucket | None]:
    return request.param, request.getfixturevalue("bucket") if request.param == "s3" else None


LAWS = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LAWS
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["new", "files", "delete"]), NAMES, DATA), max_size=7),
    st.integers(0, 2**32),
)
def test_two_writers_in_turn_leave_what_a_dictionary_would(
    kind: tuple[str, Bucket | None], steps: list[tuple[bool, str, str, bytes]], seed: int
) -> None:
    model: dict[str, bytes] = {}
    with storages(*kind, seed) as pair, tempfile.TemporaryDirectory() as folder:
        for second, step, name, data in steps:
            storage = pair[second]
            if step == "delete":
                storage.delete([name])
                model.pop(name, None)
                continue
            path = Path(folder, "x")
            path.write_bytes(data)
            if model.setdefault(name, data) != data:
                with pytest.raises(StoreError, match="another content"):
                    storage.put_new(name, data) if step == "new" else storage.put_files({name: path})
            elif step == "new":
                storage.put_new(name, data)
            else:
                storage.put_files({name: path})
                assert not path.exists()
        for storage in pair:
            assert [facts.name for facts in storage.walk()] == sorted(model)
            assert {name: storage.read(name) for name in model} == model


@LAWS
@given(PUTS, PUTS, st.integers(0, 2**32))
def test_of_two_writers_at_once_each_name_has_one_winner(
    kind: tuple[str, Bucket | None], one: list[tuple[str, bytes]], two: list[tuple[str, bytes]], seed: int
) -> None:
    accepted: list[tuple[str, bytes]] = []
    refused: list[tuple[str, bytes]] = []

    def write(storage: Storage, puts: list[tuple[str, bytes]]) -> None:
        for name, data in puts:
            try:
                storage.put_new(name, data)
                accepted.append((name, data))
            except StoreError as error:
                assert "another content" in str(error), error
                refused.append((name, data))

    with storages(*kind, seed) as pair:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(write, pair, (one, two)))
        assert len(accepted) + len(refused) == len(one) + len(two)
        found = {facts.name: pair[0].read(facts.name) for facts in pair[0].walk()}
    assert set(found) == {name for name, _ in one + two}
    assert all(found[name] == data for name, data in accepted)
    assert all(found[name] != data for name, data in refused)


def test_a_store_that_only_fails_is_reported_with_what_it_answers(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(objects, "PATIENCE_SECONDS", 0.5)
    with faulty(bucket, Schedule(at=lambda *_: "busy")) as (storage, _):
        for use in (lambda: storage.read("a"), lambda: storage.put_new("a", b"x")):
            with pytest.raises(StoreError, match=r"status 503, S.* \(for \d+ s\)") as caught:
                use()
            assert "run the same command again" in caught.value.hint
    with faulty(bucket, Schedule(at=lambda method, *_: "conflict" if method == "PUT" else None)) as (
        storage,
        _,
    ):
        with pytest.raises(StoreError, match="the store reports that it exists, and has none"):
            storage.put_new("a", b"x")


def test_a_server_that_never_answers_is_given_up_soon(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(objects, "FIRST_SECONDS", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"cannot read s3://.*/a: nothing answers there: connection refused"):
        ObjectFolder(bucket.place("x")).read("a")


def test_a_server_that_is_gone_for_seconds_is_waited_for(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also longer than the client itself repeats, and in the middle of reading."""
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.3)
    gone: list[float] = [0.0]
    schedule = Schedule(at=lambda *_: "reset" if time.monotonic() < gone[0] else None)
    data = os.urandom(900_000)
    with faulty(bucket, schedule) as (storage, proxy):
        storage.put_new("a", data)
        uses: list[Callable[[], object]] = [
            lambda: storage.read("a") == data,
            lambda: storage.read("a", 5, len(data)) == data[5:],
            lambda: [facts.name for facts in storage.walk()] == ["a"],
            lambda: storage.put_new("b", b"x"),
            lambda: storage.facts("b") is not None,
        ]
        for use in uses:
            gone[0] = time.monotonic() + 1.5
            assert use()
        assert len(proxy.faults()) > len(uses)


def test_an_answer_that_stalls_is_requested_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "STALL_SECONDS", 0.3)
    schedule = once("slow", "GET")
    schedule.slow_seconds = 20.0
    with faulty(bucket, schedule) as (storage, proxy):
        storage.put_new("a", b"x" * 1000)
        assert storage.read("a") == b"x" * 1000 and proxy.faults()


def test_a_store_that_ignores_conditions_is_refused(lying_bucket: Bucket) -> None:
    storage = open_storage(lying_bucket.place("store"))
    with pytest.raises(StoreError, match=r"ignores conditions: expected a second put .* to be refused"):
        probe(storage)
    assert list(storage.walk()) == []
    alone = ObjectFolder(lying_bucket.place("store"), one_writer=True)
    probe(alone)
    assert alone.put_new("a", b"one") and not alone.put_new("a", b"one")
    with pytest.raises(StoreError, match="another content"):
        alone.put_new("a", b"two")


def test_a_store_that_keeps_to_conditions_is_left_as_it_was(bucket: Bucket, tmp_path: Path) -> None:
    for storage in (open_storage(bucket.place("store")), open_storage(tmp_path / "none")):
        probe(storage)
        assert list(storage.walk()) == []
    assert not (tmp_path / "none").exists()


def test_without_a_store_of_that_name_no_error_hides_it() -> None:
    for place, message in {
        "s3://": "names no bucket",
        "s4://b/k": "is not a place of results",
        "s3://key:word@bucket/k": "s3://bucket/k was given with credentials",
        "az://c/k?sig=word": "az://c/k was given with credentials",
        "s3://b/a/../c": "empty part",
    }.items():
        with pytest.raises(StoreError, match=message) as caught:
            open_storage(place)
        assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "variables", "message"),
    [
        ("s3://b/k", {"AWS_ENDPOINT_URL": "http://me:word@host"}, "AWS_ENDPOINT_URL is not an address"),
        ("s3://b/k", {"AWS_ENDPOINT_URL": "not an address"}, "AWS_ENDPOINT_URL is not an address"),
        ("s3://b/k", {"AWS_SECRET_ACCESS_KEY": ""}, "cannot read s3://b/k/a: Missing SecretAccessKey"),
        ("s3://b/k", {"AWS_ACCESS_KEY_ID": "", "AWS_PROFILE": "word"}, "AWS profile 'word' cannot be used"),
        ("az://b/k", {}, "cannot read az://b/k/a: Account must be specified"),
        ("gs://b/k", {"GOOGLE_APPLICATION_CREDENTIALS": "/no"}, "cannot read gs://b/k/a: Unable to open"),
    ],
)
def test_settings_that_cannot_work_are_reported_at_once(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, place: str, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=message) as caught:
        ObjectFolder(place).read("a")
    assert caught.value.hint and "me:word" not in str(caught.value)


@pytest.mark.slow
def test_azure_answers_to_the_same_laws_under_faults(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = os.environ["AZURE_STORAGE_ENDPOINT"]
    faults = [fault for fault in FAULTS if fault not in ("conflict", "flipped")]
    with fault_proxy(endpoint, Schedule(11, 0.4, faults)) as proxy:
        account = endpoint.rpartition("/")[2]
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{proxy.endpoint}/{account}")
        storage = ObjectFolder(f"{container}/laws")
        data = {f"in/{number}": b"%d" % number * 3000 for number in range(4)}
        for name in data:
            storage.put_new(name, data[name])
            assert not storage.put_new(name, data[name])
            with pytest.raises(StoreError, match="another content"):
                storage.put_new(name, b"other")
        assert {facts.name: storage.read(facts.name) for facts in storage.walk()} == data
        storage.delete(data)
        assert list(storage.walk()) == []
        assert len(proxy.faults()) > 3


def test_a_store_that_has_answered_another_process_is_waited_for(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a loader may begin while the server is gone; its address is known to be right."""
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(objects, "FIRST_SECONDS", 0.0)
    gone: list[float] = [0.0]
    schedule = Schedule(at=lambda *_: "reset" if time.monotonic() < gone[0] else None)
    with faulty(bucket, schedule) as (storage, _):
        storage.put_new("a", b"x")
        relay: Any = relayed(storage.place, reached=True)
        gone[0] = time.monotonic() + 5
        assert relay.read("a") == b"x"
        helper = relay._helper
        del relay
        assert helper.wait(60) == 0
        gone[0] = time.monotonic() + 1
        assert ObjectFolder(storage.place, reached=True).read("a") == b"x"
        gone[0] = time.monotonic() + 1
        with pytest.raises(StoreError):
            ObjectFolder(storage.place).read("a")
