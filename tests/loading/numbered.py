"""Rows without a store: token t of row r says source, row and place, so a batch shows where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from packline.errors import CorruptStore
from packline.packing.batch import FIELDS
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
        self.store: Any = SimpleNamespace(manifest=manifest, path=f"store-{source}", place=f"store-{source}")
        self.fingerprint = f"{source}:{count}:{seq_len}"
        self.settings_fingerprint = f"{count}:{seq_len}"

    def __len__(self) -> int:
        return self._count

    def read(self, indices: np.ndarray, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        assert indices.dtype == np.int64
        self.calls += 1
        for row in set(self.damaged) & set(indices.tolist()):
            raise CorruptStore(f"row {row} is damaged")
        first = (self.source * 1000 + indices) * 100
        tokens = (first[:, None] + np.arange(self.seq_len)).astype(np.int32)
        targets = tokens + 1
        targets[:, -1] = -100
        positions = np.tile(np.arange(self.seq_len, dtype=np.int32), (len(indices), 1))
        arrays = {
            "tokens": tokens,
            "targets": targets,
            "position_ids": positions,
            "segment_ids": np.zeros_like(tokens),
            "loss_mask": (targets != -100).astype(np.uint8),
        }
        return {name: arrays[name] for name in fields}

    def spans(self, indices: np.ndarray) -> Spans:
        count = len(indices)
        lengths = np.full(count, self.seq_len, np.int64)
        return Spans(np.arange(count + 1), np.asarray(indices), np.zeros(count, np.int64), lengths)

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
