"""Difference between stores, compared with sets in Python over random edits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.jobs.builds import set_sizes
from tests.store.stores import reseal

import packline
from packline.facade import Store
from packline.recipe import Recipe, Source
from packline.store import difference
from packline.store.difference import StoreDifference, diff
from packline.store.shard import Shard
from packline.testing import make_store

FILES = ("a", "b", "c/d")
Corpus = dict[str, list[str]]
TEXTS = st.lists(st.sampled_from(["one", "two two", "three", "four words in it", "five", ""]), max_size=9)
CORPORA: st.SearchStrategy[dict[str, Corpus]] = st.dictionaries(
    st.sampled_from(["web", "books"]),
    st.dictionaries(st.sampled_from(FILES), TEXTS, min_size=1),
    min_size=1,
)


def write(folder: Path, corpus: dict[str, Corpus]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for source, files in corpus.items():
        # Two files that are always there keep the common folder of the source.
        for name, texts in {**files, "x": ["always"], "z": ["always"]}.items():
            path = folder / source / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(msgspec.json.encode({"text": text}) + b"\n" for text in texts))


def make(folder: Path, place: Path, corpus: dict[str, Corpus], tokenizer: Path, **fields: Any) -> Store:
    write(place, corpus)
    sources = tuple(Source(inputs=(str(place / name),), name=name) for name in sorted(corpus))
    recipe = Recipe(sources=sources, tokenizer=str(tokenizer), **fields)
    return packline.build(recipe, out=folder, workers=0, engine="tokenizers")


def identities(store: Store) -> dict[str, dict[tuple[str, int], tuple[Any, ...]]]:
    """Documents of each source by file and position: hash, and the other values."""
    found: dict[str, dict[tuple[str, int], tuple[Any, ...]]] = {name: {} for name in store.manifest.sources}
    for number in range(len(store.documents)):
        one = store.provenance(number)
        found[one.source][one.file, one.position] = one.hash, one.split, one.tokens
    return found


def check(found: StoreDifference, one: Store, other: Store) -> None:
    """Compare the counts with those of sets."""
    mine, theirs = identities(one), identities(other)
    by_name = {source.name: source for source in found.sources}
    for name in {*mine, *theirs}:
        before, after = mine.get(name, {}), theirs.get(name, {})
        both = before.keys() & after.keys()
        changed = {key for key in both if before[key][0] != after[key][0]}
        otherwise = {key for key in both - changed if before[key] != after[key]}
        if name not in by_name:
            assert name in found.equal_sources and before == after
            continue
        counts = by_name[name].counts
        assert counts.added == len(after.keys() - before.keys())
        assert counts.removed == len(before.keys() - after.keys())
        assert (counts.changed, counts.otherwise) == (len(changed), len(otherwise))
        assert counts.same == len(both - changed - otherwise) and not counts.unchecked
        kinds = {
            "added": after.keys() - before.keys(),
            "removed": before.keys() - after.keys(),
            "changed": changed,
            "otherwise": otherwise,
        }
        for shown in (one for one in found.listed if one.source == name):
            assert (shown.file, shown.position) in kinds[shown.kind]
        for kind, keys in kinds.items():
            listed = [one for one in found.listed if one.source == name and one.kind == kind]
            assert len(listed) == min(len(keys), difference.MOST_LISTED)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(
    one=CORPORA,
    other=CORPORA,
    part=st.sampled_from([1, 2, 5, 1 << 20]),
    units=st.sampled_from([20, 100, 4000]),
    vals=st.tuples(st.sampled_from([0.0, 0.4]), st.sampled_from([0.0, 0.4])),
)
def test_counts_are_those_of_sets(
    fresh: Path,
    tokenizer_json: Path,
    one: dict[str, Corpus],
    other: dict[str, Corpus],
    part: int,
    units: int,
    vals: tuple[float, float],
) -> None:
    for path in fresh.iterdir():
        shutil.rmtree(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difference, "PART", part)
        set_sizes(patch, 50, 50)
        first = make(fresh / "1", fresh / "in", one, tokenizer_json, val_fraction=vals[0])
        set_sizes(patch, units, 50)
        second = make(fresh / "2", fresh / "in", other, tokenizer_json, val_fraction=vals[1])
        found = diff(first.path, second.path)
        check(found, first, second)
        documents = identities(first) == identities(second)
        assert found.equal == (documents and vals[0] == vals[1] and one == other)
        assert diff(first.path, first.path).equal
        back = diff(second.path, first.path)
        assert [source.counts.removed for source in back.sources] == [
            {one.name: one.counts.added for one in found.sources}[source.name] for source in back.sources
        ]


def test_settings_inputs_and_tokens_are_compared(tmp_path: Path) -> None:
    one = make_store(tmp_path / "one", [[5, 2], [4], [3]], sources=["a", "a", "b"])
    other = make_store(
        tmp_path / "two", [[5, 2], [4], [3]], sources=["a", "a", "c"], splits=["train", "val", "train"]
    )
    found = diff(one.path, other.path)
    assert not found.equal
    assert {change.name for change in found.recipe} == {"val_fraction", "sources"}
    assert {(change.kind, change.source) for change in found.inputs} >= {("removed", "b"), ("added", "c")}
    by_name = {source.name: source for source in found.sources}
    assert by_name["a"].tokens == ({"train": 11}, {"train": 7, "val": 4})
    assert by_name["b"].tokens == ({"train": 3}, {}) and by_name["b"].counts.removed == 1
    assert by_name["c"].documents == (0, 1)
    # Against another tokenizer nothing is equal, even where the texts are.
    third = make_store(tmp_path / "three", [[5, 2], [4], [3]], sources=["a", "a", "b"], vocab_size=900)
    found = diff(one.path, third.path)
    assert {change.name for change in found.tokenizer} >= {"fingerprint", "vocab_size"}
    assert "compared by their texts" in found.notes[0] and not found.equal


def test_documents_without_a_hash_are_not_called_equal(tmp_path: Path) -> None:
    """Imported documents in shards that differ."""
    from tests.formats.stores import make_store as make_ids

    stores = []
    for name, shards in (("one", 1), ("two", 2)):
        store = make_ids(tmp_path / name, [[5, 6], [7], [8, 9]], vocab_size=1000, eod_id=0, shards=shards)
        assert store.provenance(0).hash is None
        stores.append(store)
    found = diff(stores[0].path, stores[1].path)
    (source,) = found.sources
    assert source.counts.unchecked == 3 and source.counts.same == 0
    assert not found.equal and "were not compared" in found.notes[0]


def test_other_tokens_with_the_same_provenance_are_found(tmp_path: Path) -> None:
    one = make_store(tmp_path / "one", [[5, 2], [4]])
    shutil.copytree(one.path, tmp_path / "two")
    path = tmp_path / "two/train-made-000000.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[1] += 1
    tokens.tofile(path)
    reseal(tmp_path / "two")
    found = diff(one.path, tmp_path / "two")
    (source,) = found.sources
    assert (source.counts.other_tokens, source.counts.same) == (2, 1) and not found.equal


def test_equal_shards_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_store(tmp_path / "one", [[5, 2], [4]])
    other = make_store(tmp_path / "two", [[5, 2], [4], [3]])
    read: list[str] = []
    opened = Shard.open_provenance

    def note(shard: Shard) -> Any:
        read.append(shard.entry.name)
        return opened(shard)

    monkeypatch.setattr(Shard, "open_provenance", note)
    found = diff(one.path, other.path)
    assert set(read) == {"train-made-000002"}
    assert found.sources[0].counts.added == 1 and found.sources[0].counts.same == 3


@pytest.mark.parametrize(
    ("columns", "same"), [(["n", "s"], 2), (["n: float", "s"], 0), (["n"], 3), (["s"], 2)]
)
def test_carried_columns_are_compared_where_both_stores_have_them(
    tmp_path: Path, tokenizer_json: Path, columns: list[str], same: int
) -> None:
    stores = []
    for name, chosen, last in (("one", ["n", "s"], 3), ("two", columns, 4)):
        path = tmp_path / name / "in.jsonl"
        path.parent.mkdir()
        lines = [{"text": f"t{n}", "n": n, "s": f"s{last if n == 3 else n}"} for n in (1, 2, 3)]
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        source = Source(inputs=(str(path),), name="in", columns=tuple(chosen))
        recipe = Recipe(sources=(source,), tokenizer=str(tokenizer_json))
        stores.append(packline.build(recipe, out=tmp_path / f"{name}-store", workers=0, engine="tokenizers"))
    found = diff(stores[0].path, stores[1].path)
    assert found.equal_sources == (["in"] if same == 3 else [])
    for one in found.sources:
        assert (one.counts.same, one.counts.otherwise, one.counts.changed) == (same, 3 - same, 0)
