"""The report: its numbers are the store's, it is one small file that fetches and runs nothing, and it copes.

Every number is held against the store's own files, counted here in plain Python: documents one by one, texts
from the inputs, tokens of another tokenizer from the library itself.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest
from tests.viewing.parsed import Parsed, number

import packline
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import NoDocuments, RecipeError, StoreError, TokenizerError
from packline.facade import Store
from packline.jobs.build_job import run_build
from packline.packing.selection import Selection
from packline.packing.stats import compare_packings
from packline.recipe import Recipe, RunOptions, Source
from packline.viewing.html import render_file
from packline.viewing.page import Heading, Page, TokenStrip
from packline.viewing.report import (
    LARGEST,
    measure_compression,
    report_page,
)
from packline.viewing.text import percent

SEQ_LEN = 256


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path, documents: list[str]) -> Store:
    """Three sources, two labels, two splits, losses of every kind, duplicates."""
    folder = tmp_path_factory.mktemp("report")
    third = len(documents) // 3
    web = [{"id": f"w{place}", "text": text} for place, text in enumerate(documents[:third])]
    lines = [json.dumps(one) for one in [*web, *web[:7]]]
    lines += ["{oops", '{"text": 3}', '{"text": ""}', '{"text": ""}', '{"text": "ab"}']
    (folder / "web.jsonl").write_text("\n".join(lines), "utf-8")
    for name, texts in (("books", documents[third : 2 * third]), ("code", documents[2 * third :])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), "utf-8")
    sources = (
        Source(inputs=(str(folder / "web.jsonl"),), min_chars=3),
        Source(inputs=(str(folder / "books.jsonl"),), label="prose", max_chars=15_000),
        Source(inputs=(str(folder / "code.jsonl"),), label="program"),
    )
    recipe = Recipe(sources=sources, tokenizer=str(tokenizer_json), val_fraction=0.1)
    run_build(recipe, folder / "store", RunOptions(workers=0), None)
    return Store(folder / "store")


@pytest.fixture(scope="module")
def page(store: Store, tokenizer_json: Path) -> str:
    return render_file(report_page(store, seq_len=SEQ_LEN, against=str(tokenizer_json), workers=0))


@pytest.fixture(scope="module")
def parsed(page: str) -> Parsed:
    return Parsed(page)


def test_the_ledger_has_every_loss_by_its_name(store: Store, parsed: Parsed) -> None:
    ledger = store.manifest.ledger
    assert ledger.empty and ledger.too_short and ledger.too_long and len(ledger.rejected) == 2
    shown = {row[0]: number(row[1]) for row in parsed.table("From records to tokens")}
    expected = {
        "records in": ledger.documents_in,
        "- without text": ledger.empty,
        "- too short": ledger.too_short,
        "- too long": ledger.too_long,
        **{f"- bad: {name.replace('_', ' ')}": count for name, count in ledger.rejected.items()},
        "= documents": ledger.documents,
        "tokens of text": ledger.text_tokens,
        "+ end of document": ledger.documents,
        "= tokens": ledger.tokens,
    }
    assert {name: shown.get(name) for name in expected} == expected
    losses = sum(shown[name] for name in expected if name.startswith("-"))
    assert shown["records in"] - losses == shown["= documents"] == len(store.documents)
    held = sum(shard.tokens for shard in store.manifest.shards if shard.split == "val")
    counts = compare_packings(Selection(store), SEQ_LEN, ["concat"])[0].counts
    assert shown["- validation and test"] == held > 0
    dropped = shown.get("- a tail too short for a row", 0)
    assert dropped == counts.dropped_tokens
    assert shown["= tokens in rows"] == ledger.tokens - held - dropped


def test_tokens_by_source_and_label_are_those_of_the_documents(store: Store, parsed: Parsed) -> None:
    sources: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    for place in range(len(store.documents)):
        one = store.provenance(place)
        sources[one.source] += one.tokens
        documents[one.source] += 1
        kept[one.source] += one.tokens if one.split == "val" else 0
        if one.label is not None:
            labels[one.label] += one.tokens
    head, *rows = parsed.table("Tokens by source")
    assert head == ["source", "documents", "tokens", "not for training", "text"]
    whole = sum(sources.values())
    shown = {row[0]: row[2] for row in rows}
    assert shown == {name: f"{n:,} ({percent(n / whole)})" for name, n in sources.items()}
    assert list(shown) == [name for name, _ in sources.most_common()], "the largest first"
    assert {row[0]: (number(row[1]), number(row[3])) for row in rows} == {
        name: (documents[name], kept[name]) for name in sources
    }
    assert {row[0]: number(row[2]) for row in parsed.table("Tokens by label")[1:]} == labels


def test_every_document_is_counted_in_the_class_of_its_length(store: Store, parsed: Parsed) -> None:
    classes = Counter(len(document).bit_length() for document in store.documents)
    rows = parsed.table("Tokens per document")[1:]
    told = {number(row[0]).bit_length(): number(row[1]) for row in rows}
    assert {power: count for power, count in told.items() if count} == classes
    lengths = sorted(len(document) for document in store.documents)
    marks = {power: row[2] for power, row in zip(told, rows, strict=True)}
    for name, part in (("half", 0.5), ("90%", 0.9), ("99%", 0.99)):
        value = lengths[int(part * len(lengths))]
        assert f"{name} ≤ {value:,}" in marks[value.bit_length()]


def test_names_of_control_tokens_are_text_for_every_tokenizer(tmp_path: Path, tokenizer_json: Path) -> None:
    text = "ends with <|endoftext|> and more <|endoftext|>"
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for _ in range(3)))
    packline.build(tmp_path / "corpus.jsonl", tokenizer_json, out=tmp_path / "store", workers=0)
    store = packline.open(tmp_path / "store")
    (found,) = measure_compression(store, [load_tokenizer(str(tokenizer_json))], 5)
    assert found.tokens[0] == found.tokens[1] and found.text_bytes == 3 * len(text)
    built = tmp_path / "parsed"
    packline.build(tmp_path / "corpus.jsonl", tokenizer_json, out=built, workers=0, special_tokens="parse")
    (parsed,) = measure_compression(packline.open(built), [load_tokenizer(str(tokenizer_json))], 5)
    assert parsed.tokens[0] == parsed.tokens[1]
    assert parsed.text_bytes == 3 * len(text.replace("<|endoftext|>", ""))


def test_a_sample_is_whole_documents_where_they_are_short(tmp_path: Path, tokenizer_json: Path) -> None:
    texts = [f"a short text, the {place}. of all, naïve café" for place in range(10)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    sources = (Source(inputs=(str(tmp_path / "in.jsonl"),)),)
    recipe = Recipe(sources=sources, tokenizer=str(tokenizer_json), bos="<|endoftext|>")
    run_build(recipe, tmp_path / "store", RunOptions(workers=0), None)
    store = Store(tmp_path / "store")
    other = load_tokenizer(str(tokenizer_json))
    (found,) = measure_compression(store, [other], 5)
    tokens = sum(len(document) - 2 for document in store.documents)
    size = sum(len(text.encode()) for text in texts)
    assert (found.documents, found.text_bytes, found.tokens) == (10, size, (tokens, tokens))


def test_another_tokenizer_is_measured_on_the_texts_of_the_store(store: Store, tmp_path: Path) -> None:
    bytewise = {f"<0x{byte:02X}>": byte for byte in range(256)}
    model = {"type": "BPE", "vocab": {**bytewise, "<unk>": 256}, "merges": [], "byte_fallback": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {**model, "unk_token": "<unk>"}}))
    found = Parsed(render_file(report_page(store, seq_len=SEQ_LEN, against=str(tmp_path), workers=0)))
    rows = found.table("Bytes per token, by source")[1:]
    assert rows and all(row[2] == f"1.00 (×{1 / float(row[1]):.2f})" for row in rows), "a token a byte"


def test_warnings_come_before_anything_else(page: str, store: Store) -> None:
    assert "2 records of the input could not be read" in page
    assert page.index('class="warnings"') < page.index('id="the-store"')
    twice = len(store.documents) - len({document.tobytes() for document in store.documents})
    assert twice >= 5
    assert f"{percent(twice / len(store.documents))} of the documents are duplicates" in page


@pytest.mark.parametrize("texts", [["{oops"], [], ['{"text": "one document alone"}'], ['{"text": "a"}']])
def test_tiny_and_empty_stores_have_a_report(texts: list[str], tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in texts), "utf-8")
    recipe = Recipe(sources=(Source(inputs=(str(tmp_path / "in.jsonl"),)),), tokenizer=str(tokenizer_json))
    with contextlib.suppress(NoDocuments):  # the store is there all the same
        run_build(recipe, tmp_path / "store", RunOptions(workers=0), None)
    store = Store(tmp_path / "store")
    page = render_file(report_page(store, against=str(tokenizer_json), workers=0))
    parsed = Parsed(page)
    assert number(parsed.facts["tokens"]) == store.manifest.tokens
    assert ("the store is empty" in page) == (store.manifest.documents == 0)


def test_rows_are_left_out_token_by_token_before_a_file_is_too_large(store: Store) -> None:
    page = report_page(store, seq_len=4096, rows=200, workers=0)
    size = len(render_file(page).encode())
    assert LARGEST / 4 < size <= LARGEST
    few = report_page(store, seq_len=4096, rows=2, workers=0)

    def shown(page: Page) -> set[int]:
        rows = page.blocks[page.blocks.index(Heading("Rows")) :]
        return {4096 - strip.more for strip in rows if isinstance(strip, TokenStrip)}

    assert shown(few) == {512} and max(shown(page)) < 512


def test_the_same_store_gives_the_same_file(store: Store, tmp_path: Path) -> None:
    first = packline.report(store, out=tmp_path / "a.html", workers=0)
    second = packline.report(store.path, out=tmp_path / "b.html", workers=2)
    assert first == tmp_path / "a.html"
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"], "nothing else is left"


def test_what_cannot_be_is_refused_before_anything_is_counted(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a place for a file, found a folder"):
        packline.report(store, out=tmp_path)
    with pytest.raises(RecipeError, match="rows is -1"):
        packline.report(store, out=tmp_path / "r.html", rows=-1)
    with pytest.raises(RecipeError, match="seq_len is 1"):
        packline.report(store, out=tmp_path / "r.html", seq_len=1, workers=0)
    with pytest.raises(TokenizerError, match="no tokenizer"):
        packline.report(store, out=tmp_path / "r.html", against=tmp_path / "none.json")
    assert list(tmp_path.iterdir()) == []
