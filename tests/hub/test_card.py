"""The card says what the manifest says, and nothing of a machine; names in it stay text."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.hub.loopback import LoopbackHub

import packline
from packline.facade import Store
from packline.hub.card import escape_markdown, make_card, split_card
from packline.hub.push import push
from packline.hub.repository import read_pushable
from packline.viewing.text import visible

PLACE = "hf://datasets/org/tokens"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path) -> Store:
    """A store of two sources with a label, rejects, losses, carried columns and absolute paths."""
    folder = tmp_path_factory.mktemp("machine-of-mine")
    (folder / "web.jsonl").write_text(
        "".join(json.dumps({"text": f"page {n} " * (n + 1), "url": f"u{n}"}) + "\n" for n in range(40))
        + "{bad\n"
    )
    (folder / "books.jsonl").write_text(
        "".join(json.dumps({"text": f"book number {n}"}) + "\n" for n in range(5))
    )
    recipe = packline.Recipe(
        sources=(
            packline.Source(
                inputs=(str(folder / "web.jsonl"),), name="web|<b>x</b>", label="crawl", columns=("url",)
            ),
            packline.Source(inputs=(str(folder / "books.jsonl"),), name="books", min_chars=7),
        ),
        tokenizer=str(tokenizer_json),
        eod="<|endoftext|>",
        val_fraction=0.2,
    )
    return packline.build(recipe, out=folder / "store", workers=0, max_bad_fraction=1.0)


def rendered(card: str) -> str:
    """A card as HTML, by the Markdown of the documentation's extra."""
    markdown = pytest.importorskip("markdown_it")
    return str(markdown.MarkdownIt("commonmark").enable("table").render(split_card(card)[1]))


def test_the_card_has_the_counts_of_the_manifest(store: Store) -> None:
    manifest = store.manifest
    card = make_card(read_pushable(store.path), PLACE)
    matter, text = split_card(card)
    facts = matter["packline"]
    assert (facts["tokens"], facts["documents"], facts["dtype"]) == (
        manifest.tokens,
        manifest.documents,
        manifest.dtype,
    )
    assert facts["tokenizer_fingerprint"] == manifest.tokenizer.fingerprint
    assert facts["manifest_checksum"] == manifest.checksum
    shown = html.unescape(re.sub(r"<[^>]+>", " ", rendered(card)))
    for count in (manifest.tokens, manifest.ledger.text_bytes, manifest.ledger.documents_in):
        assert f"{count:,}" in shown
    for name, ledger in manifest.sources.items():
        assert " ".join(name.split()) in shown and f"{ledger.tokens:,}" in shown
    assert "crawl" in shown and "<|endoftext|>" in shown
    assert f"packline pull {PLACE} store" in text


def test_nothing_of_the_machine_is_in_the_card(store: Store) -> None:
    card = make_card(read_pushable(store.path), PLACE)
    assert "machine-of-mine" not in card and str(store.path) not in card
    assert not re.search(r"/(home|tmp|root|var|usr)/", card)
    assert 'inputs = ["web.jsonl"]' in card


def test_every_table_of_the_viewer_has_files(store: Store) -> None:
    matter, _ = split_card(make_card(read_pushable(store.path), PLACE))
    names = {path.name for path in store.path.iterdir()}
    found = []
    for config in matter["configs"]:
        for one in config["data_files"]:
            matched = {name for name in names if Path(name).match(one["path"])}
            assert matched and all(name.endswith(".docs.parquet") for name in matched)
            found += sorted(matched)
    assert sorted(found) == sorted(name for name in names if name.endswith(".docs.parquet"))
    assert len(matter["configs"]) == 2 and matter["configs"][0]["default"] is True


def test_what_somebody_writes_is_kept(hub: LoopbackHub, store: Store) -> None:
    from huggingface_hub import CommitOperationAdd, HfApi

    push(store.path, PLACE)
    card = hub.files("org/tokens")["README.md"].decode()
    mine = card.replace("# tokens\n", "# My title\n\nMy words.\n") + "\nThe end.\n"
    mine = mine.replace("---\n", "---\npretty_name: Tokens of mine\n", 1)
    added = [CommitOperationAdd("README.md", mine.encode())]
    HfApi().create_commit("org/tokens", added, commit_message="words", repo_type="dataset")
    push(store.path, PLACE, licence="odc-by")
    matter, text = split_card(hub.files("org/tokens")["README.md"].decode())
    assert text.lstrip().startswith("# My title\n\nMy words.\n") and text.endswith("The end.\n")
    assert matter["pretty_name"] == "Tokens of mine" and matter["license"] == "odc-by"
    assert text.count("## Ledger") == 1


@given(st.text())
@settings(max_examples=50)
def test_any_earlier_card_is_accepted(text: str) -> None:
    matter, rest = split_card(f"---\n{text}\n---\n{text}")
    assert rest.endswith(text)
    assert yaml.safe_load(yaml.safe_dump(matter)) == matter


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])))
@example("`a`")
@example("<code><script>a</script></code>")
def test_a_name_stays_text_in_a_table(name: str) -> None:
    shown = rendered(f"| name | count |\n|---|---|\n| {escape_markdown(name)} | 1 |")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown, re.DOTALL)
    assert len(cells) == 2 and "<" not in cells[0]
    assert html.unescape(cells[0]).strip() == visible(" ".join(name.split())).strip()
