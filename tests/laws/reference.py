"""The same store in the simplest way, and corpora to build it from.

A corpus is a few files of every format, written from texts that are known; what a build must make of it
is computed here from the texts alone, with `json`, HF `tokenizers` and one loop.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import zstandard
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packline.facade import Store


@dataclass
class Document:
    """One document as it must come out."""

    text: str
    file: str
    position: int
    id: str | None


@dataclass
class Corpus:
    """Files, and what is in them."""

    files: list[Path] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    bad: dict[str, int] = field(default_factory=dict)
    records: int = 0


# Empty texts are met and left out; names of control tokens stand in texts like anything else.
texts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.sampled_from(
        ["", "<|endoftext|>", "a<|endoftext|>b", "  the quick brown fox\n", "def f(x):\n    return 1"]
    )
    | st.integers(1, 40).map("word ".__mul__),
    max_size=12,
)
kinds = st.sampled_from(["jsonl", "jsonl.gz", "jsonl.zst", "json", "json.gz", "parquet", "two.parquet"])
contents = st.lists(st.tuples(kinds, texts, st.booleans()), min_size=1, max_size=5)
Contents = list[tuple[str, list[str], bool]]


def write_corpus(folder: Path, contents: Contents) -> Corpus:
    """Write files `0.KIND`, `1.KIND`, ...; a file with `bad` has a bad record in the middle of it."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = Corpus()
    for number, (kind, given, bad) in enumerate(contents):
        path = folder / f"{number}.{kind}"
        corpus.files.append(path)
        if kind.endswith("parquet"):
            _write_parquet(path, given, corpus, 1 if kind == "two.parquet" and len(given) > 1 else 2)
        else:
            _write_json(path, given, bad, corpus)
    return corpus


def _write_json(path: Path, given: list[str], bad: bool, corpus: Corpus) -> None:
    """JSON lines, or one array of the same records."""
    array = ".json" in path.suffixes
    data, end = (b"[\n  ", b",\n  ") if array else (b"", b"\n")
    for number, text in enumerate(given):
        if bad and number == len(given) // 2:
            data += b'{"text": 5}' + end
            corpus.bad["not_a_string"] = corpus.bad.get("not_a_string", 0) + 1
            corpus.records += 1
        fields: dict[str, Any] = {"id": number, "text": text} if number % 3 else {"text": text, "n": 1}
        corpus.documents.append(Document(text, path.name, len(data), str(number) if number % 3 else None))
        indent = 1 if array and number % 2 else None
        data += json.dumps(fields, ensure_ascii=number % 2 == 0, indent=indent).encode() + end
    corpus.records += len(given)
    data = data.removesuffix(end) + b"\n]\n" if array else data
    if path.suffix == ".gz":
        cut = len(data) // 2  # two members
        data = gzip.compress(data[:cut], mtime=0) + gzip.compress(data[cut:], mtime=0)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)


def _write_parquet(path: Path, given: list[str], corpus: Corpus, pieces: int) -> None:
    ids = [f"row {number}" for number in range(len(given))]
    table = pa.table({"id": pa.array(ids, pa.string()), "text": pa.array(given, pa.large_string())})
    pq.write_table(table, path, row_group_size=max(len(given) // pieces, 1))
    for number, text in enumerate(given):
        corpus.documents.append(Document(text, path.name, number, ids[number]))
    corpus.records += len(given)


def reference_tokenizer(path: Path) -> Tokenizer:
    """HF tokenizers with control tokens' names as plain text."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def check_store(store: Store, corpus: Corpus, tokenizer: Tokenizer, eod: int, bos: int | None = None) -> None:
    """Tokens, boundaries, provenance and ledger are those of the corpus. For stores without splits."""
    expected = [document for document in corpus.documents if document.text]
    assert len(store.documents) == len(expected)
    before = [] if bos is None else [bos]
    total = 0
    for index, document in enumerate(expected):
        ids = tokenizer.encode(document.text, add_special_tokens=False).ids
        tokens = store.documents[index]
        assert tokens.tolist() == [*before, *ids, eod], document
        provenance = store.provenance(index)
        assert (provenance.file, provenance.position, provenance.id) == (
            document.file,
            document.position,
            document.id,
        )
        assert (provenance.text_bytes, provenance.tokens) == (len(document.text.encode()), len(tokens))
        assert provenance.hash == xxhash.xxh3_64_intdigest(document.text.encode())
        assert (provenance.source, provenance.split) == ("in", "train")
        total += len(tokens)
    ledger = store.manifest.ledger
    assert ledger.imbalance() == []
    assert ledger.documents == ledger.eod_tokens == len(expected)
    assert ledger.documents_in == corpus.records
    assert ledger.empty == len(corpus.documents) - len(expected)
    assert ledger.rejected == corpus.bad
    assert ledger.tokens == total
    assert ledger.bos_tokens == (0 if bos is None else len(expected))
    assert ledger.text_bytes == sum(len(document.text.encode()) for document in expected)
    assert sum(len(shard.tokens) for shard in store.shards) == total
    assert all(np.all(shard.tokens[np.cumsum(shard.lengths) - 1] == eod) for shard in store.shards)
