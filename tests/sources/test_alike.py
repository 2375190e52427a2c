"""Many remote files of a kind: planned as if each were looked at, and compared when they are read."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.jobs.builds import build
from tests.storage.servers import Bucket

from packline.errors import InputError
from packline.recipe import Recipe, Source
from packline.sources import listing
from packline.sources.files import InputFile, list_files
from packline.storage.objects import ObjectFolder
from packline.storage.places import open_storage

FILES = 24


def contents() -> dict[str, bytes]:
    """Small files of two endings, and one without bytes."""
    found = {"empty.jsonl": b""}
    for number in range(FILES):
        found[f"a/{number:03d}.jsonl"] = b'{"text": "document %d"}\n' % number
        found[f"b/{number:03d}.txt"] = b"plain %d" % number
    return found


def put(place: str, files: dict[str, bytes]) -> None:
    storage = open_storage(place)
    for name, data in files.items():
        storage.put_new(name, data)


def listed(place: str) -> list[InputFile]:
    return list_files(Recipe(sources=(Source(inputs=(place,)),), tokenizer="none"))


def test_a_plan_by_examples_is_the_plan_by_looks(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place := bucket.place("in"), contents())
    whole = listed(place)
    looks: set[str] = set()
    get = ObjectFolder.get

    def counted(self: ObjectFolder, name: str, *given: Any) -> Any:
        looks.add(name)
        return get(self, name, *given)

    monkeypatch.setattr(listing, "LOOKED", 4)
    monkeypatch.setattr(ObjectFolder, "get", counted)
    found = listed(place)
    assert len(looks) <= 2 * 4 + 1 < len(found) // 4
    assert sum(file.is_assumed for file in found) == 2 * FILES
    assert [msgspec.structs.replace(file, is_assumed=False) for file in found] == whole


def test_files_that_differ_are_all_looked_at(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{number:03d}.jsonl": (b"text", b"content")[number % 2] for number in range(FILES)}
    put(place := bucket.place("in"), {name: b'{"%s": "a"}\n' % field for name, field in names.items()})
    monkeypatch.setattr(listing, "LOOKED", 4)
    found = listed(place)
    assert {file.name: file.text.encode() for file in found} == names
    assert not any(file.is_assumed for file in found)


@pytest.mark.parametrize(
    "stray",
    [b'{"content": "a"}\n', gzip.compress(b'{"text": "a"}\n'), b"no JSON"],
    ids=["field", "gzip", "text"],
)
def test_a_file_of_another_kind_stops_the_build(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer_json: Path, stray: bytes
) -> None:
    files = {name: data for name, data in contents().items() if name.startswith("a/")}
    put(bucket.place("bad"), {**files, "a/001.jsonl": stray})
    monkeypatch.setattr(listing, "LOOKED", 4)
    if stray == b"no JSON":  # a bad record is located and counted, in whatever file it is
        store = build(tmp_path / "bad", bucket.place("bad"), tokenizer_json)
        assert store.manifest.ledger.bad == 1
        return
    with pytest.raises(InputError, match=r"a/001\.jsonl"):
        build(tmp_path / "bad", bucket.place("bad"), tokenizer_json)
