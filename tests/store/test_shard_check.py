"""The scan of a shard in blocks finds exactly the differences that a plain loop over its tokens finds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.stores import relist

from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.store import shard_check
from packline.store.files import FileEntry, StoreFiles
from packline.store.ledger import Ledger
from packline.store.report import Findings
from packline.store.shard_check import TokenRules, check_file, check_shard
from packline.testing import EOD_ID, StoreShape, store_shapes

BLOCKS = st.sampled_from([4, 8, 12, 64, 1 << 20])
"""Bytes of a block, whole tokens of both dtypes."""


def rules_of(store: Store, bos_id: int | None = None, control_ids: tuple[int, ...] = (EOD_ID,)) -> TokenRules:
    return TokenRules(store.dtype, store.manifest.tokenizer.vocab_size, EOD_ID, bos_id, control_ids)


def check(
    store: Store, number: int, block: int, control_ids: tuple[int, ...] = (EOD_ID,)
) -> tuple[Ledger | None, list[str]]:
    findings, entry = Findings(), store.manifest.shards[number]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_check, "BLOCK_BYTES", block)
        counts = check_shard(
            StoreFiles(store.path), entry, rules_of(store, None, control_ids), None, findings
        )
    return counts, [problem.what for problem in findings.problems]


def by_hand(
    tokens: list[int], lengths: list[int], vocab_size: int, control_ids: tuple[int, ...]
) -> list[str]:
    """Problems in the words of the module, by a loop over the documents."""
    outside: list[tuple[int, int]] = []
    unended: list[tuple[int, int]] = []
    inside: list[tuple[int, int]] = []
    place = 0
    for document, length in enumerate(lengths):
        for step in range(length):
            last, token = step == length - 1, tokens[place + step]
            for wrong, found in (
                (not 0 <= token < vocab_size, outside),
                (last and token != EOD_ID, unended),
                (not last and token in control_ids, inside),
            ):
                if wrong:
                    found.append((place + step, document))
        place += length
    said = []
    for what, found in (
        ("ids outside the vocabulary", outside),
        ("documents without EOD at their end", unended),
        ("control tokens inside documents", [] if outside else inside),
    ):
        if found:
            at, document = found[0]
            said.append(f"{len(found)} {what}, the first at token {at:,} (document {document:,})")
    return said


@settings(max_examples=20)
@given(store_shapes(), st.data())
def test_a_changed_token_is_found_as_by_a_plain_loop(shape: StoreShape, data: st.DataObject) -> None:
    with shape.opened() as store:
        number = data.draw(st.integers(0, len(shape.lengths) - 1))
        path = store.path / f"{store.manifest.shards[number].name}.bin"
        tokens, lengths = np.fromfile(path, store.dtype), list(shape.lengths[number])
        vocab_size = store.manifest.tokenizer.vocab_size
        some = [EOD_ID, 5, vocab_size - 1, vocab_size, 65_535]
        for place in data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=4)):
            tokens[place] = data.draw(st.sampled_from(some))
        many = data.draw(st.sampled_from([(), range(400, 600)]))
        few = st.sampled_from([(), (EOD_ID,), (EOD_ID, 5), (*some[:3], 6)])
        control = (*data.draw(few), *many)
        tokens.tofile(path)
        counts, said = check(relist(store.path), number, 1 << 20, control)
        assert said == by_hand(tokens.tolist(), lengths, vocab_size, control)
        assert counts is not None and (counts.documents, counts.tokens) == (len(lengths), sum(lengths))
        ends = tokens[np.cumsum(lengths) - 1]
        assert counts.eod_tokens == int((ends == EOD_ID).sum())
        # In small blocks the same tokens are counted, and each place is named by its own block.
        in_blocks, parts = check(relist(store.path), number, data.draw(BLOCKS), control)
        assert in_blocks == counts and bool(parts) == bool(said)


def test_a_wrong_begin_is_found(tmp_path: Path) -> None:
    store = StoreShape(((3, 2), (4,)), ("train", "train"), (None, None)).make(tmp_path / "store")
    entry = store.manifest.shards[0]
    found = Findings()
    counts = check_shard(StoreFiles(store.path), entry, rules_of(store, bos_id=999), None, found)
    assert counts is not None and counts.bos_tokens == 0
    assert [one.what for one in found.problems] == [
        "2 documents without BOS at their start, the first at token 0 (document 0)"
    ]


@settings(max_examples=12)
@given(st.lists(st.sampled_from([0, 1, 1, 2, 255]), min_size=9, max_size=9), st.sampled_from([2, 4, 1 << 20]))
def test_a_loss_mask_holds_zeros_and_ones(mask: list[int], block: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = StoreShape(((5, 4),), ("train",), (None,)).make(Path(folder) / "store")
        (store.path / f"{store.manifest.shards[0].name}.loss").write_bytes(bytes(mask))
        counts, said = check(relist(store.path), 0, block)
        wrong = [place for place, value in enumerate(mask) if value > 1]
        in_blocks = {place // block: place for place in reversed(wrong)}
        assert said == [f"byte {place}" for place in sorted(in_blocks.values())], "the first of each block"
        assert (
            counts is not None
            and counts.mask
            and counts.mask.trained_tokens == sum(value > 0 for value in mask)
        )


@given(st.binary(max_size=50), st.integers(1, 60))
def test_a_file_is_read_once_in_whole_blocks(data: bytes, block: int) -> None:
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_check, "BLOCK_BYTES", block)
        Path(folder, "a").write_bytes(data)
        entry = FileEntry("a", len(data), hash_bytes(data))
        findings = Findings()
        assert check_file(StoreFiles(Path(folder)), entry, findings, lambda part: seen.append(bytes(part)))
        assert b"".join(seen) == data and findings.bytes == len(data)
        assert all(len(part) == block for part in seen[:-1])
        for wrong in (FileEntry("a", len(data) + 1, entry.checksum), FileEntry("a", len(data), "0" * 32)):
            assert not check_file(StoreFiles(Path(folder)), wrong, findings)
        assert [one.what for one in findings.problems] == ["size in bytes", "checksum"]
