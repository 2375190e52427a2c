"""The files that are measured: one set of documents, written in every format that is compared.

- `english.jsonl`, `english.parquet`, `english.jsonl.zst`: the same English text and code three times;
  the `.zst` is one frame;
- `slice/0.jsonl`, `slice/1.jsonl`: the first documents of it, for peers too slow for the whole;
- `mixed.jsonl`: Chinese, Japanese and Korean, and as many bytes of English and code;
- `corpus.json`: documents, bytes and kinds of each;
- `memory.jsonl`: on request, a much larger one, for the measurement of memory.

Half of `english` is prose where the machine has that much; code fills the rest. No text stands in a
file twice. `memory.jsonl` begins with every distinct English text; where these end before the file is
long enough it goes on with the same texts in which every ASCII letter is replaced by the one k places
further in the alphabet, k = 1, 2, ...: no longer English, but words that no cache has seen, which is
harder on memory than new English would be. It is used for memory alone, never for a rate.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from benchmarks.errors import BenchmarkError
from benchmarks.texts import Kind, Text, find_texts

BLOCK_BYTES = 1 << 20


class Facts(msgspec.Struct, frozen=True):
    """What a corpus file holds; `sources` is bytes of text by where they came from."""

    documents: int
    text_bytes: int
    kinds: dict[str, int]
    sources: dict[str, int]


def build_corpus(
    folder: Path, *, size_bytes: int, slice_bytes: int, memory_bytes: int, shared: Path | None
) -> None:
    """Assemble the files in `folder`; see the module.

    Args:
        folder: gets the files; `folder/packages` keeps what was fetched.
        size_bytes: text wanted in `english`.
        slice_bytes: text wanted in the slice.
        memory_bytes: text wanted in `memory.jsonl`; 0 for none.
        shared: where corpora lie, or None.

    Raises:
        BenchmarkError: the machine has less text than wanted.
    """
    texts = find_texts(folder / "packages", shared)
    english = choose_english(texts, size_bytes)
    mixed = choose_mixed(texts)
    folder.mkdir(parents=True, exist_ok=True)
    _write_jsonl(folder / "english.jsonl", english)
    _write_parquet(folder / "english.parquet", english)
    _compress(folder / "english.jsonl", folder / "english.jsonl.zst")
    part = _first(english, slice_bytes)
    (folder / "slice").mkdir(exist_ok=True)
    for number in (0, 1):
        _write_jsonl(folder / "slice" / f"{number}.jsonl", part[number::2])
    facts = {"english": facts_of(english), "slice": facts_of(part)}
    (folder / "mixed.jsonl").unlink(missing_ok=True)
    if mixed:
        _write_jsonl(folder / "mixed.jsonl", mixed)
        facts["mixed"] = facts_of(mixed)
    if memory_bytes:
        _write_jsonl(folder / "memory.jsonl", _endless(texts, memory_bytes))
    (folder / "corpus.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")


def load_facts(folder: Path) -> dict[str, Facts]:
    """What `corpus.json` says.

    Raises:
        BenchmarkError: there is no corpus in the folder.
    """
    try:
        return msgspec.json.decode((folder / "corpus.json").read_bytes(), type=dict[str, Facts])
    except (OSError, msgspec.DecodeError) as error:
        raise BenchmarkError(f"no corpus in {folder}: {error}", hint="python -m benchmarks corpus") from error


def choose_english(texts: list[Text], size_bytes: int) -> list[Text]:
    """Half prose if there is enough, else all of it; code for the rest; shuffled."""
    prose = _first([text for text in texts if text.kind == "prose"], size_bytes // 2)
    rest = size_bytes - sum(len(text.content) for text in prose)
    code = _first([text for text in texts if text.kind == "code"], rest)
    chosen = _shuffled([*prose, *code])
    size = sum(len(text.content) for text in chosen)
    if size < 0.95 * size_bytes:
        raise BenchmarkError(
            f"this machine has {size / 1e6:.0f} MB of distinct English text and code: "
            f"expected {size_bytes / 1e6:.0f} MB",
            hint="after apt-get update the kernel's sources can be fetched; or ask for less with --size",
        )
    return chosen


def choose_mixed(texts: list[Text]) -> list[Text]:
    """All Chinese, Japanese and Korean, and equally much of each other kind, half and half."""
    cjk = [text for text in texts if text.kind == "cjk"]
    half = sum(len(text.content) for text in cjk) // 2
    others = [_first([text for text in texts if text.kind == kind], half) for kind in ("prose", "code")]
    return _shuffled([*cjk, *others[0], *others[1]]) if cjk else []


def _shuffled(texts: list[Text]) -> list[Text]:
    """By the second half of the hash: the first half chose the texts, so it would part the kinds again."""
    return sorted(texts, key=lambda text: text.hash[16:])


def _first(texts: list[Text], size_bytes: int) -> list[Text]:
    """The longest beginning of `texts` with at most so many bytes."""
    total = 0
    for number, text in enumerate(texts):
        total += len(text.content)
        if total > size_bytes:
            return texts[:number]
    return texts


def facts_of(texts: Iterable[Text]) -> Facts:
    """Count documents and bytes.

    >>> facts_of([Text("0", "code", "linux-source", b"int x;")])
    Facts(documents=1, text_bytes=6, kinds={'code': 6}, sources={'linux-source': 6})
    """
    documents, kinds, sources = 0, dict[Kind, int](), dict[str, int]()
    for text in texts:
        documents += 1
        kinds[text.kind] = kinds.get(text.kind, 0) + len(text.content)
        sources[text.name] = sources.get(text.name, 0) + len(text.content)
    return Facts(documents, sum(kinds.values()), dict(sorted(kinds.items())), dict(sorted(sources.items())))


def rotate(content: bytes, places: int) -> bytes:
    """Every ASCII letter replaced by the one so many places further; case is kept.

    >>> rotate(b"Hazy 7", 1)
    b'Ibaz 7'
    """
    lower, upper = string.ascii_lowercase, string.ascii_uppercase
    shifted = lower[places:] + lower[:places] + upper[places:] + upper[:places]
    return content.translate(bytes.maketrans((lower + upper).encode(), shifted.encode()))


def _endless(texts: list[Text], size_bytes: int) -> Iterator[Text]:
    """English texts and code as they are, then rotated, until there are so many bytes."""
    english = [text for text in texts if text.kind != "cjk"]
    total = 0
    for places in range(26):
        for text in english:
            if total >= size_bytes:
                return
            total += len(text.content)
            content = rotate(text.content, places) if places else text.content
            yield Text(f"{text.hash}-{places}", text.kind, text.name, content)
    raise BenchmarkError(f"25 rotations make {total / 1e9:.1f} GB: expected {size_bytes / 1e9:.1f} GB")


def _records(texts: Iterable[Text]) -> Iterator[dict[str, str]]:
    return ({"id": text.hash, "text": text.content.decode(), "source": text.name} for text in texts)


def _write_jsonl(path: Path, texts: Iterable[Text]) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for record in _records(texts):
            file.write(encoder.encode(record) + b"\n")


def _write_parquet(path: Path, texts: list[Text]) -> None:
    """Row groups of about 64 MB of text, or 20,000 documents if that is less."""
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("source", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        start, size = 0, 0
        for number, text in enumerate(texts, 1):
            size += len(text.content)
            if size >= 64 << 20 or number - start == 20_000 or number == len(texts):
                writer.write_table(pa.Table.from_pylist(list(_records(texts[start:number])), schema))
                start, size = number, 0


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as plain, target.open("wb") as packed:
        zstandard.ZstdCompressor(level=3).copy_stream(plain, packed, read_size=BLOCK_BYTES)
