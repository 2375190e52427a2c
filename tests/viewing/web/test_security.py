"""Nobody reads pages who should not, and no page can do what it should not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.viewing.web.sites import client_of, small_store

from packline.facade import Store
from packline.viewing.web.serving import host_name, is_loopback, listen

PAGES = (
    "/",
    "/document/3",
    "/nowhere",
    "/document/x",
    "/static/viewer.js",
    "/jump?to=row&number=1",
    "/favicon.ico",
)
TOKEN = "a-token-of-32-characters-or-so-xx"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return small_store(tmp_path_factory.mktemp("security") / "store")


@pytest.fixture(scope="module")
def local(store: Store) -> TestClient:
    return client_of([store])


@pytest.fixture
def remote(store: Store) -> TestClient:
    return client_of([store], port=8642, token=TOKEN, names=frozenset({"localhost", "machine.example"}))


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_says_what_a_page_may_do(local: TestClient, path: str) -> None:
    headers = local.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not any(name.startswith("access-control-") for name in headers)
    assert "server" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_pages_are_only_read(local: TestClient, method: str) -> None:
    answer = local.request(method, "/document/3")
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD"


def test_head_has_headers_only(local: TestClient) -> None:
    answer = local.head("/document/3")
    assert answer.status_code == 200 and answer.content == b""


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "",
     "localhost, evil.example", "local host", "[::1", "localhost@evil.example", "0.0.0.0"],
)  # fmt: skip
def test_a_name_of_another_site_is_refused(local: TestClient, host: str) -> None:
    answer = local.get("/document/3", headers={"host": host})
    assert answer.status_code == 421
    assert "data-ids" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:5", "[::1]:8642", "127.0.0.2", "localhost."]
)
def test_this_machine_is_known_by_its_names(local: TestClient, host: str) -> None:
    assert local.get("/", headers={"host": host}).status_code == 200


@given(st.text(max_size=30))
def test_a_host_header_is_a_name_or_nothing(header: str) -> None:
    name = host_name(header)
    assert name is None or (name == name.lower() and not set(name) & set(" /@\\,\n[]"))


def test_a_token_is_asked_for_beyond_this_machine(remote: TestClient) -> None:
    for path in ("/", "/document/3", "/search?q=a", "/jump?to=row&number=1", "/nowhere"):
        answer = remote.get(path)
        assert answer.status_code == 401, path
        assert "set-cookie" not in answer.headers and "data-ids" not in answer.text
        assert TOKEN not in answer.text


def test_the_token_becomes_a_cookie_and_leaves_the_address(remote: TestClient) -> None:
    answer = remote.get(f"/document/3?first=2&token={TOKEN}")
    assert answer.status_code == 303 and answer.headers["location"] == "/document/3?first=2"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and cookie.startswith("packline_8642=")
    assert remote.get("/document/3?first=2").status_code == 200
    remote.cookies.clear()
    assert remote.get("/document/3").status_code == 401


@pytest.mark.parametrize("token", ["é", "\ud7ff", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "other"])
def test_another_token_is_none(remote: TestClient, token: str) -> None:
    assert remote.get("/", params={"token": token}).status_code == 401
    cookie = f"packline_8642={token}".encode()
    if b"\xed" not in cookie:
        assert remote.get("/", headers={b"cookie": cookie}).status_code == 401


def test_a_token_leads_nowhere_else(remote: TestClient) -> None:
    for path in ("//evil.example/", "///evil.example", "/\\evil.example", "/\r\nset-cookie: a=b"):
        sent = asyncio.run(_asked(remote.app, path, f"token={TOKEN}"))
        headers = {name.decode(): value.decode("latin-1") for name, value in sent["headers"]}
        assert sent["status"] == 303
        assert re.fullmatch(r"/[^/\\\r\n][^\r\n]*", headers["location"]), headers["location"]


async def _asked(app: Any, path: str, query: str) -> dict[str, Any]:
    """The beginning of the answer to a request that no client would send."""
    found: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        found.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode()}
    await app({**scope, "headers": [(b"host", b"localhost")]}, receive, send)
    return found[0]


def test_with_a_token_addresses_and_given_names_are_known(remote: TestClient) -> None:
    for host in ("machine.example:8642", "10.1.2.3:8642", "[fe80::1]:8642"):
        assert remote.get("/", headers={"host": host}).status_code == 401
    assert remote.get("/", headers={"host": "evil.example"}).status_code == 421


def test_style_needs_no_token(remote: TestClient) -> None:
    answer = remote.get("/static/viewer.css")
    assert answer.status_code == 200 and ".packline" in answer.text
    assert remote.get("/static/../../store/reader.py").status_code in (401, 404)
    assert remote.get("/static/style.css").status_code == 404


def test_only_the_loopback_needs_none() -> None:
    with listen("127.0.0.1", 0).socket:
        pass
    local, everywhere = listen("127.0.0.1", 0), listen("0.0.0.0", 0)
    with local.socket, everywhere.socket:
        assert local.token is None and "token" not in local.url
        assert everywhere.token is not None and len(everywhere.token) >= 32
        assert everywhere.url.endswith(f"?token={everywhere.token}")
    assert [is_loopback(host) for host in ("::1", "127.9.9.9", "::", "10.0.0.1", "example.org")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_nothing_is_written(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    client = client_of([store])
    for path in (
        "/",
        "/rows?packing=best_fit&seq_len=16",
        "/row/1?packing=best_fit&seq_len=16",
        "/search?q=a",
        "/batch",
    ):
        assert client.get(path).status_code == 200, path
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
