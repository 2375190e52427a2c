"""Merged stores: equal, byte for byte, to a build of the merged recipe; refused where that cannot be."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.faults.test_crash import Breaker, Crash
from tests.jobs.builds import digests, set_sizes
from tests.laws.reference import write_corpus

from packline.errors import CorruptStore, OutOfSpace, PacklineError, ResumeMismatch, StoreBusy, StoreError
from packline.facade import Store
from packline.jobs.build_job import run_build
from packline.jobs.folder import StoreFolder
from packline.jobs.merging import run_merge
from packline.recipe import Recipe, RunOptions, Source
from packline.storage import local
from packline.store.manifest_check import read_manifest
from packline.store.merging import merge_recipes
from packline.testing import make_store, write_manifest

OPTIONS = RunOptions(workers=0, engine="tokenizers")
ENDINGS = ("jsonl", "jsonl.gz", "parquet")
TEXTS = st.lists(st.text("ab ", max_size=9), min_size=1, max_size=6)


@st.composite
def sources(draw: st.DrawFn) -> list[list[tuple[str, list[str], dict[str, Any]]]]:
    """Sources of two to four stores: ending of the file, texts, and settings of each."""
    stores = []
    for _ in range(draw(st.integers(2, 4))):
        own = []
        for _ in range(draw(st.integers(1, 2))):
            given: dict[str, Any] = {}
            if draw(st.booleans()):
                given["label"] = draw(st.sampled_from(["web", "code"]))
            if draw(st.booleans()):
                given["min_chars"] = 3
            if draw(st.booleans()):
                given["split"] = draw(st.sampled_from(["train", "test"]))
            own.append((draw(st.sampled_from(ENDINGS)), ["always text", *draw(TEXTS)], given))
        stores.append(own)
    return stores


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@given(
    stores=sources(), val=st.sampled_from([0.0, 0.4]), named=st.booleans(), unit_bytes=st.integers(40, 400)
)
def test_a_merged_store_is_the_one_that_the_merged_recipe_gives(
    fresh: Path, tokenizer_json: Path, stores: list[Any], val: float, named: bool, unit_bytes: int
) -> None:
    shutil.rmtree(fresh)
    recipes = []
    for number, own in enumerate(stores):
        made = []
        for place, (ending, texts, fields) in enumerate(own):
            folder = fresh / "in" / f"{'same' if named else 'other'}{number}" / f"s{number}-{place}"
            write_corpus(folder, [(ending, texts, True)])
            name = f"store {number}, source {place}" if named else ""
            made.append(Source(inputs=(str(folder),), name=name, **fields))
        recipes.append(Recipe(sources=tuple(made), tokenizer=str(tokenizer_json), val_fraction=val, seed=3))
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, unit_bytes)
        for number, recipe in enumerate(recipes):
            run_build(recipe, fresh / str(number), OPTIONS)
        run_build(merge_recipes(recipes), fresh / "whole", OPTIONS)
    parts = [fresh / str(number) for number in range(len(recipes))]
    merged = run_merge(parts, fresh / "merged")
    assert digests(fresh / "merged") == digests(fresh / "whole")
    assert merged.copied_bytes == 0 and merged.linked_bytes > 0
    assert Store(fresh / "merged").verify(deep=True).ok
    # Merged step by step it is the same, and there is nothing to do a second time.
    run_merge(parts[:2], fresh / "steps-2")
    last = fresh / "steps-2"
    for number in range(2, len(parts)):
        run_merge([last, parts[number]], fresh / f"steps-{number + 1}")
        last = fresh / f"steps-{number + 1}"
    assert digests(last) == digests(fresh / "whole")
    assert run_merge(parts, fresh / "merged").nothing_to_do


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Two stores with different sources."""
    one = make_store(tmp_path / "one", [[5, 2], [4]], sources=["a", "b"])
    return [one.path, make_store(tmp_path / "two", [[7, 1, 1], [3]], sources=["c", "c"]).path]


def change_recipe(path: Path, **fields: Any) -> None:
    manifest = read_manifest(path)
    recipe = msgspec.structs.replace(manifest.recipe, **fields)
    write_manifest(path, msgspec.structs.replace(manifest, recipe=recipe))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"test_fraction": 0.5}, "test_fraction: not given and 0.5"),
        ({"special_tokens": "parse"}, "special_tokens: 'text' and 'parse'"),
        ({"max_document_bytes": 9}, "max_document_bytes"),
    ],
)
def test_other_settings_are_refused(
    parts: list[Path], tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    change_recipe(parts[1], **fields)
    with pytest.raises(StoreError, match="cannot be merged") as caught:
        run_merge(parts, tmp_path / "out")
    assert said in str(caught.value) and "with the settings of the other" in caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["limit_documents", "limit_tokens", "val_documents"])
def test_settings_of_all_documents_together_are_refused(parts: list[Path], tmp_path: Path, name: str) -> None:
    for path in parts:
        change_recipe(path, **{name: 1000})
    with pytest.raises(StoreError, match=f"{name} = 1,000, which"):
        run_merge(parts, tmp_path / "out")


def test_another_tokenizer_is_refused(parts: list[Path], tmp_path: Path) -> None:
    other = make_store(tmp_path / "other", [[2]], sources=["d"], vocab_size=500).path
    with pytest.raises(
        StoreError, match=r"fingerprint of the tokenizer.*vocab_size of the tokenizer: 1000 and 500"
    ):
        run_merge([parts[0], other], tmp_path / "out")


def test_equal_names_are_refused(parts: list[Path], tmp_path: Path) -> None:
    other = make_store(tmp_path / "other", [[2]], sources=["b"]).path
    with pytest.raises(StoreError, match="both have a source 'b'") as caught:
        run_merge([parts[0], other], tmp_path / "out")
    assert "another name" in caught.value.hint
    with pytest.raises(StoreError, match="both have a source 'a'"):
        run_merge([parts[0], parts[0]], tmp_path / "out")
    with pytest.raises(PacklineError, match="expected two or more"):
        run_merge(parts[:1], tmp_path / "out")


def test_what_is_in_the_folder_is_kept(parts: list[Path], tmp_path: Path) -> None:
    out = make_store(tmp_path / "out", [[2]], sources=["x"]).path
    before = digests(out)
    with pytest.raises(ResumeMismatch, match="holds a store of something else"):
        run_merge(parts, out)
    assert digests(out) == before
    with StoreFolder(tmp_path / "busy"), pytest.raises(StoreBusy):
        run_merge(parts, tmp_path / "busy")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_leaves_no_trace(
    after: bool, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before = [digests(path) for path in parts]
    breaker = Breaker(monkeypatch, ["link", "replace", "unlink", "rmdir"], Crash)
    run_merge(parts, tmp_path / "clean")
    expected, calls = digests(tmp_path / "clean"), breaker.calls
    assert calls > 20
    for number in range(calls):
        out = tmp_path / f"out-{number}"
        breaker.reset(number, after=after)
        with pytest.raises(Crash):
            run_merge(parts, out)
        breaker.reset(-1)
        run_merge(parts, out)
        assert digests(out) == expected, f"call {number} of {calls}"
    assert [digests(path) for path in parts] == before


def test_without_links_files_are_copied_and_a_full_disk_can_be_resumed(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_merge(parts, tmp_path / "clean")

    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr("packline.storage.local._reflink", no_link)
    monkeypatch.setattr("packline.jobs.merging.COPIED_TOGETHER", 1)
    whole, copies = local.copy_file, 0

    def full(source: Path, target: Path) -> None:
        nonlocal copies
        copies += 1
        if copies > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(source, target)

    monkeypatch.setattr("packline.storage.local.copy_file", full)
    copied = []
    for _ in range(9):
        copies = 0
        try:
            copied.append(run_merge(parts, tmp_path / "out").copied_bytes)
        except OutOfSpace as error:
            assert "same command" in error.hint
    assert copied and copied[0] > 0
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")


@pytest.mark.parametrize("kind", ["missing", "short", "link out"])
def test_a_damaged_store_is_named_with_the_file(parts: list[Path], tmp_path: Path, kind: str) -> None:
    path = parts[1] / "train-c-000000.docs.parquet"
    data = path.read_bytes()
    path.unlink()
    if kind == "short":
        path.write_bytes(data[:-1])
    elif kind == "link out":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptStore, match=str(path)):
        run_merge(parts, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    run_merge(parts, tmp_path / "out")
    assert Store(tmp_path / "out").verify().ok


def test_a_store_that_changes_meanwhile_is_refused(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, done = os.link, 0

    def link(source: Any, target: Any, **options: Any) -> None:
        nonlocal done
        whole(source, target, **options)
        done += not options  # those of the storage have some
        if done == 5 and not options:
            shutil.rmtree(parts[1])
            make_store(parts[1], [[7, 1, 2], [3]], sources=["c", "c"])

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match=rf"({parts[1]} changed while|{parts[1]}/.*expected)"):
        run_merge(parts, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


SLOW = """
import os, sys, time
link = os.link
def slow(*args):
    time.sleep(0.01)
    link(*args)
os.link = slow
from packline.jobs.merging import run_merge
run_merge(sys.argv[2:], sys.argv[1])
"""


def test_killed_at_any_time_a_merge_comes_to_the_same_bytes(parts: list[Path], tmp_path: Path) -> None:
    run_merge(parts, tmp_path / "clean")
    expected = digests(tmp_path / "clean")
    out = tmp_path / "out"
    for wanted in (1, 17):
        with subprocess.Popen([sys.executable, "-c", SLOW, str(out), *map(str, parts)]) as process:
            while sum(len(files) for *_, files in os.walk(out)) < wanted and process.poll() is None:
                time.sleep(0.002)
            process.kill()
    run_merge(parts, out)
    assert digests(out) == expected
    assert all(Store(path).verify().ok for path in parts)
