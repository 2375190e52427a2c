"""The manifest and the ledger: what is refused, and what has to balance."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import CorruptStore
from packline.facade import Store
from packline.store.ledger import Ledger, total
from packline.store.manifest import FORMAT_VERSION, read_manifest, to_json

COUNT = st.integers(0, 1000)
REJECTED = st.dictionaries(st.sampled_from(["too_large", "invalid_utf8", "malformed_json"]), COUNT)
NUMBERS = [name for name in Ledger.__struct_fields__ if name not in ("rejected", "mask")]
LEDGERS = st.builds(Ledger, rejected=REJECTED, **dict.fromkeys(NUMBERS, COUNT))


def test_reading_gives_what_was_written(built: Store) -> None:
    data = (built.path / "manifest.json").read_bytes()
    assert to_json(read_manifest(built.path)) == data
    assert not [word for word in ("seconds", "hostname", "workers", "engine") if word.encode() in data]


def test_a_newer_version_is_refused(damaged: Path) -> None:
    path = damaged / "manifest.json"
    whole = json.loads(path.read_text())
    whole["format_version"] = FORMAT_VERSION + 1
    whole["unheard"] = {"of": True}
    path.write_text(json.dumps(whole))
    with pytest.raises(CorruptStore, match="newer than 1") as caught:
        read_manifest(damaged)
    assert "update" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null", b'{"format_version": "1"}'])
def test_something_else_is_refused(damaged: Path, data: bytes) -> None:
    (damaged / "manifest.json").write_bytes(data)
    with pytest.raises(CorruptStore, match="is damaged"):
        read_manifest(damaged)


def test_any_changed_value_is_refused(damaged: Path) -> None:
    path = damaged / "manifest.json"
    data = path.read_bytes()
    for old, new in ((b'"seed": 0', b'"seed": 1'), (b'"packline": "0', b'"packline": "9'), (b" ", b"  ")):
        assert old in data
        path.write_bytes(data.replace(old, new, 1))
        with pytest.raises(CorruptStore, match="is damaged"):
            read_manifest(damaged)


@given(st.data())
def test_any_flipped_bit_is_refused(built: Store, data: st.DataObject) -> None:
    import tempfile

    manifest = bytearray((built.path / "manifest.json").read_bytes())
    manifest[data.draw(st.integers(0, len(manifest) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "manifest.json").write_bytes(manifest)
        with pytest.raises(CorruptStore):
            read_manifest(Path(folder))


@given(st.lists(LEDGERS, min_size=1, max_size=5))
def test_a_sum_of_ledgers_is_the_sum_of_every_count(ledgers: list[Ledger]) -> None:
    found = total(ledgers)
    for name in NUMBERS:
        assert getattr(found, name) == sum(getattr(ledger, name) for ledger in ledgers)
    assert found.bad == sum(ledger.bad for ledger in ledgers)
    assert list(found.rejected) == sorted(found.rejected)


@given(LEDGERS)
def test_a_ledger_that_is_made_to_balance_balances(ledger: Ledger) -> None:
    left_out = ledger.empty + ledger.too_short + ledger.too_long + (ledger.filtered or 0)
    ledger.documents_in = ledger.documents + left_out + ledger.bad
    ledger.eod_tokens = ledger.documents
    ledger.tokens = ledger.text_tokens + ledger.eod_tokens + ledger.bos_tokens
    assert ledger.imbalance() == []
    counted = [name for name in NUMBERS if name not in ("text_bytes", "special_token_strings")]
    for name in counted:
        changed = msgspec.structs.replace(ledger, **{name: getattr(ledger, name) + 1})
        assert changed.imbalance(), name


def test_what_no_source_filters_is_no_part_of_a_ledger() -> None:
    plain, filtered = Ledger(documents_in=1, documents=1), Ledger(filtered=0)
    assert b"filtered" not in msgspec.json.encode(total([plain, plain]))
    assert total([plain, filtered]).filtered == 0
    assert total([filtered, Ledger(filtered=3), plain]).filtered == 3
