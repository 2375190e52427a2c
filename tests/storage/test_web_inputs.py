"""Inputs by http(s): the bytes of the server whatever fails on the way, and an error for any others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.storage.web import Web, serve

from packline.errors import InputChanged, InputError
from packline.storage import clients
from packline.storage.inputs import input_state, open_input, read_fully, read_start

pytest.importorskip("obstore", reason="object stores need packline[remote]")
DATA = bytes(number * number % 251 for number in range(500_000))


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(clients, "STALL_SECONDS", 1)
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.5)
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.bin").write_bytes(DATA)
    with serve(folder) as web:
        yield web


def read_all(uri: str) -> bytes:
    state = input_state(uri)
    with open_input(uri, state, 0, state.size) as file:
        return read_fully(file, len(DATA) + 1)


@pytest.mark.parametrize("fault", ["503", "500", "429", "cut", "short", "stall"])
def test_what_fails_on_the_way_is_repeated(web: Web, fault: str) -> None:
    uri = f"{web.address}/a.bin"
    state = input_state(uri)
    web.faults += [fault, fault]
    with open_input(uri, state, 0, state.size) as file:
        assert read_fully(file, len(DATA) + 1) == DATA
    assert not web.faults


def test_only_the_range_concerned_is_repeated(web: Web) -> None:
    uri = f"{web.address}/a.bin"
    state = input_state(uri)
    web.requests.clear()
    web.faults += ["cut"]
    with open_input(uri, state) as file:
        file.seek(1000)
        assert file.read(2000) == DATA[1000:3000]
    assert len(web.requests) == 2
    assert all(
        asked.startswith("bytes=") and int(asked[6:].split("-")[0]) >= 1000 for _, _, asked in web.requests
    )


def test_a_changed_file_is_an_error_at_its_first_byte(web: Web) -> None:
    uri = f"{web.address}/a.bin"
    state = input_state(uri)
    for web.etags in (True, False):
        (web.folder / "a.bin").write_bytes(DATA)
        os.utime(web.folder / "a.bin", (1e9, 1e9))
        state = input_state(uri)
        (web.folder / "a.bin").write_bytes(DATA[::-1])
        with open_input(uri, state, 0, state.size) as file:
            with pytest.raises(
                InputChanged, match=r"a\.bin changed .*expected 500,000 bytes.*; found 500,000"
            ):
                file.read(1)
    (web.folder / "a.bin").unlink()
    with open_input(uri, state, 0, state.size) as file:
        with pytest.raises(InputChanged, match=r"expected 500,000 bytes.*; found nothing"):
            file.read(1)


def test_without_etag_and_time_the_size_is_compared(web: Web) -> None:
    web.etags = web.times = False
    uri = f"{web.address}/a.bin"
    state = input_state(uri)
    assert state.modified == ""
    assert read_all(uri) == DATA
    (web.folder / "a.bin").write_bytes(DATA[1:])
    with open_input(uri, state, 0, state.size) as file, pytest.raises(InputChanged):
        file.read(1)


def test_a_server_without_ranges_is_refused(web: Web) -> None:
    web.ranges = False
    with pytest.raises(InputError, match="does not support ranges") as caught:
        input_state(f"{web.address}/a.bin")
    assert "download" in caught.value.hint


def test_names_and_queries_arrive_as_they_are(web: Web) -> None:
    (web.folder / "ä b%c?.bin").write_bytes(b"odd")
    uri = f"{web.address}/%C3%A4%20b%25c%3F.bin?download=true"
    assert read_start(uri, 100)[1] == b"odd"
    assert web.requests[-1][1].endswith("?download=true")


def test_an_empty_file_is_empty(web: Web) -> None:
    (web.folder / "empty").write_bytes(b"")
    state, data = read_start(f"{web.address}/empty", 100)
    assert (state.size, data) == (0, b"")


@pytest.mark.parametrize("fault", ["404", "403", "401"])
def test_a_refusal_is_an_error_at_once(web: Web, fault: str) -> None:
    web.faults += [fault]
    with pytest.raises(InputError, match="cannot find" if fault == "404" else "access refused"):
        read_start(f"{web.address}/a.bin", 10)


def test_failures_that_last_are_told(
    web: Web, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packline.storage.requests.LOG_AFTER_SECONDS", 0)
    monkeypatch.setattr("packline.storage.requests._logged", -99.0)
    web.faults += ["503"] * 20
    uri = f"{web.address}/a.bin"
    with suppress(InputError):
        read_start(uri, 10)
    (record,) = caplog.records
    assert uri in record.getMessage() and "503" in record.getMessage()
