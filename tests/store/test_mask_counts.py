"""Counts of loss masks: they add up, they are absent where there is no mask, and nonsense is noticed."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from packline.store.ledger import Ledger, MaskCounts, total

COUNT = st.integers(0, 1000)
COUNTS = st.builds(MaskCounts, trained_tokens=COUNT, truncated=COUNT, truncated_tokens=COUNT)
LEDGERS = st.builds(Ledger, mask=COUNTS | st.just(msgspec.UNSET))


@given(st.lists(LEDGERS, max_size=5))
def test_a_sum_has_the_counts_of_all_masks_and_none_without_a_mask(ledgers: list[Ledger]) -> None:
    found, masks = total(ledgers).mask, [ledger.mask for ledger in ledgers if ledger.mask]
    assert bool(found) == bool(masks)
    if found:
        for name in MaskCounts.__struct_fields__:
            assert getattr(found, name) == sum(getattr(mask, name) for mask in masks)
    else:
        assert b"mask" not in msgspec.json.encode(total(ledgers))


def test_more_than_there_is_does_not_balance() -> None:
    ledger = Ledger(documents_in=1, documents=1, tokens=3, text_tokens=2, eod_tokens=1)
    ledger.mask = MaskCounts(trained_tokens=3, truncated=1, truncated_tokens=1)
    assert ledger.imbalance() == []
    for name in ("trained_tokens", "truncated"):
        more = msgspec.structs.replace(ledger.mask, **{name: getattr(ledger.mask, name) + 1})
        assert len(msgspec.structs.replace(ledger, mask=more).imbalance()) == 1, name
