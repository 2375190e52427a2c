"""Slices: they divide all units evenly, meet without a coordinator, and the bytes are those of one build."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.builds import build, digests, set_sizes_everywhere, start_slice, stored
from tests.laws.reference import write_corpus
from tests.storage.servers import Bucket

import packline
from packline.errors import RecipeError, ResumeMismatch, UnitsLeft
from packline.jobs.build_job import run_build
from packline.jobs.engine import common_order, units_of_slice
from packline.jobs.events import Event, UnitDone
from packline.jobs.folder import StoreFolder
from packline.jobs.machines import Slice, parse_slice
from packline.jobs.plan import Unit
from packline.jobs.status import Status, status
from packline.jobs.work import SCRATCH
from packline.recipe import Recipe, RunOptions, Source
from packline.storage.places import open_storage


@given(st.integers(1, 60), st.integers(1, 8), st.data())
def test_each_unit_is_of_one_slice_slices_are_even_and_help_with_all_but_streams(
    units: int, count: int, data: st.DataObject
) -> None:
    places, slices = common_order(units), [Slice(number, count) for number in range(count)]
    planned = [Unit(f"{number}", number, slice_bytes=int(number % 7 == 3)) for number in range(units)]
    owned = [units_of_slice(planned, places, slice)[0] for slice in slices]
    assert sorted(unit.number for own in owned for unit in own) == list(range(units))
    assert np.ptp([len(own) for own in owned]) <= 1
    left = data.draw(st.lists(st.sampled_from(planned), unique=True))
    helped = [units_of_slice(left, places, slice)[1] for slice in slices]
    plain = {unit for unit in left if not unit.slice_bytes}
    assert all(len(others) == len(plain) and set(others) == plain for others in helped)
    begins = {others[0] for others in helped if plain}
    assert len(begins) == min(count, len(plain)), "slices do not help with the same unit first"


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/3", "1/0", "a/b", "1/2/3", "1.0/2"])
def test_a_slice_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="slice"):
        parse_slice(text)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("slices")
    contents = [("jsonl", documents[:90], True), ("jsonl.zst", documents[90:120], False)]
    write_corpus(folder / "in", contents)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes_everywhere(patch, folder / "site", 25_000)
        yield folder / "in"


@pytest.fixture(scope="module")
def whole(corpus: Path, tokenizer_json: Path) -> dict[str, str]:
    """Digests of the store of a build without slices."""
    build(corpus.parent / "whole", corpus, tokenizer_json)
    return digests(corpus.parent / "whole")


def test_slices_one_after_another_make_the_store_of_one_build(
    corpus: Path, tokenizer_json: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    streams = 0
    for number in (2, 0, 1):
        try:
            build(tmp_path / "store", corpus, tokenizer_json, on=Slice(number, 3))
        except UnitsLeft as left:
            streams += "compressed" in str(left)
    assert digests(tmp_path / "store") == whole
    assert streams < 3


def test_a_slice_that_comes_late_finds_the_store_of_its_own_copy_of_the_inputs(
    corpus: Path, tokenizer_json: Path, tmp_path: Path
) -> None:
    shutil.copytree(corpus, tmp_path / "in")
    build(tmp_path / "store", tmp_path / "in", tokenizer_json)
    before = digests(tmp_path / "store")
    shutil.rmtree(tmp_path / "in")
    shutil.copytree(corpus, tmp_path / "in", copy_function=shutil.copyfile)
    build(tmp_path / "store", tmp_path / "in", tokenizer_json, on=Slice(1, 3))
    assert digests(tmp_path / "store") == before
    for path in (tmp_path / "in").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ResumeMismatch, match="the content of input"):
        build(tmp_path / "store", tmp_path / "in", tokenizer_json, on=Slice(1, 3))


def test_a_build_without_slices_does_what_they_have_left(
    corpus: Path, tokenizer_json: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    for number in range(40):  # one that does not own the compressed file
        try:
            build(tmp_path / f"store{number}", corpus, tokenizer_json, on=Slice(number, 40))
        except UnitsLeft as left:
            assert left.hint
            break
    build(tmp_path / f"store{number}", corpus, tokenizer_json)
    assert digests(tmp_path / f"store{number}") == whole


def test_joining_publishes_once_all_is_committed_and_may_be_repeated(
    corpus: Path, tokenizer_json: Path, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("packline.jobs.store_job.StoreJob.make_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "store", corpus, tokenizer_json, on=Slice(0, 1))
    for _ in range(2):
        build(tmp_path / "store", corpus, tokenizer_json, on=Slice(0, 1))
    assert digests(tmp_path / "store") == whole


def test_limits_of_all_slices_together_and_a_scan_without_receipts_are_refused(
    corpus: Path, tokenizer_json: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    for name in ("limit_documents", "limit_tokens"):
        with pytest.raises(RecipeError, match=f"{name} counts the documents of the whole build"):
            build(tmp_path / "store", corpus, tokenizer_json, on=Slice(0, 2), **{name: 5})
    assert not (tmp_path / "store").exists()
    with pytest.raises(RecipeError, match="keeps no receipts"):
        packline.analyze(corpus.parent / "whole", on=Slice(0, 2))


def test_slices_choose_the_same_validation_documents(
    corpus: Path, tokenizer_json: Path, tmp_path: Path
) -> None:
    whole = build(tmp_path / "whole", corpus, tokenizer_json, val_documents=3)
    for number in (1, 0):
        with contextlib.suppress(UnitsLeft):
            build(tmp_path / "store", corpus, tokenizer_json, val_documents=3, on=Slice(number, 2))
    assert digests(tmp_path / "store") == digests(whole.path)
    assert sum(shard.documents for shard in whole.manifest.shards if shard.split == "val") == 3


def test_status_sees_the_slices_of_a_build_in_an_object_store(
    corpus: Path, tokenizer_json: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    place, seen = bucket.place("store"), list[Status]()
    recipe = Recipe(sources=(Source(inputs=(str(corpus),)),), tokenizer=str(tokenizer_json))
    options = RunOptions(workers=0, engine="tokenizers")

    def look(event: Event) -> None:
        if isinstance(event, UnitDone) and not seen:
            seen.append(status(place))

    for number in (1, 0):
        if number == 0 and seen:
            after = status(place)
            assert (after.state, after.processes) == ("interrupted", [])
        with contextlib.suppress(UnitsLeft):
            run_build(recipe, place, options, on=Slice(number, 2), on_event=look)
    assert seen[0].state == "running" and len(seen[0].processes) == 1
    if status(place).state != "finished":  # the compressed file was the first slice's
        with contextlib.suppress(UnitsLeft):
            run_build(recipe, place, options, on=Slice(1, 2))
    assert status(place).state == "finished"
    assert not [one.name for one in open_storage(place).walk(".packline")]


def test_two_slices_that_see_the_last_receipt_both_publish(
    corpus: Path,
    tokenizer_json: Path,
    tmp_path: Path,
    bucket: Bucket,
    whole: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    place = bucket.place("store")
    recipe = Recipe(sources=(Source(inputs=(str(corpus),)),), tokenizer=str(tokenizer_json))
    options = RunOptions(workers=0, engine="tokenizers")
    publish, published = StoreFolder.publish, list[str]()

    def publish_after_another(folder: StoreFolder, files: dict[str, bytes]) -> None:
        published.append(folder.place)
        if len(published) == 1:
            with monkeypatch.context() as patch:  # as on another machine
                patch.setenv(SCRATCH, str(tmp_path / "other"))
                run_build(recipe, place, options, on=Slice(0, 1))
        publish(folder, files)

    monkeypatch.setattr(StoreFolder, "publish", publish_after_another)
    run_build(recipe, place, options, on=Slice(0, 1))
    assert len(published) == 2 and status(place).state == "finished"
    assert stored(place) == whole


def test_slices_at_the_same_time(
    corpus: Path, tokenizer_json: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    running = [start_slice(tmp_path / "store", corpus, tokenizer_json, f"{number}/3") for number in range(3)]
    texts = [one.communicate(timeout=200)[0] for one in running]
    assert [one.returncode for one in running] == [0] * 3, texts
    assert digests(tmp_path / "store") == whole
