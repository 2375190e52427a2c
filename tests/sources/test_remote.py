"""Inputs by URI: the same documents as from the disk, over file://, memory:// and http:// on loopback."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sources.reading import files_of, read_file, read_sliced, source_of

from packline.errors import InputError

TEXTS = [f"document {number} with é" for number in range(300)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "deep/b.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / ".hidden.jsonl").write_bytes(lines)
    pq.write_table(pa.table({"text": TEXTS}), folder / "c.parquet", row_group_size=100)
    return folder


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, ranges too, without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not asked or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(data[start:stop])


@pytest.fixture
def server(corpus: Path) -> Iterator[str]:
    handler = functools.partial(RangeHandler, directory=str(corpus))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


@pytest.fixture
def in_memory(corpus: Path) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for path in corpus.rglob("*.*"):
        system.pipe_file(f"/corpus/{path.relative_to(corpus)}", path.read_bytes())
    yield "memory://corpus"
    system.rm("/corpus", recursive=True)


def check_each(base: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "deep/b.jsonl.gz", "c.parquet"):
        source = source_of(f"{base}/{name}")
        read = read_file(source, cuts=[] if name.endswith("gz") else [1, 2, 555])
        assert read.texts == TEXTS, name
        assert read_sliced(source, 1000)[0].texts == TEXTS, name


def test_file_uris(corpus: Path, tmp_path: Path) -> None:
    check_each(f"file://{corpus}", tmp_path)
    found = files_of(source_of(f"file://{corpus}"))
    assert [file.name for file in found] == ["a.jsonl", "c.parquet", "deep/b.jsonl.gz"]
    assert [file.size for file in found] == [(corpus / file.name).stat().st_size for file in found]
    assert [file.name for file in files_of(source_of(f"file://{corpus}/*.jsonl"))] == ["a.jsonl"]


def test_memory_uris(in_memory: str, tmp_path: Path) -> None:
    check_each(in_memory, tmp_path)
    assert [file.name for file in files_of(source_of(in_memory))] == [
        "a.jsonl",
        "c.parquet",
        "deep/b.jsonl.gz",
    ]
    assert [file.name for file in files_of(source_of(f"{in_memory}/**/*.gz"))] == ["b.jsonl.gz"]


def test_http_uris(server: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="http needs packline[remote]")
    check_each(server, tmp_path)
    (file,) = files_of(source_of(f"{server}/a.jsonl"))
    assert file.name == "a.jsonl" and file.size > 0


def test_what_is_not_there_is_told(server: str, in_memory: str) -> None:
    pytest.importorskip("obstore", reason="http needs packline[remote]")
    for missing in (f"{server}/gone.jsonl", f"{in_memory}/gone.jsonl", f"{in_memory}/*.nothing"):
        with pytest.raises(InputError, match=r"cannot find|no files in") as caught:
            files_of(source_of(missing))
        assert missing in caught.value.message


def test_an_unknown_protocol_is_told() -> None:
    with pytest.raises(InputError, match=r"cannot open nonsense://x/y") as caught:
        files_of(source_of("nonsense://x/y"))
    assert "packline[remote]" in caught.value.hint
