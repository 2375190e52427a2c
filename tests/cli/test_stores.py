"""`packline merge` and `packline diff`, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import result, run

from packline.facade import Store
from packline.testing import make_store


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """A folder with the stores books, web and web2."""
    make_store(tmp_path / "books", [[5, 2], [4]], sources=["books", "books"])
    make_store(tmp_path / "web", [[7, 3]], sources=["web"])
    make_store(tmp_path / "web2", [[7, 3, 9]], sources=["web"])
    return tmp_path


def test_stores_are_merged_and_checked(stores: Path) -> None:
    done = run("merge", "books", "web", "--out", "both", cwd=stores, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert "5 documents, 21 tokens of 2 sources" in done.stdout
    assert "sizes of all files, checksums of manifests and tables" in done.stdout
    assert "packline verify both" in done.stdout and "\x1b" not in done.stdout
    assert not (stores / "both/.packline").exists()
    values = result(run("merge", "books", "web", "--out", "both", "--json", cwd=stores))
    assert values["nothing_to_do"] and values["sources"] == ["books", "web"] and values["exit_code"] == 0
    values = result(run("merge", "books", "web", "--out", "again", "--json", cwd=stores))
    assert values["linked_bytes"] > 0 and values["copied_bytes"] == 0
    assert Store(stores / "again").verify().ok


def test_differences_are_shown(stores: Path) -> None:
    done = run("diff", "web", "web2", cwd=stores, COLUMNS="100")
    assert done.returncode == 1 and done.stderr == ""
    assert "different" in done.stdout and "+9" in done.stdout
    values = result(run("diff", "web", "web2", "--json", cwd=stores))
    assert values["exit_code"] == 1 and values["equal"] is False
    assert values["sources"][0]["counts"]["added"] == 1
    same = run("diff", "web", "web", cwd=stores)
    assert same.returncode == 0 and "stores are  equal" in same.stdout
    missing = run("diff", "web", "nowhere", cwd=stores)
    assert missing.returncode == 1 and "nowhere does not exist" in missing.stderr


@pytest.mark.parametrize("given", ["web", "./"])
@pytest.mark.parametrize("command", ["build", "init"])
def test_a_store_given_as_text_is_refused_as_what_it_is(stores: Path, command: str, given: str) -> None:
    words = ["--tokenizer", "web/tokenizer/tokenizer.json", "--out", "new"]
    done = run(command, given, *words, cwd=stores)
    store = "web" if given == "web" else "./books"
    assert done.returncode == 1 and f"error: {store} is a store of packline: expected text" in done.stderr
    assert "packline merge" in done.stderr and "column" not in done.stderr
    assert not (stores / "new").exists()
