"""Rows of documents by hand, and stores that go to a row format and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.formats.stores import EOD, Case

from packline.api import import_
from packline.facade import Store

IGNORED = -100


def rows_by_hand(
    documents: Sequence[Sequence[int]],
    seq_len: int,
    pad_id: int,
    masks: Sequence[Sequence[int]] | None = None,
) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Tokens, targets and lengths of rows that are cut from documents back to back."""
    stream, targets = [], []
    for number, document in enumerate(documents):
        for place, token in enumerate(document):
            stream.append(token)
            after = place + 1
            known = after < len(document) and (masks is None or masks[number][after])
            targets.append(document[after] if known else IGNORED)
    tokens, wanted, lengths = [], [], []
    for begin in range(0, len(stream), seq_len):
        row = stream[begin : begin + seq_len]
        empty = seq_len - len(row)
        tokens.append(row + [pad_id] * empty)
        wanted.append(targets[begin : begin + seq_len] + [IGNORED] * empty)
        lengths.append(len(row))
    return tokens, wanted, lengths


def import_of(folder: Path, name: str, case: Case, out: Path, **options: Any) -> Store:
    """Import files of a case's tokenizer."""
    from tests.formats.stores import write_tokenizer

    tokenizer = write_tokenizer(out.with_name("made"), case.vocab_size, case.eod_id, case.bos_id)
    eod = options.pop("eod", EOD)
    return import_(folder, from_=name, tokenizer=tokenizer, out=out, eod=eod, options=options, workers=0)
