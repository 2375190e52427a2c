"""Rows without a store: token t of row r says source, row and place, so a batch shows where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np

from packline.errors import CorruptStore
from packline.packing.batch import FIELDS, BatchPart, read_batch
from packline.packing.layout import Layout, Outline
from packline.packing.packer import Spans


class NumberedRows:
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
        entry = SimpleNamespace(name=tokenizer, fingerprint=f"{tokenizer}-fingerprint")
        manifest = SimpleNamespace(tokenizer=entry, checksum=f"store {source}")
        place = PurePath(f"store-{source}")
        self.store: Any = SimpleNamespace(manifest=manifest, path=str(place), place=place)
        self.fingerprint = f"{source}:{count}:{seq_len}"
        self.settings_fingerprint = f"{count}:{seq_len}"

    def __len__(self) -> int:
        return self._count

    def plan(self, rows: np.ndarray) -> Any:
        return SimpleNamespace(read=partial(self._read, rows))

    def _read(self, rows: np.ndarray, **_: Any) -> tuple[np.ndarray, Outline]:
        assert rows.dtype == np.int64
        self.calls += 1
        for row in set(self.damaged) & set(rows.tolist()):
            raise CorruptStore(f"row {row} is damaged")
        tokens = (self.source * 1000 + rows[:, None]) * 100 + np.arange(self.seq_len + 1)
        lengths = np.full(len(rows), self.seq_len)
        layout = Layout.of(np.arange(len(rows) + 1), lengths, self.seq_len)
        return tokens, Outline(layout, np.zeros(len(rows), np.bool_))

    def read(self, indices: np.ndarray, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        return read_batch([BatchPart(self, indices)], fields)

    def spans(self, indices: np.ndarray) -> Spans:
        count = len(indices)
        lengths = np.full(count, self.seq_len, np.int64)
        starts, begins = np.zeros(count, np.int64), np.asarray(indices) * self.seq_len
        return Spans(np.arange(count + 1), np.asarray(indices), starts, lengths, begins, lengths)

    def rows_of(self, document: int) -> np.ndarray:
        return np.array([document], np.int64)

    def split_to(self, seq_len: int) -> NumberedRows:
        count = self._count * (self.seq_len // seq_len)
        return NumberedRows(count, seq_len, source=self.source)


def rows_in(batch: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """(source, row) of every row of a batch of such rows."""
    tokens = batch["tokens"]
    assert np.array_equal(tokens, tokens[:, :1] + np.arange(tokens.shape[1])), "rows are mixed up"
    return [divmod(int(first) // 100, 1000) for first in tokens[:, 0]]
