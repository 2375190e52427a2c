"""Small stores whose documents have columns and texts of a test's choosing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from tests.store.stores import relist

from packline.facade import Store
from packline.store.provenance import documents_schema
from packline.testing import make_store

CARRIED = (("score", "float"), ("lang", "string"), ("good", "boolean"))
SOURCES = ("web", "code", "books")


@dataclass(frozen=True)
class Document:
    """A document of such a store."""

    length: int
    text: int
    """Number of its text: the hash; texts below 0 have the size of another one with that hash."""
    score: float | None
    lang: str | None
    good: bool | None

    @property
    def record(self) -> dict[str, Any]:
        """Its columns as a record."""
        return {
            "score": self.score,
            "lang": self.lang,
            "good": self.good,
            "tokens": self.length,
            "hash": abs(self.text) + 2**63,
            "text_bytes": 7 if self.text < 0 else 5,
        }


@dataclass(frozen=True)
class Shape:
    """Shards of documents, each of one source; the last source carries no columns."""

    shards: tuple[tuple[int, tuple[Document, ...]], ...]

    def documents(self) -> list[Document]:
        """All documents, as the store has them: without columns in the last source."""
        return [
            Document(one.length, one.text, None, None, None) if source == len(SOURCES) - 1 else one
            for source, shard in self.shards
            for one in shard
        ]

    def sources(self) -> list[str]:
        """Source of each document."""
        return [SOURCES[source] for source, shard in self.shards for _ in shard]

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The store, in a temporary folder."""
        with tempfile.TemporaryDirectory() as folder:
            yield self.write(Path(folder) / "store")

    def write(self, folder: Path) -> Store:
        """The store in a folder."""
        store = make_store(
            folder,
            [[one.length for one in shard] for _, shard in self.shards],
            sources=[SOURCES[source] for source, _ in self.shards],
        )
        for shard, (source, documents) in zip(store.shards, self.shards, strict=True):
            carried = () if source == len(SOURCES) - 1 else CARRIED
            path = shard.path("docs.parquet")
            table = pq.read_table(path).select(documents_schema().names)
            records = [one.record for one in documents]
            for name in ("hash", "text_bytes"):
                column = pa.array([one[name] for one in records], documents_schema().field(name).type)
                table = table.set_column(
                    table.column_names.index(name), documents_schema().field(name), column
                )
            for field in list(documents_schema(carried))[len(documents_schema()) :]:
                table = table.append_column(field, pa.array([one[field.name] for one in records], field.type))
            pq.write_table(table.cast(documents_schema(carried)), path, row_group_size=3)
        return relist(folder)


def documents() -> st.SearchStrategy[Document]:
    """Documents of few texts, scores and languages."""
    return st.builds(
        Document,
        st.integers(1, 12),
        st.integers(-3, 4),
        st.none() | st.integers(0, 6).map(lambda value: value / 2),
        st.none() | st.sampled_from(["de", "en", "fr"]),
        st.none() | st.booleans(),
    )


def shapes() -> st.SearchStrategy[Shape]:
    """Stores of one to four shards, sources in any order; the first carries columns."""

    def shards(most: int) -> st.SearchStrategy[tuple[int, tuple[Document, ...]]]:
        return st.tuples(st.integers(0, most), st.lists(documents(), min_size=1, max_size=8).map(tuple))

    more = st.lists(shards(len(SOURCES) - 1), max_size=3)
    return st.builds(lambda first, rest: Shape((first, *rest)), shards(len(SOURCES) - 2), more)


WHERES = st.sampled_from(
    [
        "score >= 1.5",
        "score < 2 and lang in ['de', 'en']",
        "not good",
        "good or lang is None",
        "lang.startswith('d') and score != 1",
        "source == 'web' or tokens > 4",
        "label is None and len(lang) == 2 and not score > 2.5",
        "tokens >= 1",
        "file.endswith('1.jsonl') or id in ['d0', 'd3']",
    ]
)
