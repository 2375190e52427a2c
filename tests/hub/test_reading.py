"""Reading on the hub without a download, by ranges and at one commit: datasets as inputs, and stores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants
from tests.hub.loopback import WRITE, LoopbackHub
from tests.hub.repositories import Entry, Repository, git_file
from tests.hub.test_push import PLACE
from tests.jobs.builds import build
from tests.sources.reading import files_of, read_file, source_of

import packline
from packline.errors import InputChanged, InputError, StoreError
from packline.facade import Store
from packline.hub.push import push
from packline.recipe import load_recipe
from packline.sources.drafting import PRESETS, Preset, draft_recipe, find_preset
from packline.storage.hub_inputs import address, parse_dataset, pin
from packline.storage.inputs import InputState, open_input
from packline.storage.places import open_storage
from packline.testing import make_store

TEXTS = [f"document {number} with é" for number in range(300)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
BASE = "hf://datasets/org/corpus"


def commit(files: dict[str, bytes]) -> str:
    """Commit of some files in `org/corpus`."""
    api = HfApi(token=WRITE)
    adds = [CommitOperationAdd(name, data) for name, data in files.items()]
    return api.create_commit("org/corpus", adds, commit_message="files", repo_type="dataset").oid


@pytest.fixture
def corpus(hub: LoopbackHub, tmp_path: Path) -> str:
    """Commit of a dataset."""
    HfApi(token=WRITE).create_repo("org/corpus", repo_type="dataset")
    rows = {"text": TEXTS, "id": [str(number) for number in range(300)]}
    pq.write_table(pa.table(rows), tmp_path / "c.parquet", row_group_size=100)
    parquet = (tmp_path / "c.parquet").read_bytes()
    return commit(
        {"a.jsonl": LINES, "data/b.jsonl": LINES, "data/c.parquet": parquet, "data/.hidden.jsonl": LINES}
    )


def test_documents_are_those_of_the_files(corpus: str, hub: LoopbackHub) -> None:
    for name in ("a.jsonl", "data/b.jsonl", "data/c.parquet"):
        assert read_file(source_of(f"{BASE}/{name}"), cuts=[1, 2, 555]).texts == TEXTS
    for given, names in {
        "/data": ["b.jsonl", "c.parquet"],
        "": ["a.jsonl", "data/b.jsonl", "data/c.parquet"],
        "/**/*.jsonl": ["a.jsonl", "data/b.jsonl"],
        "@main/data/*.parquet": ["c.parquet"],
    }.items():
        hub.requests.clear()
        assert [file.name for file in files_of(source_of(BASE + given))] == names
        assert hub.count("/tree/") <= 1


def test_the_revision_is_pinned_in_recipe_and_manifest(
    corpus: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    first = build(tmp_path / "first", [f"{BASE}/**/*.jsonl"], tokenizer_json)
    given = f"{BASE}@{corpus}/**/*.jsonl"
    assert first.manifest.recipe.sources[0].inputs == (given,)
    commit({"data/b.jsonl": LINES[:1000]})
    again = build(tmp_path / "again", [given], tokenizer_json)
    shards = [{path.name: path.read_bytes() for path in one.path.glob("train*")} for one in (first, again)]
    assert shards[0] == shards[1] != {}
    assert corpus not in "".join(shards[0])
    newer = build(tmp_path / "newer", [f"{BASE}/**/*.jsonl"], tokenizer_json)
    assert newer.manifest.documents < first.manifest.documents
    with pytest.raises(Exception, match=corpus):  # the same command, and another content since
        build(tmp_path / "first", [f"{BASE}/**/*.jsonl"], tokenizer_json)


@pytest.mark.parametrize("fault", ["503", "429", "reset", "cut"])
def test_what_fails_on_the_way_is_repeated(
    corpus: str, hub: LoopbackHub, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    uri = f"{BASE}@{corpus}/a.jsonl"
    state = InputState(len(LINES), corpus)
    hub.fail("GET .*resolve", fault, times=2)
    with open_input(uri, state, 0, state.size) as file:
        assert file.read() == LINES


def test_another_size_is_an_error(corpus: str) -> None:
    with open_input(f"{BASE}@{corpus}/a.jsonl", InputState(len(LINES) - 1, corpus)) as file:
        with pytest.raises(InputChanged, match=r"a\.jsonl changed after it was planned"):
            file.read(10)


def test_what_is_not_there_is_an_error(corpus: str) -> None:
    for given, said in {
        f"{BASE}/gone.jsonl": "cannot find",
        f"{BASE}/*.nothing": "no files in",
        f"{BASE}@v9/a.jsonl": "no such revision",
        "hf://datasets/org/gone/a": "no such repository",
        "hf://org/name/a": "not a dataset of the hub",
    }.items():
        with pytest.raises(InputError, match=said) as caught:
            files_of(source_of(given))
        assert given.split("@")[0] in caught.value.message or "gone" in caught.value.message


@pytest.mark.parametrize("name", ["../up.jsonl", "nul\0.jsonl", "n" * 300])
def test_names_of_a_hostile_listing_are_refused(corpus: str, hub: LoopbackHub, name: str) -> None:
    hub.repository("org/corpus").find("main").files[name] = git_file(b"{}")
    hub.requests.clear()
    with pytest.raises(InputError, match="cannot be kept under its name"):
        files_of(source_of(BASE))
    with pytest.raises(StoreError, match="cannot be kept under its name"):
        list(open_storage(BASE).walk())
    assert hub.count("resolve") == 0


def test_offline_nothing_is_read(corpus: str, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for given in (f"{BASE}/a.jsonl", f"{BASE}@{corpus}/a.jsonl", f"{BASE}@{corpus}/data/*.jsonl"):
        with pytest.raises(InputError, match="HF_HUB_OFFLINE is set") as caught:
            files_of(source_of(given))
        assert "hf download" in caught.value.hint
    assert not hub.requests


def test_uris_are_written_as_they_are_read(corpus: str) -> None:
    assert pin(f"{BASE}/data") == f"{BASE}@{corpus}/data"
    assert pin(BASE) == f"{BASE}@{corpus}/"
    place = parse_dataset(f"{BASE}@refs/pr/7/a@b/c")
    assert (place.revision, place.path_in_repo) == ("refs/pr/7", "a@b/c")
    assert parse_dataset(address(place)) == place
    assert parse_dataset(f"{BASE}/part-?=x.jsonl").path_in_repo == "part-?=x.jsonl"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_builds_from_files_laid_out_as_on_the_hub(
    tmp_path: Path, tokenizer_json: Path, preset: Preset, hub: LoopbackHub
) -> None:
    assert find_preset(preset.name) is preset
    datasets: dict[str, dict[str, Entry]] = {}
    for files in preset.files:
        owner, dataset, *folders = files.inputs.removeprefix("hf://datasets/").split("/")
        for number in range(2):
            rows = [{"text": f"{files.name} {number} {row}", "id": f"{row}"} for row in range(5)]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one.parquet")
            entry = git_file((tmp_path / "one.parquet").read_bytes())
            place = "/".join(folders).replace("*", f"{number:05d}")
            datasets.setdefault(f"{owner}/{dataset}", {})[place] = entry
    for dataset, entries in datasets.items():
        made = hub.hub.repositories["datasets", dataset] = Repository("datasets", dataset, False)
        made.add("main", None, "files", entries)
    drafted = draft_recipe([], tokenizer=str(tokenizer_json), eod=None, folder=tmp_path, preset=preset)
    (tmp_path / "recipe.toml").write_text(drafted, encoding="utf-8")
    recipe, _ = load_recipe(tmp_path / "recipe.toml")
    assert [one.inputs for one in recipe.sources] == [(files.inputs,) for files in preset.files]
    if preset.name not in ("wikitext-103", "climbmix"):  # one with splits, one without; the others are alike
        return
    store = packline.build(tmp_path / "recipe.toml", out=tmp_path / "out", workers=0, engine="tokenizers")
    assert len(store.documents) == 10 * len(preset.files)
    expected = {files.name: files.split for files in preset.files}
    for index in range(len(store.documents)):
        provenance = store.provenance(index)
        assert expected[provenance.source] in (provenance.split, None)
    assert Store(tmp_path / "out").verify(deep=True).ok


def documents(store: Path) -> list[list[int]]:
    return [one.tolist() for one in packline.open(store).documents]


def batches(store: packline.Store) -> list[np.ndarray]:
    loader = packline.Loader(store.rows(seq_len=32), batch_size=4, seed=1)
    return [batch["tokens"] for batch in loader]


def test_a_store_on_the_hub_reads_like_a_local_one(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    pushed = push(store, PLACE)
    there = packline.open(PLACE, cache=tmp_path / "cache")
    assert str(there.place) == f"{PLACE}@{pushed.revision}"
    assert [one.tolist() for one in there.documents] == documents(store)
    assert there.provenance(3) == packline.open(store).provenance(3)
    for found, expected in zip(batches(there), batches(packline.open(store)), strict=True):
        assert np.array_equal(found, expected)
    assert there.verify().ok


def test_a_pinned_store_stays_the_same(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    first = push(store, PLACE)
    push(make_store(tmp_path / "other", [[2, 2]]).path, PLACE)
    there = packline.open(f"{PLACE}@{first.revision}", cache=False)
    assert len(there.documents) == len(documents(store))
    assert len(packline.open(PLACE, cache=False).documents) == 2


def test_a_flipped_byte_is_fetched_again(
    hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    push(store, PLACE)
    hub.fail("^GET /lfs/", "flip", skip=2)
    there = packline.open(PLACE, cache=False)
    assert [one.tolist() for one in there.documents] == documents(store)


def test_what_is_absent_is_an_error(hub: LoopbackHub, store: Path) -> None:
    with pytest.raises(StoreError, match="no such repository"):
        packline.open("hf://datasets/org/absent", cache=False)
    push(store, f"{PLACE}@next")
    with pytest.raises(StoreError):
        packline.open(PLACE, cache=False)
    with pytest.raises(StoreError, match=f"{PLACE}@next has a query") as caught:
        packline.open(f"{PLACE}@next?key=hf_hidden", cache=False)
    assert "hf_hidden" not in str(caught.value) + caught.value.hint


def test_the_hub_is_no_place_of_results(hub: LoopbackHub, store: Path) -> None:
    from packline.jobs.folder import StoreFolder
    from packline.storage.places import open_storage

    with pytest.raises(StoreError, match="cannot write") as caught:
        open_storage(PLACE).put_new("a", b"a")
    assert "packline push" in caught.value.hint
    with pytest.raises(StoreError, match="cannot write"):
        StoreFolder(PLACE)
