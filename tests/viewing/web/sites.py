"""A site and a client of it, for tests: requests without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.formats.stores import make_store, random_documents

from packline.facade import Store
from packline.store import writer
from packline.viewing.web.app import make_site_app
from packline.viewing.web.site import Site

VOID = {"br", "col", "hr", "input", "link", "meta", "wbr"}


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
    exclusions: Sequence[Path] = (),
    runs: Sequence[Path] = (),
    **settings: Any,
) -> TestClient:
    """A client of a site with these stores."""
    site = Site([store.path for store in stores], tokenizers, exclusions=exclusions, runs=runs)
    site.wait(30)
    app = make_site_app(site, **settings)
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


class Parsed(HTMLParser):
    """A page's elements, texts and addresses; refuses one whose elements do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in dict.fromkeys(self._open):
            self.text.setdefault(tag, []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]

    def of(self, tag: str) -> str:
        """The text within elements of a kind."""
        return "".join(self.text.get(tag, []))


def ids_shown(page: Parsed) -> list[int]:
    """Ids of all tokens that a page shows, padding left out."""
    cells = [one for one in page.all("span") if one.get("data-ids") is not None]
    return [int(number) for one in cells for number in (one["data-ids"] or "").split()]


def as_list(tokens: np.ndarray) -> list[int]:
    return [int(one) for one in tokens]
