"""A site and a client of it, for tests: requests without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.formats.stores import make_store, random_documents
from tests.viewing.parsed import Parsed

from packline.facade import Store
from packline.store import writer
from packline.viewing.web.app import make_site_app
from packline.viewing.web.site import Site


def small_store(folder: Path, **settings: Any) -> Store:
    """120 documents of 0 to 40 ids in 3 units, some of the validation split, in row groups of 16."""
    bodies = random_documents(120, 400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP", 16)
        return make_store(folder, bodies, vocab_size=400, eod_id=0, val=(1, 50, 119), shards=3, **settings)


def client_of(
    stores: Sequence[Store],
    tokenizers: Sequence[str] = (),
    *,
    runs: Sequence[Path] = (),
    **settings: Any,
) -> TestClient:
    site = Site([store.path for store in stores], tokenizers, runs=runs)
    site.wait(30)
    app = make_site_app(site, **settings)
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def get(client: TestClient, path: str, status: int = 200, /, **params: str) -> Parsed:
    """A page, after what it is redirected to, as its reader finds it."""
    answer = client.get(path, params=params or None, follow_redirects=True)
    assert answer.status_code == status, (path, answer.text[-500:])
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Parsed(answer.text)
