"""`verify(deep=True)`: the store against its inputs and the reference tokenizer."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.store.stores import build_store, edit_tokens, reseal

from packline.facade import Store
from packline.store import reencode_audit
from packline.store.manifest import Manifest
from packline.store.reencode_audit import spread_indices
from packline.store.report import DeepReport
from packline.store.verify import verify


def said(folder: Path) -> str:
    return "\n".join(map(str, verify(folder, deep=True).problems))


def sound(folder: Path) -> DeepReport:
    report = verify(folder, deep=True)
    assert list(map(str, report.problems)) == [] and report.deep is not None
    return report.deep


def test_a_clean_store(built: Store) -> None:
    deep = sound(built.path)
    assert deep.notes == []
    assert deep.shards == len(built.manifest.shards) == 2
    assert deep.decoded == deep.documents >= 64
    assert deep.text_bytes <= 2 * reencode_audit.TEXT_BYTES
    assert sound(built.path) == deep


def test_a_wrong_id_is_found_with_its_place(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last document is always looked at.
    def change(tokens: np.ndarray) -> None:
        tokens[-2] = tokens[-2] % 4000 + 1

    edit_tokens(damaged, "train-in-000000", change)
    reseal(damaged)
    assert verify(damaged).ok  # every file holds together: only the text tells
    report = verify(damaged, deep=True)
    assert not report.ok
    assert "differs from the reference tokenizer at its token" in str(report.problems[0])
    assert "c.jsonl at " in str(report.problems[0])


def test_without_inputs_ids_are_decoded_and_encoded(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Callable[..., Path]
) -> None:
    source = write_jsonl(tmp_path / "in/a.jsonl", documents[:50])
    store = build_store(source, tokenizer_json, tmp_path / "store")
    source.unlink()
    deep = sound(store.path)
    assert "cannot find" in deep.notes[0] and deep.documents == 50
    # A text's bytes are one token each: right text, wrong ids.
    text = store.text(49)
    bytes_as_ids = [
        store.tokenizer.token_to_id(one) for one in store.tokenizer.pre_tokenizer.pre_tokenize_str(text)[0][0]
    ]

    def change(tokens: np.ndarray) -> None:
        tokens[-1 - len(bytes_as_ids[:1]) : -1] = bytes_as_ids[:1]

    edit_tokens(store.path, "train-a-000000", change)
    reseal(store.path)
    assert "train-a-000000.bin: document 49" in said(store.path)


def test_changed_inputs_are_noted(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Callable[..., Path]
) -> None:
    for name in "abce":
        write_jsonl(tmp_path / f"in/{name}.jsonl", ["some words", *documents[:9]])
    store = build_store(tmp_path / "in", tokenizer_json, tmp_path / "store")
    with (tmp_path / "in/a.jsonl").open("ab") as file:
        file.write(b"{}\n")
    (tmp_path / "in/b.jsonl").unlink()
    write_jsonl(tmp_path / "in/d.jsonl", ["new"])
    same_size = tmp_path / "in/e.jsonl"
    same_size.write_bytes(same_size.read_bytes().replace(b"some", b"sume", 1))
    notes = "\n".join(sound(store.path).notes)
    assert "a.jsonl has changed" in notes
    assert "b.jsonl of source in is gone" in notes
    assert "1 inputs are new" in notes
    assert "its bytes are others, its size is the same" in notes


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "parquet", "line", "separator", "file"])
def test_every_kind_of_input_is_found_again(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], write_jsonl: Callable[..., Path], kind: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "in"
    folder.mkdir()
    texts = [text for text in documents if "\n" not in text and "\r" not in text and "|" not in text][:30]
    settings: dict[str, Any] = {}
    if kind == "jsonl":
        path = write_jsonl(folder / "a.jsonl", [{"text": text, "id": n} for n, text in enumerate(texts)])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    elif kind == "gzip":
        path = write_jsonl(folder / "a.jsonl", texts)
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    elif kind == "parquet":
        pq.write_table(pa.table({"text": texts}), folder / "a.parquet", row_group_size=7)
    elif kind == "file":
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_bytes(text.encode())
    else:
        between = "\n" if kind == "line" else "||"
        (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + between.join(texts).encode())
        settings = {"documents": kind} | ({} if kind == "line" else {"separator": "||"})
    store = build_store(folder, tokenizer_json, tmp_path / "store", **settings)
    assert len(store.documents) == len(texts)
    deep = sound(store.path)
    assert (deep.documents, deep.notes) == (len(texts), [])


def test_a_wrong_split_is_found(damaged: Path) -> None:
    def change(old: Manifest) -> Manifest:
        return replace(old, recipe=replace(old.recipe, seed=old.recipe.seed + 1))

    reseal(damaged, change_manifest=change)
    assert verify(damaged).ok
    assert "split of document" in said(damaged)


@pytest.mark.parametrize("input_kept", [True, False])
def test_a_wrong_hash_is_found(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], input_kept: bool
) -> None:
    from tests.store.test_verify import edit_provenance

    source = write_jsonl(tmp_path / "in/a.jsonl", ["one", "and another"])
    folder = build_store(source, tokenizer_json, tmp_path / "store").path
    edit_provenance(folder, "hash", lambda values: [values[0] ^ 1, *values[1:]])
    reseal(folder)
    if not input_kept:
        source.unlink()
    assert verify(folder).ok
    assert ("hash of document 0" if input_kept else "decodes to a text of another hash") in said(folder)


def test_a_long_document_is_compared_by_its_beginning(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reencode_audit, "LONGEST_TEXT", 1000)
    (tmp_path / "a.txt").write_text("some words and more of them " * 500)
    store = build_store(tmp_path / "a.txt", tokenizer_json, tmp_path / "store")
    deep = sound(store.path)
    assert deep.text_bytes <= 1000 and deep.documents == 1

    def change(tokens: np.ndarray) -> None:
        tokens[20] += 1

    edit_tokens(store.path, "train-a-000000", change)
    reseal(store.path)
    assert "at its token 20" in said(store.path)


@given(st.integers(0, 300))
def test_an_order_that_is_far_apart_has_every_place_once(count: int) -> None:
    order = spread_indices(count)
    assert sorted(order) == list(range(count))
    if count > 8:
        assert set(order[:2]) == {0, count - 1}
        assert min(abs(one - other) for one in order[:4] for other in order[:4] if one != other) >= count // 5
