"""Rows without a store: token t of row r says source, row and place, so a batch shows where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np

from packline.errors import CorruptStore
from packline.packing.batch import PlannedRows
from packline.packing.layout import Layout
from packline.packing.packer import Spans
from packline.packing.rows import Rows, check_divides


class NumberedStore:
    """As much of a store, and of its files, as reading and comparing rows takes."""

    dtype, has_loss, traffic, build = np.dtype(np.int32), False, None, None

    def __init__(self, manifest: Any, place: PurePath, bring_ranges: Any) -> None:
        self.manifest, self.path, self.place, self.files = manifest, str(place), place, self
        self.bring_ranges = bring_ranges


class NumberedRow:
    """A shard with the tokens of one row."""

    def __init__(self, rows: NumberedRows, row: int) -> None:
        self._rows, self._row = rows, row

    @property
    def token_ranges(self) -> np.ndarray:
        if self._row in self._rows.damaged:
            raise CorruptStore(f"row {self._row} is damaged")
        first = (self._rows.source * 1000 + self._row) * 100
        return np.arange(first, first + self._rows.seq_len, dtype=np.int32)


class NumberedRows(Rows):
    """As many rows as wanted, row r of them one document of number r; every row but padding is trained on.

    `tokens[b, t] = (source * 1000 + row) * 100 + t`, the last token of a row has no target.
    """

    def __init__(
        self,
        count: int,
        seq_len: int = 4,
        *,
        source: int = 0,
        tokenizer: str = "bytes",
        damaged: Sequence[int] = (),
    ) -> None:
        self._count, self.seq_len, self.source = count, seq_len, source
        self.damaged = damaged
        self.calls = 0
        """How often rows were read."""
        entry = SimpleNamespace(name=tokenizer, fingerprint=f"{tokenizer}-fingerprint", vocab_size=2**31)
        manifest = SimpleNamespace(tokenizer=entry, checksum=f"store {source}")
        place = PurePath(f"store-{source}")
        self.store: Any = NumberedStore(manifest, place, self._bring_ranges)
        self.fingerprint = f"{source}:{count}:{seq_len}"
        self.settings_fingerprint = f"{count}:{seq_len}"

    @property
    def described(self) -> dict[str, Any]:
        return {}

    def will_need(self, start: int, stop: int) -> None:
        pass

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<{self.fingerprint}>"

    def plan(self, rows: Any) -> PlannedRows:
        """Each row is a range of its own, and its last token has no target."""
        assert rows.dtype == np.int64
        count, length = len(rows), self.seq_len
        layout = Layout.of(np.arange(count + 1), np.full(count, length), length)
        layout.last_targets = np.zeros(count, np.bool_)
        shards: list[Any] = [NumberedRow(self, row) for row in rows.tolist()]
        ranges = (shards, [0] * count, [length] * count, np.arange(count))
        return PlannedRows((self.store,), layout, *ranges, [0] * count)

    def _bring_ranges(self, *_: Any) -> None:
        self.calls += 1

    def spans(self, indices: Any) -> Spans:
        count = len(indices)
        lengths = np.full(count, self.seq_len, np.int64)
        starts, begins = np.zeros(count, np.int64), np.asarray(indices) * self.seq_len
        return Spans(np.arange(count + 1), np.asarray(indices), starts, lengths, begins, lengths)

    def rows_of(self, document: int) -> np.ndarray:
        return np.array([document], np.int64)

    def split_to(self, seq_len: int) -> NumberedRows:
        check_divides(self.seq_len, seq_len)
        count = self._count * (self.seq_len // seq_len)
        return NumberedRows(count, seq_len, source=self.source)


def rows_in(batch: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """(source, row) of every row of a batch of such rows."""
    tokens = batch["tokens"]
    assert np.array_equal(tokens, tokens[:, :1] + np.arange(tokens.shape[1])), "rows are mixed up"
    return [divmod(int(first) // 100, 1000) for first in tokens[:, 0]]
