"""Inputs by URI, most in an object store: listed, read and built as from the disk, as they were planned."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.jobs.builds import build, digests
from tests.sources.reading import files_of, read_file, read_sliced, source_of
from tests.storage.fault_proxy import Schedule, fault_proxy
from tests.storage.servers import Bucket
from tests.storage.web import serve

from packline.errors import InputChanged, InputError, ResumeMismatch
from packline.fingerprint import Hasher
from packline.jobs.events import Comparing, ReusePlanned
from packline.jobs.folder import etags_path
from packline.sources.files import InputFile
from packline.sources.reader import FILES_AHEAD, Span, open_ahead, read_span
from packline.storage import inputs
from packline.storage.inputs import open_input
from packline.storage.objects import ObjectFolder
from packline.storage.places import open_storage
from packline.storage.ranged_file import RangedFile
from packline.store.manifest_check import read_manifest

pytest.importorskip("obstore", reason="object stores need packline[remote]")
TEXTS = [f"document {number} with é" for number in range(300)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.fixture
def corpus(tmp_path: Path, bucket: Bucket) -> str:
    folder = tmp_path / "corpus"
    (folder / "deep/.hidden").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(LINES)
    (folder / "deep/b.jsonl.gz").write_bytes(gzip.compress(LINES))
    (folder / "deep/d.jsonl.zst").write_bytes(zstandard.compress(LINES))
    (folder / ".hidden.jsonl").write_bytes(LINES)
    (folder / "deep/.hidden/e.jsonl").write_bytes(LINES)
    (folder / "c.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    rows = {"text": TEXTS, "unused": [os.urandom(2000) for _ in TEXTS], "id": [str(n) for n in range(300)]}
    pq.write_table(pa.table(rows), folder / "e.parquet", row_group_size=100, use_dictionary=False)
    storage = open_storage(bucket.place("corpus"))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in paths:
        storage.put_new(str(path.relative_to(folder)), path.read_bytes())
    storage.put_new("empty-folder/.keep", b"")
    client = boto3.client("s3", endpoint_url=bucket.endpoint)
    client.put_object(Bucket=bucket.name, Key="corpus/deep/")  # it marks a folder
    return bucket.place("corpus")


@pytest.fixture(params=["s3", "file", "memory", "http"])
def place(request: pytest.FixtureRequest, corpus: str, tmp_path: Path) -> Iterator[str]:
    """URI of the corpus."""
    folder = tmp_path / "corpus"
    if request.param == "http":
        with serve(folder) as web:
            yield web.address
    elif request.param == "memory":
        system = fsspec.filesystem("memory")
        system.put(str(folder), "/corpus", recursive=True)
        yield "memory://corpus"
        system.rm("/corpus", recursive=True)
    else:
        yield corpus if request.param == "s3" else f"file://{folder}"


def test_documents_are_those_of_the_disk(place: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "deep/b.jsonl.gz", "deep/d.jsonl.zst", "c.txt", "e.parquet"):
        documents: dict[str, Any] = {"documents": "line"} if name.endswith("txt") else {}
        remote, local = (source_of(f"{base}/{name}", **documents) for base in (place, tmp_path / "corpus"))
        cuts = [] if name.endswith(("gz", "zst")) else [1, 2, 555]
        assert read_file(remote, cuts=cuts) == read_file(local, cuts=cuts), name
        ours = read_sliced(remote, 1000)
        assert ours == read_sliced(local, 1000), name
        assert ours[0].texts == TEXTS, name


def test_files_are_found_as_on_the_disk(place: str, tmp_path: Path) -> None:
    lists = ("", "/", "/*", "/**", "/**/*.jsonl*", "/deep", "/deep/[bx].*", "/?.*")
    for given in ("/a.jsonl",) if place.startswith("http") else lists:
        remote = files_of(source_of(place + given))
        local = files_of(source_of(f"{tmp_path / 'corpus'}{given}"))
        kept = ("index", "name", "size", "format", "compression", "text", "id")
        assert [[getattr(file, name) for name in kept] for file in remote] == [
            [getattr(file, name) for name in kept] for file in local
        ], given
        assert remote and (place.startswith("memory") or all(file.modified for file in remote))


def test_files_are_listed_without_a_request_for_each(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectFolder, "_head", lambda storage, name: 1 / 0)
    monkeypatch.setattr(ObjectFolder, "facts", lambda storage, name: None)
    assert len(files_of(source_of(corpus))) == 5


def test_what_is_not_there_is_an_error(place: str) -> None:
    for name in ("gone.jsonl",) if place.startswith("http") else ("gone.jsonl", "*.nothing", "not/gone"):
        with pytest.raises(InputError, match=r"cannot find|no files in") as caught:
            files_of(source_of(f"{place}/{name}"))
        assert name in caught.value.message


def test_an_unknown_bucket_or_protocol_is_told(bucket: Bucket) -> None:
    with pytest.raises(InputError, match="no-such-bucket"):
        files_of(source_of("s3://no-such-bucket/x"))
    with pytest.raises(InputError, match=r"cannot open nonsense://x/y") as caught:
        files_of(source_of("nonsense://x/y"))
    assert "packline[remote]" in caught.value.hint


@pytest.mark.parametrize("name", ["a.jsonl", "deep/b.jsonl.gz", "e.parquet"])
def test_a_file_that_changes_after_planning_is_an_error(corpus: str, name: str) -> None:
    source = source_of(f"{corpus}/{name}")
    (file,) = files_of(source)
    storage = open_storage(corpus)
    storage.delete([name])
    storage.put_new(name, bytes(file.size))  # as many bytes
    span = Span(0, 0, 3 if file.format == "parquet" else file.size)
    with pytest.raises(
        InputChanged, match=r"changed after it was planned: expected .* ETag .*; found .* ETag"
    ):
        list(read_span(file, source, span, 1 << 20, Hasher()))


def test_an_input_with_another_etag_is_compared_with_what_was_built(
    corpus: str, tokenizer_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    storage = open_storage(corpus)
    told: list[Any] = []

    def again(data: bytes) -> bool:
        """Put an object in the place of the input, and build again; True if content was compared."""
        storage.delete(["a.jsonl"])
        storage.put_new("a.jsonl", data)
        told.clear()
        build(tmp_path / "store", f"{corpus}/a.jsonl", tokenizer_json, on_event=told.append)
        return any(isinstance(event, Comparing) for event in told)

    build(tmp_path / "store", f"{corpus}/a.jsonl", tokenizer_json)
    assert not again(LINES)
    with pytest.raises(ResumeMismatch, match="the content of input"):
        again(LINES.replace(b"document 7 ", b"DOCUMENT 7 "))
    assert not again(LINES)


@pytest.mark.parametrize("recorded", [b"", b"[[1]]"])
def test_an_object_with_the_recorded_etag_is_not_read_to_reuse_its_units(
    corpus: str, tokenizer_json: Path, tmp_path: Path, recorded: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def reused() -> ReusePlanned:
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        told: list[Any] = []
        build(tmp_path / "new", corpus, tokenizer_json, reuse=tmp_path / "old", on_event=told.append)
        (plan,) = (event for event in told if isinstance(event, ReusePlanned))
        assert not any(source.run for source in plan.sources)
        assert digests(tmp_path / "new") == before
        return plan

    build(tmp_path / "old", corpus, tokenizer_json)
    before = digests(tmp_path / "old")
    assert reused().read_bytes == 0
    etags_path(read_manifest(tmp_path / "old").checksum).write_bytes(recorded)
    assert reused().read_bytes > 0


def test_a_parquet_file_is_read_by_its_needed_columns(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(f"{corpus}/e.parquet")
    (file,) = files_of(source)
    requested: list[tuple[int, int]] = []
    announced: list[tuple[int, int]] = []
    expect = RangedFile.expect

    def opened(self: InputFile, start: int | None = None, stop: int | None = None) -> Any:
        raw = open_input(file.path, file.state)
        assert isinstance(raw, RangedFile)
        read = raw._read

        def counted(begin: int, end: int) -> Any:
            requested.append((begin, end))
            return read(begin, end)

        raw._read = counted
        return raw

    def announce(self: RangedFile, ranges: Any) -> None:
        announced.extend(ranges)
        expect(self, ranges)

    monkeypatch.setattr(InputFile, "open", opened)
    monkeypatch.setattr(RangedFile, "expect", announce)
    monkeypatch.setattr("packline.storage.ranged_file.FIRST_REQUEST", 1)
    texts = [
        text for batch in read_span(file, source, Span(0, 1, 3), 1 << 20, Hasher()) for text in batch.texts
    ]
    assert texts == TEXTS[100:]
    assert len(announced) == 4, "text and id, of two row groups"
    footers = [one for one in requested if one not in announced]
    assert sorted(set(requested) - set(footers)) == sorted(announced)
    assert len(requested) == len(set(requested)), "no range twice"
    assert file.size > 500_000 and sum(end - begin for begin, end in footers) <= 1 << 16


def test_small_files_are_requested_before_they_are_read(
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = open_storage(bucket.place("small"))
    for number in range(40):
        storage.put_new(f"{number:02d}.jsonl", json.dumps({"text": f"{number}"}).encode())
    source = source_of(bucket.place("small"))
    files = files_of(source)
    requested: list[str] = []
    get = ObjectFolder.get

    def counted(self: ObjectFolder, name: str, *more: Any) -> Any:
        requested.append(f"{self.place}/{name}")
        return get(self, name, *more)

    monkeypatch.setattr(ObjectFolder, "get", counted)
    spans = [Span(file.index, 0, file.size) for file in files]
    texts: list[str] = []
    for span, opened in open_ahead(files, source, spans):
        assert opened is not None
        if not texts:
            end = time.monotonic() + 30
            while len(requested) <= FILES_AHEAD:
                assert time.monotonic() < end, "the next files are requested before the first is read"
                time.sleep(0.01)
        for batch in read_span(files[span.file], source, span, 1 << 20, Hasher(), opened=opened):
            texts += batch.texts
    assert texts == [str(number) for number in range(40)]
    assert sorted(requested) == [file.path for file in files], "each once"


@pytest.mark.parametrize("name", ["a.jsonl", "deep/b.jsonl.gz", "deep/d.jsonl.zst"])
def test_a_bit_that_flips_on_the_way_is_no_bad_record(
    corpus: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, get = source_of(f"{corpus}/{name}"), ObjectFolder.get
    (file,) = files_of(source)
    flips = [1]

    def flipped(self: Any, *where: Any) -> Any:
        facts, found = get(self, *where)
        data = bytearray(found)
        data[len(data) // 2] ^= flips.pop() if flips else 0
        return facts, data

    monkeypatch.setattr(ObjectFolder, "get", flipped)
    with pytest.raises(InputError, match="damaged on its way"):
        list(read_span(file, source, Span(0, 0, file.size), 1 << 20, Hasher()))
    assert not flips and read_file(source).texts == TEXTS


def test_plain_http_beyond_this_machine_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, told in (("http://10.0.0.1:9000", 1), ("http://127.0.0.1:9000", 0), ("https://10.0.0.1", 0)):
        caplog.clear()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        inputs._warn_of_plain_http.cache_clear()
        inputs._warn_of_plain_http("s3://bucket")
        assert len(caplog.records) == told, address


@pytest.mark.parametrize("seed", range(3))
def test_faults_on_the_way_change_nothing(
    corpus: str,
    bucket: Bucket,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs._storage.cache_clear()
    with fault_proxy(bucket.endpoint, Schedule(seed=seed, rate=0.4)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        assert len(files_of(source_of(corpus))) == 5
        for name in ("a.jsonl", "deep/b.jsonl.gz", "deep/d.jsonl.zst", "e.parquet"):
            assert read_file(source_of(f"{corpus}/{name}")).texts == TEXTS, name
    assert len({fault for _, _, fault in proxy.faults()}) > 1


PLAN_THEN_FORK = """
import sys
import packline
given, tokenizer, out = sys.argv[1:]
packline.build([given], tokenizer=tokenizer, out=out, workers=2)
"""


def test_workers_read_after_the_driver_has_planned(
    corpus: str,
    bucket: Bucket,
    tmp_path: Path,
    tokenizer_json: Path,
) -> None:
    stores: list[Path] = []
    with fault_proxy(bucket.endpoint, Schedule(rate=0.2)) as proxy:
        for base in (corpus, str(tmp_path / "corpus")):
            out = tmp_path / f"out-{len(stores)}"
            words = [f"{base}/**/*.jsonl*", str(tokenizer_json), str(out)]
            environment = os.environ | {"AWS_ENDPOINT_URL": proxy.endpoint}
            subprocess.run(
                [sys.executable, "-c", PLAN_THEN_FORK, *words], check=True, timeout=120, env=environment
            )
            stores.append(out)
    assert proxy.faults()
    remote, local = ({path.name: path.read_bytes() for path in out.glob("*.*")} for out in stores)
    assert remote.keys() == local.keys()
    different = {name for name in local if remote[name] != local[name]}
    assert different == {"manifest.json"}, "only the recipe's inputs differ"
