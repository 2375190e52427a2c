"""The law of a build: the store is what one loop over the records would give, however it was made.

Promise 1: its bytes are a function of inputs and recipe, and of nothing else.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.jobs.builds import build, digests, set_sizes, set_sizes_everywhere
from tests.laws.reference import Contents, check_store, contents, reference_tokenizer, write_corpus

import packline
from packline.errors import NoDocuments

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@quick
@given(
    contents=contents, unit_bytes=st.integers(50, 3000), block_bytes=st.integers(20, 600), bos=st.booleans()
)
def test_a_store_is_what_one_loop_over_the_records_gives(
    fresh: Path, tokenizer_json: Path, contents: Contents, unit_bytes: int, block_bytes: int, bos: bool
) -> None:
    shutil.rmtree(fresh)
    corpus = write_corpus(fresh / "in", contents)
    if not any(text for _, given, _ in contents for text in given):
        corpus = write_corpus(fresh / "in", [*contents, ("jsonl", ["not empty"], False)])
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, unit_bytes, block_bytes)
        store = build(fresh / "out", fresh / "in", tokenizer_json, bos="<|endoftext|>" if bos else None)
    check_store(store, corpus, reference_tokenizer(tokenizer_json), 0, 0 if bos else None)
    seen = sum(text.count("<|endoftext|>") for _, given, _ in contents for text in given)
    assert store.manifest.ledger.special_token_strings == seen


@pytest.mark.parametrize(
    "recipe",
    [
        {"val_fraction": 0.3},
        {"special_tokens": "reject"},
        {"limit_documents": 3},
        {"limit_tokens": 30, "min_chars": 2},
    ],
    ids=str,
)
@settings(quick, max_examples=8)
@given(contents=contents, block_bytes=st.integers(20, 600), other=st.integers(20, 600))
@example([], 30, 600)
@example([("jsonl", ["00"] * 9, False)], 20, 40)
def test_bytes_do_not_depend_on_how_documents_are_batched(
    fresh: Path,
    tokenizer_json: Path,
    recipe: dict[str, Any],
    contents: Contents,
    block_bytes: int,
    other: int,
) -> None:
    shutil.rmtree(fresh)
    # Rejects of two kinds among one another, and documents on both sides of the limits.
    write_corpus(
        fresh / "in", [*contents, ("jsonl", ["a <|endoftext|>", "bb", "<|endoftext|>", "c " * 40], True)]
    )
    found = []
    for size in (block_bytes, other):
        with pytest.MonkeyPatch.context() as patch:
            set_sizes(patch, 1000, size)
            patch.setattr("packline.sources.reader.CUT_BYTES", 100)
            patch.setattr("packline.sources.parquet.CUT_BYTES", size)
            with contextlib.suppress(NoDocuments):  # the first document may be beyond the limit
                build(fresh / "out", fresh / "in", tokenizer_json, **recipe)
        found.append(digests(fresh / "out"))
        shutil.rmtree(fresh / "out")
    assert found[0] == found[1]


def mixed_corpus(folder: Path, documents: list[str]) -> None:
    """About 1.5 MB: plain, packed and columnar files, some bad records, special tokens in texts."""
    third = len(documents) // 3
    write_corpus(
        folder,
        [
            ("jsonl", documents[:third], True),
            ("jsonl.zst", documents[third:], True),
            ("parquet", documents[third : 2 * third], False),
            ("jsonl.gz", documents[::7], True),
            ("jsonl", ["one <|endoftext|> two", "漢字かな交じり文 " * 50], False),
        ],
    )


RUNS = [("tokenizers", 0), ("gigatoken", 0), ("auto", 0), ("tokenizers", 2), ("auto", 1), ("fastokens", 5)]
"""Engine, and number of workers."""
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "splits": {"val_fraction": 0.2, "seed": 3, "min_chars": 20, "max_chars": 4000},
    "documents": {"limit_documents": 500},
    "tokens": {"limit_tokens": 100_000, "special_tokens": "reject"},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_file_is_the_same_for_any_engine_and_any_number_of_workers(
    recipe: str,
    tmp_path: Path,
    tokenizer_json: Path,
    documents: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mixed_corpus(tmp_path / "in", documents[::2])
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 100_000)
    expected: dict[str, str] = {}
    for engine, workers in RUNS:
        out = tmp_path / f"{engine}-{workers}"
        build(out, tmp_path / "in", tokenizer_json, engine=engine, workers=workers, **RECIPES[recipe])
        expected = expected or digests(out)
        assert digests(out) == expected, out
    assert len([name for name in expected if name.endswith(".bin")]) >= 3
    assert "Traceback" not in capfd.readouterr().err  # of a worker that nobody waited for


def test_equal_texts_never_straddle_and_the_share_is_near(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text number {number % 4000}" for number in range(6000)]
    write_jsonl(tmp_path / "in/a.jsonl", texts)
    write_jsonl(tmp_path / "turned/a.jsonl", texts[::-1])
    set_sizes(monkeypatch, 20_000, 5000)
    sides: list[dict[str, str]] = []
    for name in ("in", "turned"):
        store = build(tmp_path / f"out-{name}", tmp_path / name, tokenizer_json, val_fraction=0.1, seed=5)
        side: dict[str, str] = {}
        for index in range(len(store.documents)):
            split = store.provenance(index).split
            assert side.setdefault(store.text(index), split) == split
        sides.append(side)
    assert sides[0] == sides[1] and len(sides[0]) == 4000
    share = list(sides[0].values()).count("val") / 4000
    assert abs(share - 0.1) < 0.03  # six standard deviations


@settings(quick, max_examples=15)
@given(
    documents=st.none() | st.integers(1, 40),
    tokens=st.none() | st.integers(1, 400),
    unit_bytes=st.integers(100, 2000),
)
def test_a_limit_gives_the_beginning_of_the_unlimited_store(
    fresh: Path, tokenizer_json: Path, documents: int | None, tokens: int | None, unit_bytes: int
) -> None:
    shutil.rmtree(fresh)
    numbers = [f"{number} " * (number % 11 + 1) for number in range(30)]
    kinds = ["jsonl", "jsonl.zst", "parquet"]
    files: Contents = [(kind, [*numbers[10 * n : 10 * n + 10], ""], True) for n, kind in enumerate(kinds)]
    write_corpus(fresh / "in", files)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, unit_bytes, 50)
        patch.setattr("packline.sources.parquet.CUT_BYTES", 60)
        whole = build(fresh / "whole", fresh / "in", tokenizer_json)
        with contextlib.suppress(NoDocuments):  # the first document may be beyond the limit
            build(fresh / "out", fresh / "in", tokenizer_json, limit_documents=documents, limit_tokens=tokens)
        store = packline.open(fresh / "out")
    room = 10**9 if tokens is None else tokens
    expected = []
    for document in whole.documents[: documents or 30]:
        room -= len(document)
        if room < 0:
            break
        expected.append(document.tolist())
    assert [document.tolist() for document in store.documents] == expected
    assert store.manifest.ledger.imbalance() == []
    assert [store.provenance(n) for n in range(len(expected))] == [
        whole.provenance(n) for n in range(len(expected))
    ]


@pytest.mark.parametrize("limit", [{"limit_documents": 301}, {"limit_tokens": 5000}])
def test_a_limit_gives_the_same_files_for_any_number_of_workers(
    limit: dict[str, int], tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text number {number} of many" for number in range(1000)]
    write_corpus(tmp_path / "in", [("jsonl.zst", texts[:300], False), ("jsonl", texts[300:], True)])
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 2000, 700)
    expected: dict[str, str] = {}
    for workers in (0, 1, 3):
        out = tmp_path / f"out-{workers}"
        build(out, tmp_path / "in", tokenizer_json, workers=workers, **limit)
        expected = expected or digests(out)
        assert digests(out) == expected, workers


def test_building_twice_does_nothing_and_changes_nothing(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", ["one", "two"])
    build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    told: list[Any] = []
    packline.build(tmp_path / "in", tokenizer_json, out=tmp_path / "out", workers=0, on_event=told.append)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert [event.nothing_to_do for event in told] == [True]


def test_nothing_behind_a_limit_that_ends_with_a_unit_is_committed(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [f"abcdef {number:03d}" for number in range(40)])
    set_sizes(monkeypatch, 110, 50)
    whole = build(tmp_path / "whole", tmp_path / "in", tokenizer_json)
    first = [shard.documents for shard in whole.manifest.shards][:3]
    build(tmp_path / "out", tmp_path / "in", tokenizer_json, limit_documents=sum(first))
    assert len(list((tmp_path / "out/receipts").iterdir())) == 3
