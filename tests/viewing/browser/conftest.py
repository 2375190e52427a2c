"""The browser, the stores that it looks at, and the site that shows them.

The browser lives for a module: while it runs, its thread has an event loop of its own, which tests of other
things need not share. Stores and the site live for a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.viewing.browser.harness import Chrome, serving, started
from tests.viewing.browser.hostile import hostile_store

import packline
from packline.facade import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RECIPE = """
tokenizer = {tokenizer!r}
eod = "<|endoftext|>"
val_fraction = 0.1

[[sources]]
inputs = [{modules!r}]
name = "code"
label = "python"

[[sources]]
inputs = [{prose!r}]
name = "prose"
"""


RUN = """
[loader]
batch_size = 4

[[stages]]
seq_len = 256
tokens = 4_096
sources = [{{ store = {store!r}, sources = "code" }}]

[[stages]]
seq_len = 512
tokens = 8_192
sources = [
    {{ store = {store!r}, sources = "code", weight = 0.5, max_epochs = 3 }},
    {{ store = {store!r}, sources = "prose", weight = 0.5, max_epochs = "unlimited" }},
]
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture
def chrome(browser: Browser) -> Iterator[Chrome]:
    """Opens pages; fails the test if any of them complained, ran what it should not, or asked elsewhere."""
    chrome = Chrome(browser)
    yield chrome
    assert chrome.close() == []


@pytest.fixture(scope="session")
def store(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], tokenizer_json: Path, write_jsonl
) -> Store:
    """Some hundred documents of two sources, in two splits."""
    folder = tmp_path_factory.mktemp("browsed")
    code = [{"text": text, "id": f"m{number}"} for number, text in enumerate(documents[20:220])]
    modules = write_jsonl(folder / "code" / "modules.jsonl", code)
    prose = write_jsonl(folder / "prose" / "hard.jsonl", documents[:20])
    recipe = folder / "recipe.toml"
    values = {"tokenizer": str(tokenizer_json), "modules": str(modules), "prose": str(prose)}
    recipe.write_text(RECIPE.format(**values), "utf-8")
    return packline.build(recipe, out=folder / "store", workers=0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory, documents: list[str], write_jsonl) -> Store:
    """Some of the same documents, by a tokenizer with a smaller vocabulary."""
    from packline.vocabulary.training import train_bpe

    folder = tmp_path_factory.mktemp("other")
    texts = write_jsonl(folder / "in" / "modules.jsonl", documents[20:120])
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(train_bpe(iter(documents[20:80]), 600, ("<|endoftext|>",)), "utf-8")
    return packline.build(texts, tokenizer, out=folder / "store", eod="<|endoftext|>", workers=0)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path) -> Store:
    return hostile_store(tmp_path_factory.mktemp("hostile"), tokenizer_json)


@pytest.fixture(scope="session")
def site(store: Store, other: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = tmp_path_factory.mktemp("run") / "run.toml"
    run.write_text(RUN.format(store=str(store.path)), "utf-8")
    with serving(store.path, other.path, run) as address:
        yield address


@pytest.fixture(scope="session")
def hostile_site(hostile: Store) -> Iterator[str]:
    with serving(hostile.path) as address:
        yield address


@pytest.fixture(scope="session")
def report(store: Store, tokenizer_json: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    packline.report(store, out=path, seq_len=512, against=[str(tokenizer_json)])
    return path


@pytest.fixture(scope="session")
def hostile_report(hostile: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    packline.report(hostile, out=path, seq_len=512)
    return path
