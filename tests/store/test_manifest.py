"""The manifest: it reads as it was written, or is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from packline.errors import CorruptStore, StoreError
from packline.facade import Store
from packline.fingerprint import hash_bytes, json_form
from packline.store.manifest import FORMAT_VERSION, split_warnings
from packline.store.manifest_check import read_manifest
from packline.store.verify import verify
from packline.testing import make_store


def test_it_tells_nothing_of_the_run(built: Store) -> None:
    data = (built.path / "manifest.json").read_bytes()
    assert not [word for word in ("seconds", "hostname", "workers", "engine") if word.encode() in data]


def test_a_field_of_a_later_packline_is_refused_by_name(damaged: Path) -> None:
    path = damaged / "manifest.json"
    for place in ([], ["tokenizer"], ["totals"]):
        whole = json.loads((damaged / "manifest.json").read_text())
        inner = whole
        for step in place:
            inner = inner[step]
        inner["unheard"] = 1
        path.write_bytes(seal(whole))
        with pytest.raises(CorruptStore, match="unknown field `unheard`") as caught:
            read_manifest(damaged)
        assert "update packline" in caught.value.hint
        del inner["unheard"]
        path.write_bytes(seal(whole))
        assert read_manifest(damaged).documents


def seal(whole: dict[str, Any]) -> bytes:
    whole = {**{name: value for name, value in whole.items() if name != "checksum"}, "checksum": ""}
    return json_form({**whole, "checksum": hash_bytes(json_form(whole))})


@given(st.data())
def test_any_flipped_bit_is_refused(built: Store, data: st.DataObject) -> None:
    import tempfile

    manifest = bytearray((built.path / "manifest.json").read_bytes())
    manifest[data.draw(st.integers(0, len(manifest) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "manifest.json").write_bytes(manifest)
        with pytest.raises(StoreError):  # CorruptStore, but for a bit of the format
            read_manifest(Path(folder))


def test_val_documents_are_not_counted_where_a_whole_source_is_in_val(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5], [2, 3]], sources=["a", "b"], splits=["train", "val"])
    recipe = replace(store.manifest.recipe, val_fraction=0.0, val_documents=5)
    found = split_warnings(replace(store.manifest, recipe=recipe))
    assert len(found) == 1 and "val has 2 documents instead of 5" in found[0]
    one, other = recipe.sources
    recipe = replace(recipe, sources=(one, replace(other, split="val")))
    assert split_warnings(replace(store.manifest, recipe=recipe)) == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b'{"recipe":' + b"[" * 200_000])
def test_something_else_is_refused(damaged: Path, data: bytes) -> None:
    (damaged / "manifest.json").write_bytes(data)
    with pytest.raises(CorruptStore, match="is damaged"):
        read_manifest(damaged)
    assert not verify(damaged).ok


@pytest.mark.parametrize(
    ("version", "hint"), [(1, "build it again.* loses the provenance"), (FORMAT_VERSION + 1, "update")]
)
def test_another_version_is_refused(damaged: Path, version: int, hint: str) -> None:
    path = damaged / "manifest.json"
    of_version = {"format_version": version}
    for fields in (of_version, {**json.loads(path.read_text()), **of_version, "unheard": {"of": True}}):
        path.write_text(json.dumps(fields))
        for read in (read_manifest, verify):
            said = rf"of store format {version}, .* reads format 3: nothing"
            with pytest.raises(StoreError, match=said) as caught:
                read(damaged)
            assert not isinstance(caught.value, CorruptStore) and re.match(hint, caught.value.hint)
