"""Finding files: what is taken, in which order, under which name, and what is refused before any work."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.sources.reading import files_of, read_file, source_of

from packline.errors import InputError, RecipeError
from packline.recipe import Recipe
from packline.sources.files import HEAD_BYTES, list_files

LINE = b'{"text": "hey"}\n'


def touch(*paths: Path, data: bytes = LINE) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def names(*given: Path | str) -> list[str]:
    return [file.name for file in files_of(source_of(*given))]


def test_folders_are_walked_in_order_of_path_without_hidden_things(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.jsonl", "a.jsonl", ".hidden.jsonl", ".git/x.jsonl", "a/.x"):
        touch(tmp_path / name)
    assert names(tmp_path) == ["a.jsonl", "a/z.jsonl", "b.jsonl"]


def test_globs_match_files_and_stand_for_their_folders(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("1/a.jsonl", "1/b.txt", "2/a.jsonl", "2/deep/a.jsonl")))
    (tmp_path / "3.jsonl").mkdir()
    assert names(tmp_path / "*/*.jsonl") == ["1/a.jsonl", "2/a.jsonl"]
    assert names(tmp_path / "**/*.jsonl") == ["1/a.jsonl", "2/a.jsonl", "2/deep/a.jsonl"]


def test_a_name_like_a_glob_is_a_name_where_it_exists_and_what_comes_twice_counts_once(
    tmp_path: Path,
) -> None:
    touch(tmp_path / "a[1].jsonl", tmp_path / "a1.jsonl")
    assert names(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]
    assert names(tmp_path / "a1.jsonl", tmp_path, tmp_path / "*.jsonl") == ["a1.jsonl", "a[1].jsonl"]


def test_names_are_below_the_common_folder_of_a_source(tmp_path: Path) -> None:
    touch(tmp_path / "x/one/a.jsonl", tmp_path / "x/only/a.jsonl", tmp_path / "y.jsonl")
    assert names(tmp_path / "x/one", tmp_path / "x/only") == ["one/a.jsonl", "only/a.jsonl"]
    sources = (source_of(tmp_path / "x/one"), source_of(tmp_path / "y.jsonl"))
    files = list_files(Recipe(sources=sources, tokenizer="none"))
    assert [(file.index, file.source, file.name) for file in files] == [(0, 0, "a.jsonl"), (1, 1, "y.jsonl")]


def test_links_are_followed_and_a_dangling_one_is_told(tmp_path: Path) -> None:
    touch(tmp_path / "real/a.jsonl")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/folder").symlink_to(tmp_path / "real")
    (tmp_path / "in/file.jsonl").symlink_to(tmp_path / "real/a.jsonl")
    assert names(tmp_path / "in") == ["file.jsonl", "folder/a.jsonl"]
    (tmp_path / "in/nowhere.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"cannot find .*nowhere\.jsonl"):
        names(tmp_path / "in")


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path / ".hidden")
    for given in (tmp_path, tmp_path / "*.jsonl"):
        with pytest.raises(InputError, match="no files in") as caught:
            names(given)
        assert str(given) in caught.value.message and "glob" in caught.value.hint
    with pytest.raises(InputError, match=r"cannot find .*gone\.jsonl") as caught:
        names(tmp_path / "gone.jsonl")
    assert caught.value.hint


def test_an_unreadable_file_is_told_with_the_reason(tmp_path: Path) -> None:
    touch(tmp_path / "a.jsonl")
    # This user may be one whom permissions do not bind; nobody can read this file of the kernel's.
    forbidden = Path("/proc/self/mem")
    if os.geteuid():
        forbidden = tmp_path / "a.jsonl"
        forbidden.chmod(0)
    elif not forbidden.exists():
        pytest.skip("no file here that this user cannot read")
    with pytest.raises(InputError, match=f"cannot read {forbidden}"):
        names(forbidden)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    for number in range(7):
        touch(tmp_path / f"{number}.jsonl", data=b'{"body": 1}\n')
    with pytest.raises(InputError, match="7 inputs cannot be used") as caught:
        names(tmp_path)
    assert "4.jsonl" in caught.value.message and "and 2 more" in caught.value.message


@pytest.mark.parametrize(
    ("separator", "ending", "pack"),
    [(",", "", bytes), ("\t", ".gz", gzip.compress), (",", ".ZST", zstandard.compress)],
)
def test_a_table_is_refused(
    tmp_path: Path, separator: str, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    kind = "csv" if separator == "," else "tsv"
    path = tmp_path / f"table.{kind}{ending}"
    touch(path, data=pack(f"text{separator}n\na b{separator}1\n".encode()))
    touch(tmp_path / "a.txt", data=b"plain")
    with pytest.raises(InputError, match=f"{path} is {kind.upper()}, which is not read"):
        files_of(source_of(tmp_path))
    assert [file.format for file in files_of(source_of(tmp_path / "*.txt"))] == ["text"]
    assert [file.format for file in files_of(source_of(path, format="text"))] == ["text"]


@pytest.mark.parametrize(
    ("name", "data", "format", "compression"),
    [
        ("a.JSONL", LINE, "jsonl", ""),
        ("a.ndjson.gz", gzip.compress(LINE, mtime=0), "jsonl", "gzip"),
        ("a.jsonl.zst", gzip.compress(LINE, mtime=0), "jsonl", "gzip"),
        ("a.jsonl.gz", LINE, "jsonl", ""),
        ("a.json", LINE, "jsonl", ""),
        ("a", gzip.compress(b"plain", mtime=0), "text", "gzip"),
    ],
)
def test_a_format_is_told_by_name_and_content(
    tmp_path: Path, name: str, data: bytes, format: str, compression: str
) -> None:
    touch(tmp_path / name, data=data)
    (file,) = files_of(source_of(tmp_path))
    assert (file.format, file.compression) == (format, compression)


def test_parquet_is_told_by_content_and_not_by_name_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "part-0")
    (file,) = files_of(source_of(tmp_path / "part-0"))
    assert file.format == "parquet"
    touch(tmp_path / "b.parquet", data=b"not it")
    with pytest.raises(InputError, match="called Parquet but does not begin like it"):
        names(tmp_path / "b.parquet")
    (tmp_path / "c.parquet.gz").write_bytes(gzip.compress((tmp_path / "part-0").read_bytes()))
    with pytest.raises(InputError, match="gzip file around Parquet") as caught:
        names(tmp_path / "c.parquet.gz")
    assert "decompress" in caught.value.hint


def test_an_array_is_recognised_by_its_name_and_first_byte(tmp_path: Path) -> None:
    touch(tmp_path / "a.json", data=b'\xef\xbb\xbf [{"text": "a"}]')
    touch(tmp_path / "b.json", data=b'{"text": "a"}\n')
    touch(tmp_path / "c.jsonl", data=b'["text"]\n{"text": "a"}\n')
    touch(tmp_path / "d.json", data=b'\n[{"body": "x", "text": "' + b"a" * (HEAD_BYTES + 9) + b'"}]')
    files = files_of(source_of(tmp_path))
    assert [file.format for file in files] == ["json", "jsonl", "jsonl", "json"]
    assert {file.text for file in files} == {"text"}
    touch(tmp_path / "a.json", data=b'[{"body": "a"}]')
    with pytest.raises(InputError, match=r"a.json has no text field: .* found body"):
        files_of(source_of(tmp_path))


@pytest.mark.parametrize(
    ("line", "field", "id"),
    [
        ({"content": "a", "id": 1}, "content", "id"),
        ({"document": "a", "article": "b"}, "article", None),
        ({"text": None, "content": "a"}, "content", None),
        ({"text": 5, "document": "a", "ID": 1}, "document", None),
    ],
)
def test_the_text_field_is_the_first_that_holds_text(
    tmp_path: Path, line: dict[str, object], field: str, id: str | None
) -> None:
    touch(tmp_path / "a.jsonl", data=b"broken\n" + json.dumps(line).encode())
    (file,) = files_of(source_of(tmp_path))
    assert (file.text, file.id) == (field, "id")  # which any later record may have
    pq.write_table(pa.Table.from_pylist([line]), tmp_path / "a.parquet")
    (file,) = files_of(source_of(tmp_path / "a.parquet"))
    assert (file.text, file.id) == (field, id)


def test_the_text_field_of_a_very_long_first_record_is_found(tmp_path: Path) -> None:
    book = {"content": "word " * HEAD_BYTES, "id": 7}
    data = json.dumps(book).encode() + b"\n" + json.dumps({"content": "short", "id": 8}).encode()
    for name, packed in (("a.jsonl", data), ("a.jsonl.gz", gzip.compress(data, 1, mtime=0))):
        touch(tmp_path / name, data=packed)
        read = read_file(source_of(tmp_path / name))
        assert [len(text) for text in read.texts] == [5 * HEAD_BYTES, 5] and read.ids == ["7", "8"]


def test_no_text_field_names_what_there_is(tmp_path: Path) -> None:
    touch(tmp_path / "a.jsonl", data=b'{"body": "x", "n": 1}\n')
    pq.write_table(pa.table({"body": ["x"], "text": [1]}), tmp_path / "b.parquet")
    with pytest.raises(
        InputError, match="has no text field: expected text, content, article, document, found body, n"
    ):
        names(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"no text column.*found body \(string\), text \(int64\)") as caught:
        names(tmp_path / "b.parquet")
    assert "--text" in caught.value.hint
    with pytest.raises(InputError, match=r"expected prose of strings"):
        files_of(source_of(tmp_path / "b.parquet", text="prose"))
    with pytest.raises(InputError, match=r"no column 'key': found body, text"):
        files_of(source_of(tmp_path / "b.parquet", text="body", id="key"))


def test_a_text_field_that_holds_its_id_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "a.jsonl")
    with pytest.raises(RecipeError, match=r"a\.jsonl.*cannot hold"):
        files_of(source_of(tmp_path, text="text", id="text.id"))


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
def test_what_is_no_regular_file_is_refused_before_it_is_opened(tmp_path: Path, kind: str) -> None:
    touch(tmp_path / "in/a.jsonl")
    odd = tmp_path / "in/b.jsonl"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        odd.symlink_to(tmp_path / "pipe")
    for given in (odd, tmp_path / "in", tmp_path / "in/*.jsonl", tmp_path / "**/b.jsonl"):
        with pytest.raises(
            InputError, match=f"b.jsonl is a {kind.split()[-1]}: expected a regular"
        ) as caught:
            names(given)
        assert caught.value.hint
    assert names(tmp_path / "in/a.jsonl") == ["a.jsonl"]


def test_what_only_this_process_has_open_is_refused() -> None:
    for given in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        with pytest.raises(InputError, match="is what this process has open"):
            names(given)


def test_names_that_are_not_utf8_are_refused_with_their_bytes(tmp_path: Path) -> None:
    touch(tmp_path / "good/a.jsonl")
    bad = os.fsencode(tmp_path) + b"/bad/caf\xe9.jsonl"
    os.mkdir(os.fsencode(tmp_path) + b"/bad")
    Path(os.fsdecode(bad)).write_bytes(LINE)
    for given in (os.fsdecode(bad), str(tmp_path / "bad"), str(tmp_path / "*/*.jsonl")):
        with pytest.raises(InputError, match="not UTF-8") as caught:
            names(given)
        assert repr(bad) in caught.value.message and caught.value.hint
    assert names(tmp_path / "good") == ["a.jsonl"]


def test_a_link_that_leads_in_a_circle_is_refused_at_its_first_level(tmp_path: Path) -> None:
    touch(tmp_path / "in/deep/a.jsonl", tmp_path / "other/b.jsonl")
    (tmp_path / "in/deep/up").symlink_to(tmp_path / "in")
    for given in (tmp_path / "in", tmp_path / "in/**/*.jsonl"):
        with pytest.raises(InputError, match=r"in/deep/up is a link that leads back to .*/in:") as caught:
            names(given)
        assert caught.value.hint
    (tmp_path / "in/deep/up").unlink()
    (tmp_path / "in/deep/aside").symlink_to(tmp_path / "other")
    for inside in ("in", "in/**/*.jsonl", "in/../in/**/*.jsonl"):
        assert names(tmp_path / inside) == ["deep/a.jsonl", "deep/aside/b.jsonl"]
    (tmp_path / "in/self").symlink_to("self")
    with pytest.raises(InputError, match=r"in/self: Too many levels of symbolic links"):
        names(tmp_path / "in")
