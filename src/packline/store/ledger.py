"""The ledger: counts that must balance.

    documents_in = documents + empty + too_short + too_long + filtered + rejected
    tokens       = text_tokens + eod_tokens + bos_tokens

`verify` counts the right-hand sides again from the store's files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

import msgspec

from packline.recipe import Recipe


class MaskCounts(msgspec.Struct, kw_only=True):
    """Counts that exist only in a store with a loss mask."""

    trained_tokens: int = 0
    truncated: int = 0
    """Documents that were cut to a number of tokens."""
    truncated_tokens: int = 0


class Ledger(msgspec.Struct, kw_only=True):
    """Counts of documents, bytes and tokens. Add them up with `+`."""

    documents_in: int = 0
    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    text_tokens: int = 0
    eod_tokens: int = 0
    bos_tokens: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    """Bad records by reason; verbatim in rejects/."""
    special_token_strings: int = 0
    """Occurrences of special tokens as strings in texts."""
    mask: MaskCounts | msgspec.UnsetType = msgspec.UNSET
    """Counts for a store of conversations; absent otherwise."""
    filtered: int | msgspec.UnsetType = msgspec.UNSET
    """Left out by a source's filters; absent if no source has any."""
    lost_ids: int | msgspec.UnsetType = msgspec.UNSET
    """Documents whose own id is no valid Unicode, and null in the store; absent if there are none."""

    def add_documents(self, count: int, text_bytes: int, tokens: int, *, with_bos: bool) -> None:
        """Count documents written to the store."""
        self.documents += count
        self.text_bytes += text_bytes
        self.tokens += tokens
        self.eod_tokens += count
        self.bos_tokens += count if with_bos else 0
        self.text_tokens += tokens - count * (2 if with_bos else 1)

    def add_lost_ids(self, count: int) -> None:
        """Count documents whose id cannot be kept."""
        if count:
            self.lost_ids = (self.lost_ids or 0) + count

    def add_rejected(self, reason: str, records: int) -> None:
        """Count bad records."""
        self.documents_in += records
        self.rejected[reason] = self.rejected.get(reason, 0) + records

    def __add__(self, other: Ledger) -> Ledger:
        sums = _added(msgspec.to_builtins(self), msgspec.to_builtins(other))
        sums["rejected"] = dict(sorted(sums["rejected"].items()))
        return msgspec.convert(sums, Ledger)

    @property
    def left_out(self) -> int:
        """Good records that did not become documents."""
        return sum(getattr(self, name) or 0 for name in LEFT_OUT)

    @property
    def bad(self) -> int:
        """Number of bad records."""
        return sum(self.rejected.values())

    @property
    def bad_fraction(self) -> float:
        """Share of bad records among all records read."""
        return self.bad / self.documents_in if self.documents_in else 0.0

    def imbalance(self) -> list[str]:
        """Equations that do not hold, one line each; empty for a ledger that balances."""
        problems = []
        out = self.documents + self.left_out + self.bad
        if out != self.documents_in:
            problems.append(f"documents: {self.documents_in:,} in, {out:,} accounted for")
        tokens = self.text_tokens + self.eod_tokens + self.bos_tokens
        if tokens != self.tokens:
            problems.append(f"tokens: {self.tokens:,} in the store, {tokens:,} accounted for")
        if self.eod_tokens != self.documents:
            problems.append(f"ends: {self.documents:,} documents, {self.eod_tokens:,} end-of-document tokens")
        if mask := self.mask:
            if mask.trained_tokens > self.tokens:
                problems.append(f"loss mask: {mask.trained_tokens:,} of {self.tokens:,} tokens trained on")
            if mask.truncated > min(self.documents, mask.truncated_tokens):
                cut = f"{mask.truncated:,} cut, {mask.truncated_tokens:,} tokens cut off"
                problems.append(f"truncation: {self.documents:,} documents, {cut}")
        return problems


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _added(one.get(name, {}), other.get(name, {}))
        if isinstance(count, dict)
        else one.get(name, 0) + other.get(name, 0)
        for name, count in (one | other).items()
    }


LEFT_OUT = {
    "empty": "without text",
    "too_short": "too short",
    "too_long": "too long",
    "filtered": "left out by filters",
}
"""Fields that count good records which did not become documents, and what they count in words."""


def losses(ledger: Ledger) -> list[tuple[str, int]]:
    """Records that did not become documents: reason in words, and number."""
    found = [
        *((words, getattr(ledger, name) or 0) for name, words in LEFT_OUT.items()),
        *((reason.replace("_", " "), count) for reason, count in ledger.rejected.items()),
    ]
    return [(name, count) for name, count in found if count]


def totals_by_source(names: Sequence[str], ledgers: Iterable[tuple[str, Ledger]]) -> dict[str, Ledger]:
    """Sum of each source's ledgers, in one pass over all of them."""
    sums = {name: Ledger() for name in names}
    for source, ledger in ledgers:
        sums[source] = sums.get(source, Ledger()) + ledger
    return sums


def source_names(recipe: Recipe) -> list[str]:
    """Names of the sources: from the recipe, or after the file or folder that their inputs share.

    Files that a shell expanded from `web/*.jsonl` get the same name as the glob.

    >>> from packline.recipe import Source
    >>> sources = (Source(inputs=("web/*.jsonl",)), Source(inputs=("web/a.jsonl", "web/b.jsonl")))
    >>> source_names(Recipe(sources=(*sources, Source(inputs=("c",), name="books")), tokenizer="t"))
    ['web-0', 'web-1', 'books']
    """
    names = [source.name or _name_of(source.inputs) for source in recipe.sources]
    counts = Counter(names)
    return [
        name if recipe.sources[number].name or counts[name] == 1 else f"{name}-{number}"
        for number, name in enumerate(names)
    ]


@cache
def _name_of(inputs: tuple[str, ...]) -> str:
    """Last part without a wildcard of the paths' common prefix, without endings.

    >>> _name_of(("data/web.v2.jsonl",)), _name_of(("s3://bucket/a.txt", "s3://bucket/b/c.txt"))
    ('web', 'bucket')
    >>> _name_of(("a.txt", "b.txt")), _name_of(("*.txt",))
    ('source', 'source')
    >>> _name_of(("hf://datasets/org/name@0123/*.parquet",))
    'name'
    """
    places = [re.sub("^(hf://datasets/[^/@]+/[^/@]+)@[^/]+", r"\1", path) for path in inputs]
    paths = [[part for part in path.split("/") if part not in ("", ".", "..")] for path in places]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    plain = [part for part in shared if not part.endswith(":") and not any(sign in part for sign in "*?[")]
    name = plain[-1] if plain else "source"
    return name.split(".")[0] or name
