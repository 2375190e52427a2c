"""The corpus: distinct, in a fixed order, the same documents in every format, of the size that was asked."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import corpus as corpora
from benchmarks.corpus import build_corpus, choose_english, choose_mixed, load_facts, rotate
from benchmarks.debian import read_package
from benchmarks.errors import BenchmarkError
from benchmarks.memory import write_beginning
from benchmarks.texts import LARGEST_BYTES, Text, _pieces, find_texts
from packline.fingerprint import hash_value


def text(number: int, kind: str, size: int) -> Text:
    content = (f"word {number} ".encode() * size)[:size]
    return Text(hash_value([number, kind]), kind, "here", content)  # type: ignore[arg-type]


@given(st.binary(), st.integers(0, 25))
def test_rotation_is_undone_by_the_rest_of_the_alphabet_and_keeps_all_else(
    content: bytes, places: int
) -> None:
    turned = rotate(content, places)
    assert rotate(turned, (26 - places) % 26) == content
    same = [
        a == b for a, b in zip(content, turned, strict=True) if not chr(a).isascii() or not chr(a).isalpha()
    ]
    assert all(same)


@given(st.lists(st.tuples(st.sampled_from(["prose", "code", "cjk"]), st.integers(1, 500)), max_size=60))
def test_english_is_never_larger_than_asked_nor_more_than_half_prose(parts: list[tuple[str, int]]) -> None:
    texts = [text(number, kind, size) for number, (kind, size) in enumerate(parts)]
    try:
        chosen = choose_english(texts, 4000)
    except BenchmarkError:
        return
    size = sum(len(one.content) for one in chosen)
    assert 0.95 * 4000 <= size <= 4000
    assert sum(len(one.content) for one in chosen if one.kind == "prose") <= 2000
    assert all(one.kind != "cjk" for one in chosen)
    assert len({one.hash for one in chosen}) == len(chosen)


def test_kinds_are_spread_evenly_though_only_a_part_of_one_was_wanted() -> None:
    texts = [text(number, "prose" if number % 4 == 0 else "code", 100) for number in range(8000)]
    texts.sort(key=lambda one: one.hash)
    chosen = choose_english(texts, 300_000)
    kinds = [one.kind for one in chosen]
    share = kinds.count("prose") / len(kinds)
    for begin in range(0, len(kinds), len(kinds) // 5):
        fifth = kinds[begin : begin + len(kinds) // 5]
        if len(fifth) > 100:
            assert abs(fifth.count("prose") / len(fifth) - share) < 0.1


def test_too_little_text_is_an_error_that_says_how_much_there_is() -> None:
    with pytest.raises(BenchmarkError, match=r"has 0 MB .* expected 1 MB"):
        choose_english([text(1, "code", 100)], 1_000_000)


def test_mixed_holds_all_cjk_and_at_most_as_much_of_the_rest() -> None:
    texts = [text(number, ["prose", "code", "cjk"][number % 3], 100) for number in range(90)]
    kinds = [one.kind for one in choose_mixed(texts)]
    assert (kinds.count("cjk"), kinds.count("prose"), kinds.count("code")) == (30, 15, 15)
    assert choose_mixed([one for one in texts if one.kind != "cjk"]) == []


@given(st.lists(st.integers(0, 4_900), min_size=1, max_size=12))
def test_a_large_file_is_cut_at_empty_lines_and_loses_nothing(paragraphs: list[int]) -> None:
    content = b"\n\n".join(b"w" * (100 * size) for size in paragraphs)
    pieces = list(_pieces(content))
    assert b"".join(pieces) == content
    assert all(len(piece) <= LARGEST_BYTES for piece in pieces)
    assert all(piece.startswith(b"\n\n") for piece in pieces[1:])


def test_a_large_file_without_an_empty_line_is_left_out() -> None:
    assert list(_pieces(b"w" * (LARGEST_BYTES + 1))) == []


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")), min_size=1),
    st.integers(1, 400),
)
def test_a_beginning_is_the_longest_run_of_whole_lines(lines: list[bytes], size: int) -> None:
    import tempfile

    whole = b"".join(line + b"\n" for line in lines)
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "source"), Path(name, "target")
        source.write_bytes(whole)
        expected = whole[: whole.rfind(b"\n", 0, size) + 1]
        if not expected:
            with pytest.raises(BenchmarkError, match="longer than"):
                write_beginning(source, target, size)
            return
        assert write_beginning(source, target, size) == len(expected)
        assert target.read_bytes() == expected


def test_every_format_holds_the_same_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["prose", "code", "cjk"]
    texts = sorted((text(number, kinds[number % 3], 1000) for number in range(300)), key=lambda one: one.hash)
    monkeypatch.setattr(corpora, "find_texts", lambda packages, shared: texts)
    build_corpus(tmp_path, size_bytes=100_000, slice_bytes=20_000, memory_bytes=900_000, shared=None)
    lines = (tmp_path / "english.jsonl").read_bytes()
    records = [json.loads(line) for line in lines.splitlines()]
    facts = load_facts(tmp_path)
    assert len({record["text"] for record in records}) == len(records) == facts["english"].documents
    assert sum(len(record["text"].encode()) for record in records) == facts["english"].text_bytes
    assert pq.read_table(tmp_path / "english.parquet").to_pylist() == records
    packed = (tmp_path / "english.jsonl.zst").read_bytes()
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == lines
    slices = [(tmp_path / "slice" / f"{number}.jsonl").read_bytes().splitlines() for number in (0, 1)]
    assert sorted(slices[0] + slices[1]) == sorted(lines.splitlines()[: len(slices[0]) + len(slices[1])])
    large = [json.loads(line)["text"] for line in (tmp_path / "memory.jsonl").read_bytes().splitlines()]
    assert sum(len(one.encode()) for one in large) >= 900_000
    assert len(set(large)) == len(large)
    mixed = [json.loads(line)["text"] for line in (tmp_path / "mixed.jsonl").read_bytes().splitlines()]
    assert len(set(mixed)) == len(mixed) == facts["mixed"].documents == 200


def test_no_corpus_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError) as caught:
        load_facts(tmp_path)
    assert caught.value.hint == "python -m benchmarks corpus"


def test_texts_are_distinct_and_their_order_does_not_depend_on_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for number in range(20):
        content = f"def f{number}():\n    return {number}\n" * 20
        (tmp_path / "a" / f"{number}.py").write_text(content)
        (tmp_path / "b" / f"x{19 - number}.py").write_text(content)
    (tmp_path / "a" / "zero.py").write_bytes(b"x = 1\n\0" * 100)
    (tmp_path / "a" / "latin.py").write_bytes(b"# caf\xe9\n" * 100)
    monkeypatch.setattr("benchmarks.texts.fetch_package", lambda name, folder: None)
    found = []
    for folders in (["a", "b"], ["b", "a"], ["b"]):
        paths = [tmp_path / name for name in folders]
        monkeypatch.setattr("benchmarks.texts._folders", lambda paths=paths: paths)
        found.append([one.content for one in find_texts(tmp_path / "packages", None)])
    assert len(found[0]) == 20
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb on this machine")
def test_a_package_is_read_through_gzip_and_a_tarball_inside_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: p\n"
    )
    (tree / "doc.txt.gz").write_bytes(gzip.compress(b"hello"))
    with tarfile.open(tree / "source.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("source/main.c")
        member.size = 6
        archive.addfile(member, io.BytesIO(b"int x;"))
    package = tmp_path / "p_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", tree, package], check=True, capture_output=True
    )
    found = {Path(name).name: content for name, content in read_package(package)}
    assert found == {"doc.txt": b"hello", "main.c": b"int x;"}
    package.write_bytes(package.read_bytes()[:-200])
    with pytest.raises(BenchmarkError, match="is broken"):
        list(read_package(package))
