"""The user's own text: plain files as they are, everything else as a build reads it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from packline.errors import InputError
from packline.vocabulary.texts import TEXT_BYTES, read_text


def test_a_file_is_read_at_whole_characters(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("x" * (TEXT_BYTES - 1) + "한국", "utf-8")
    assert read_text(str(long)) == "x" * (TEXT_BYTES - 1)
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    (tmp_path / "empty.txt").write_bytes(b"")
    for name, said in (("bad.txt", "byte 2"), ("empty.txt", "is empty"), ("none.txt", "cannot read")):
        with pytest.raises(InputError, match=said):
            read_text(str(tmp_path / name))


def test_documents_are_read_as_a_build_reads_them(tmp_path: Path) -> None:
    texts = ["첫째 문서", "second\ndocument", "third"]
    lines = "".join(json.dumps({"id": 7, "text": text}) + "\n" for text in texts)
    (tmp_path / "a.jsonl").write_text(lines + "{broken\n", "utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress("\n".join(texts).encode()))
    parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "folder" / f"{number}.txt").write_text(text, "utf-8")
    for name in ("a.jsonl", "a.jsonl.gz", "a.txt.zst", "a.parquet", "folder"):
        assert read_text(str(tmp_path / name)) == "\n".join(texts), name


def test_long_documents_are_cut_at_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text((json.dumps({"text": "x" + "한" * (TEXT_BYTES // 6)}) + "\n") * 4)
    found = read_text(str(path))
    assert TEXT_BYTES - 3 < len(found.encode()) <= TEXT_BYTES
    assert set(found) == set("x한\n")


def test_files_without_text_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "none.jsonl").write_text('{"text": ""}\n{"text": 5}\n')
    with pytest.raises(InputError, match="has no text field") as raised:
        read_text(str(tmp_path / "other.jsonl"))
    assert "--text" not in raised.value.hint
    with pytest.raises(InputError, match="has no text"):
        read_text(str(tmp_path / "none.jsonl"))
