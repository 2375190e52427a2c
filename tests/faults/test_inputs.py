"""Bad input: told with its place, kept verbatim, counted, and nothing good goes with it (promise 9)."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.jobs.builds import build, rejects, set_sizes, set_sizes_everywhere
from tests.sources.test_jsonl import BAD_LINES
from tests.sources.test_parquet import damage

from packline.errors import BadRecord, InputError, TokenizerError
from packline.facade import Store


def texts_of(store: Store) -> list[str]:
    return [store.text(index) for index in range(len(store.documents))]


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def good(number: int) -> bytes:
    return json.dumps({"text": f"good {number}"}).encode()


@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_bad_line_is_kept_and_all_that_is_good_is_in_the_store(
    workers: int, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[bytes] = []
    for number, bad in enumerate(BAD_LINES):
        lines += [good(number), bad]
    lines += [b'{"text": ""}', b'{"text": "nul \\u0000"}', b""]
    path = written(tmp_path, "a.jsonl", b"\n".join(lines))
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 2000, 700)
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json, workers=workers)
    assert texts_of(store) == [f"good {number}" for number in range(len(BAD_LINES))] + ["nul \x00"]
    found = rejects(tmp_path / "out")
    assert [one["raw"] for one in found] == list(BAD_LINES)
    data = path.read_bytes()
    for entry, (bad, reason) in zip(found, BAD_LINES.items(), strict=True):
        assert entry["file"] == "a.jsonl" and entry["reason"] == reason and entry["detail"]
        assert data[entry["position"] :].startswith(bad + b"\n")
    ledger = store.manifest.ledger
    counts = {reason: list(BAD_LINES.values()).count(reason) for reason in sorted(set(BAD_LINES.values()))}
    assert ledger.rejected == counts
    assert ledger.documents_in == 2 * len(BAD_LINES) + 2 and ledger.empty == 1
    assert ledger.imbalance() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_strict_stops_at_a_bad_record_with_its_place(
    workers: int, tmp_path: Path, tokenizer_json: Path
) -> None:
    written(tmp_path, "a.jsonl", good(1) + b'\n{"text": 5}\nnonsense\n')
    with pytest.raises(
        BadRecord, match=r"a\.jsonl at 19: not_a_string: field 'text': Expected `str`, got `int`"
    ) as caught:
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, strict=True, workers=workers)
    assert "rejects/" in caught.value.hint
    build(
        tmp_path / "out", tmp_path / "in", tokenizer_json, workers=workers
    )  # strict is how to run, not what


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_truncated_stream_gives_all_documents_before_its_end(
    kind: str, streamed: bool, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes(monkeypatch, 3000 if streamed else 1 << 30, 1000)
    lines = b"".join(good(number) + b"\n" for number in range(3000))
    packed = (
        gzip.compress(lines)
        if kind == "gz"
        else zstandard.ZstdCompressor(write_checksum=True).compress(lines)
    )
    written(tmp_path, f"a.jsonl.{kind}", packed[: len(packed) // 2] if kind == "gz" else packed[:-2])
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    count = len(store.documents)
    assert count > 1000 and texts_of(store) == [f"good {number}" for number in range(count)]
    (entry,) = rejects(tmp_path / "out")
    assert entry["reason"] == "truncated_stream" and "compressed bytes" in entry["detail"]
    assert lines[entry["position"] :].startswith(entry["raw"])
    assert entry["position"] == sum(len(good(number)) + 1 for number in range(count))
    assert (len(store.shards) > 3) == streamed


@pytest.mark.parametrize("huge", [False, True])
def test_a_corrupt_row_group_costs_its_own_rows(
    huge: bool, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"row {number} " * 9 for number in range(90)]
    path = tmp_path / "in/a.parquet"
    path.parent.mkdir()
    pq.write_table(
        pa.table({"text": texts}), path, row_group_size=30, compression="zstd", use_dictionary=False
    )
    damage(path, 1)
    set_sizes(monkeypatch, 900 if huge else 1 << 30)
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    positions = [store.provenance(index).position for index in range(len(store.documents))]
    assert texts_of(store) == [texts[position] for position in positions]
    assert {*range(30), *range(60, 90)} <= {*positions} < {*range(90)}
    (entry,) = rejects(tmp_path / "out")
    assert entry["reason"] == "corrupt_parquet" and "row group 1, rows" in entry["detail"]
    assert entry["records"] + len(positions) == 90 == store.manifest.ledger.documents_in


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_beyond_the_limit_is_kept_whole_and_its_neighbours_too(
    pack: Any, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes(monkeypatch, 100_000, 10_000)
    long = json.dumps({"text": "long " * 60_000}).encode()
    written(tmp_path, "a.jsonl", pack(b"\n".join([good(1), long, good(2), long, good(3)])))
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json, max_document_bytes=50_000)
    assert texts_of(store) == ["good 1", "good 2", "good 3"]
    found = rejects(tmp_path / "out")
    assert [one["raw"] for one in found] == [long, long]
    assert {one["reason"] for one in found} == {"too_large"} and "max_document_bytes" in found[0]["detail"]
    assert [one["position"] for one in found] == [19, 19 + len(long) + 1 + 19]
    assert store.manifest.ledger.rejected == {"too_large": 2}


@pytest.mark.parametrize("engine", ["gigatoken", "fastokens"])
def test_a_million_equal_characters_take_seconds(
    engine: str, tmp_path: Path, tokenizer_json: Path, write_jsonl: Any
) -> None:
    texts = ["a" * 1_000_000, " " * 1_000_000, "漢" * 500_000, "\n" * 1_000_000]
    write_jsonl(tmp_path / "in/a.jsonl", texts)
    began = time.monotonic()
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json, engine=engine)
    assert time.monotonic() - began < 60
    assert texts_of(store) == texts


def test_plain_text_that_is_not_text_is_rejected_file_by_file(tmp_path: Path, tokenizer_json: Path) -> None:
    for name, data in {"a": b"one", "b": b"caf\xe9", "c": b"two\x00three", "d": b""}.items():
        written(tmp_path, f"{name}.txt", data)
    store = build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    assert texts_of(store) == ["one", "two\x00three"]
    (entry,) = rejects(tmp_path / "out")
    assert (entry["file"], entry["reason"], entry["raw"]) == ("b.txt", "invalid_utf8", b"caf\xe9")
    assert store.manifest.ledger.empty == 1


def test_a_file_that_goes_away_is_told(tmp_path: Path, tokenizer_json: Path) -> None:
    from packline.jobs.events import Planned

    path = written(tmp_path, "a.jsonl", good(1))

    def remove(event: Any) -> None:
        if isinstance(event, Planned):
            path.unlink()

    with pytest.raises(InputError, match=f"cannot find {path}"):
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, on_event=remove)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"a": 1}', "is no tokenizer: expected a model with a vocabulary, found a"),
        (b"{nonsense", "is not JSON"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}}}', "leaves open what ends a document"),
    ],
)
def test_a_tokenizer_that_is_none_is_told_before_anything_is_written(
    content: bytes, told: str, tmp_path: Path, write_jsonl: Any
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", ["one"])
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=told) as caught:
        build(tmp_path / "out", tmp_path / "in", path)
    assert str(path) in caught.value.message
    assert not (tmp_path / "out").exists()
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*gone\.json: expected a file or folder"):
        build(tmp_path / "out", tmp_path / "in", tmp_path / "gone.json")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_store_whose_name_is_not_utf8_is_refused(
    tmp_path: Path, tokenizer_json: Path, workers: int
) -> None:
    (tmp_path / "a.txt").write_text("text")
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(InputError, match="not UTF-8") as caught:
        build(out, tmp_path / "a.txt", tokenizer_json, workers=workers)
    assert "caf\\xe9" in caught.value.message and not out.exists()
