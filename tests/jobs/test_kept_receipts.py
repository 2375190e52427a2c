"""Receipts kept as bytes behave as a dict of them, in memory and in a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.fingerprint import hash_bytes
from packline.jobs import kept_receipts
from packline.jobs.kept_receipts import KeptReceipts
from packline.store.ledger import Ledger
from packline.store.manifest import Receipt, to_json

NAMES = [f"web-{number:06d}" for number in range(6)]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10**12) | st.none()), max_size=40)


@given(STEPS, st.sampled_from([0, 300, 1 << 20]))
def test_they_are_a_dict(steps: list[tuple[str, int | None]], in_memory: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_receipts, "IN_MEMORY", in_memory)
        kept, plain = KeptReceipts(), dict[str, Receipt]()
        for name, tokens in steps:
            if tokens is None:
                assert (kept.pop(name, None) is None) == (plain.pop(name, None) is None)
            else:
                receipt = Receipt(name, "web", (), (), (), Ledger(tokens=tokens), 0)
                kept[name] = plain[name] = receipt
    assert dict(kept) == plain and len(kept) == len(plain)
    for name, receipt in plain.items():
        entry = kept.entry(name)
        assert (entry.bytes, entry.checksum) == (len(to_json(receipt)), hash_bytes(to_json(receipt)))
