"""Reuse of an earlier store: the bytes of a build without it, and only what has changed is run."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.jobs.builds import build, digests, set_sizes

from packline.errors import InputChanged, NoDocuments, OutOfSpace, RecipeError, StoreError, StoreNotFound
from packline.jobs.events import Note, ReusePlanned, UnitDone
from packline.recipe import Recipe, Source
from packline.sources.reader import piece_checksum

KINDS = ("jsonl", "jsonl.gz", "parquet", "txt")
SETTINGS: dict[str, list[Any]] = {
    "min_chars": [0, 30],
    "label": ["x", "y"],
    "where": ["n >= 0", "n >= 3"],
    "split": ["train", "val"],
}


EDITS = (
    *("byte",) * 5, *("set",) * 3, *("append",) * 2, "add", "remove", "rename", "touch", "rewrite", "reorder",
    "source", "seed", "nothing",
)  # fmt: skip


class Corpus:
    """Sources of small files, and a recipe for them, to be edited at random."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.sources: dict[str, dict[str, Any]] = {}
        self.recipe: dict[str, Any] = {"val_fraction": 0.3}
        self.made = 0

    def add_source(self, name: str, files: int) -> None:
        (self.folder / name).mkdir(parents=True)
        self.sources[name] = {}
        for _ in range(files):
            self.add_file(name, KINDS[self.made % 4 if name == "mixed" else 0], 3 + self.made % 20)

    def add_file(self, source: str, kind: str, count: int) -> Path:
        self.made += 1
        path = self.folder / source / f"{self.made * 37 % 100:02d}.{kind}"
        rows = [
            {"id": f"{self.made}-{n}", "text": f"text {n} of {self.made} " * (n % 9), "n": n}
            for n in range(count)
        ]
        lines = [json.dumps(row) for row in rows] + ["bad"]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
        elif kind == "txt":
            path.write_text("\n".join(lines))
        else:
            data = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(data, mtime=0) if kind == "jsonl.gz" else data)
        return path

    def files(self) -> list[Path]:
        return sorted(path for name in self.sources for path in (self.folder / name).iterdir())

    def as_recipe(self) -> Recipe:
        sources = [
            Source(inputs=(str(self.folder / name),), name=name, **self._settings(name))
            for name in self.sources
        ]
        return Recipe(
            sources=tuple(sources), tokenizer=str(self.tokenizer), eod="<|endoftext|>", **self.recipe
        )

    def _settings(self, name: str) -> dict[str, Any]:
        """Settings of a source; plain text has no fields for a filter."""
        dropped = {"where"} if any((self.folder / name).glob("*.txt")) else set()
        return {key: value for key, value in self.sources[name].items() if key not in dropped}

    def edit(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        """Change one thing."""
        files, source = self.files(), draw(st.sampled_from(sorted(self.sources)))
        path = draw(st.sampled_from(files))
        edit = draw(st.sampled_from(EDITS))
        plain = path.suffix in (".jsonl", ".txt")
        if edit == "add":
            self.add_file(source, draw(st.sampled_from(KINDS)), draw(st.integers(1, 30)))
        elif edit == "remove" and len(list(path.parent.iterdir())) > 1:
            path.unlink()
        elif edit == "rename":
            path.rename(path.with_name(f"{draw(st.integers(0, 99)):02d}-{path.name}"))
        elif edit == "touch":
            os.utime(path, ns=(0, draw(st.integers(0, 10**18))))
        elif edit == "byte" and plain:
            data = bytearray(path.read_bytes())
            place = draw(st.integers(0, len(data) - 1))
            data[place] = draw(st.sampled_from([byte for byte in b'x \n"' if byte != data[place]]))
            before = path.stat()
            path.write_bytes(data)
            if draw(st.booleans()):
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif edit == "append" and plain:
            with path.open("ab") as file:
                file.write(b'{"text": "more", "n": 7}\n' * draw(st.integers(1, 40)))
        elif edit == "rewrite" and path.suffix == ".gz":
            path.write_bytes(
                gzip.compress(gzip.decompress(path.read_bytes()) + b'{"text": "end"}\n', mtime=0)
            )
        elif edit == "set":
            name = draw(st.sampled_from(sorted(SETTINGS)))
            self.sources[source][name] = draw(st.sampled_from(SETTINGS[name]))
        elif edit == "reorder":
            self.sources = dict(reversed(self.sources.items()))
        elif edit == "source":
            self.add_source(f"new{self.made}", 1)
        elif edit == "seed":
            self.recipe["seed"] = draw(st.integers(0, 3))


def built(out: Path, corpus: Corpus, **more: Any) -> None:
    with suppress(NoDocuments):
        build(out, corpus.as_recipe(), None, **more)  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(st.data())
def test_reuse_equals_building_anew_over_random_edits(tokenizer_json: Path, data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp(prefix="packline-reuse-"))
    try:
        corpus = Corpus(folder / "in", tokenizer_json)
        corpus.add_source("plain", 4)
        corpus.add_source("mixed", 5)
        with pytest.MonkeyPatch.context() as patch:
            set_sizes(patch, 600, 200)
            built(folder / "old", corpus)
            before = digests(folder / "old")
            for _ in range(data.draw(st.integers(1, 4))):
                corpus.edit(data.draw)
            if not (folder / "old/manifest.json").exists():
                return
            built(folder / "new", corpus, reuse=folder / "old")
            built(folder / "clean", corpus)
        assert digests(folder / "new") == digests(folder / "clean")
        assert digests(folder / "old") == before
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def corpus(tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Two sources, a store `old` of them, and units of 600 bytes."""
    set_sizes(monkeypatch, 600, 200)
    corpus = Corpus(tmp_path / "in", tokenizer_json)
    corpus.add_source("plain", 4)
    corpus.add_source("mixed", 5)
    corpus.add_file("mixed", "jsonl.gz", 80)
    built(tmp_path / "old", corpus)
    return corpus


class Heard:
    """Events of a build with the earlier store."""

    def __init__(self, tmp_path: Path, corpus: Corpus) -> None:
        self.events: list[Any] = []
        built(tmp_path / "new", corpus, reuse=tmp_path / "old", on_event=self.events.append)

    @property
    def plan(self) -> ReusePlanned:
        (plan,) = (event for event in self.events if isinstance(event, ReusePlanned))
        return plan

    @property
    def run(self) -> list[str]:
        return [event.unit for event in self.events if isinstance(event, UnitDone)]

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Note))

    def reasons(self) -> dict[str, dict[str, int]]:
        return {source.source: source.run for source in self.plan.sources if source.run}


def check_new(tmp_path: Path, corpus: Corpus) -> None:
    """The new store has the bytes of one that was built without the earlier one."""
    built(tmp_path / "clean", corpus)
    assert digests(tmp_path / "new") == digests(tmp_path / "clean")


def test_of_equal_inputs_nothing_is_run(tmp_path: Path, corpus: Corpus) -> None:
    heard = Heard(tmp_path, corpus)
    assert heard.run == [] and heard.reasons() == {} and heard.plan.read_bytes > 0
    names = [name for name in digests(tmp_path / "new") if name.startswith(("train-", "val-", "rejects/"))]
    assert names and all((tmp_path / "new" / name).samefile(tmp_path / "old" / name) for name in names)
    planned = next(event for event in heard.events if type(event).__name__ == "BuildPlanned")
    finished = heard.events[-1]
    assert planned.units_done == heard.plan.units == finished.units


@pytest.mark.parametrize("change", ["longer", "byte", "copied store"])
def test_only_the_unit_that_has_changed_is_run(tmp_path: Path, corpus: Corpus, change: str) -> None:
    path = min((tmp_path / "in/plain").iterdir(), key=lambda one: one.stat().st_size)
    before, data = path.stat(), path.read_bytes()
    if change == "longer":
        path.write_bytes(data + b'{"text": "one more"}\n')
    else:
        path.write_bytes(data.replace(b"text 2", b"TEXT 2", 1))
    if change == "byte":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)
    if change == "copied store":  # it is no evidence for its inputs
        shutil.copytree(tmp_path / "old", tmp_path / "copy")
        shutil.rmtree(tmp_path / "old")
        (tmp_path / "copy").rename(tmp_path / "old")
    heard = Heard(tmp_path, corpus)
    check_new(tmp_path, corpus)
    assert heard.reasons() == {"plain": {"content changed": 1}} and heard.plan.read_bytes > 0
    (unit,) = heard.run
    receipt = json.loads((tmp_path / f"new/receipts/{unit}.json").read_text())
    assert path.name in [piece["file"] for piece in receipt["inputs"]]


CHANGES: dict[str, tuple[Callable[[Corpus], Any], bool]] = {
    "min_chars: 0 -> 9": (lambda one: one.sources["plain"].update(min_chars=9), False),
    "columns: not given -> ['n']": (lambda one: one.sources["plain"].update(columns=("n",)), False),
    "seed: 0 -> 3": (lambda one: one.recipe.update(seed=3), True),
    "bos: not given -> 0": (lambda one: one.recipe.update(bos="<|endoftext|>"), True),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_the_reason_names_the_setting_that_has_changed(tmp_path: Path, corpus: Corpus, reason: str) -> None:
    edit, everywhere = CHANGES[reason]
    edit(corpus)
    reasons = Heard(tmp_path, corpus).reasons()
    assert set(reasons) == ({"plain", "mixed"} if everywhere else {"plain"})
    assert all(list(found) == [reason] for found in reasons.values())


def test_new_files_sources_and_another_tokenizer(tmp_path: Path, corpus: Corpus) -> None:
    corpus.add_source("other", 1)
    corpus.add_file("plain", "jsonl", 30)
    reasons = Heard(tmp_path, corpus).reasons()
    assert list(reasons["other"]) == ["new source"] and "new file" in reasons["plain"]
    check_new(tmp_path, corpus)
    shutil.rmtree(tmp_path / "new")
    text = corpus.tokenizer.read_text().replace("<|endoftext|>", "<|end|>")
    corpus.tokenizer = tmp_path / "tokenizer.json"
    corpus.tokenizer.write_text(text)
    recipe = msgspec.structs.replace(corpus.as_recipe(), eod="<|end|>")
    events: list[Any] = []
    build(tmp_path / "new", recipe, None, reuse=tmp_path / "old", on_event=events.append)  # type: ignore[arg-type]
    plan = next(event for event in events if isinstance(event, ReusePlanned))
    assert plan.units == 0 and "another tokenizer" in plan.sources[0].run


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"limit_documents": 40}), ({"limit_tokens": 700}, {"limit_tokens": 900})]
)
def test_limits_may_change(
    tmp_path: Path, corpus: Corpus, before: dict[str, int], after: dict[str, int]
) -> None:
    plain = corpus.recipe
    if before:
        shutil.rmtree(tmp_path / "old")
        corpus.recipe = plain | before
        built(tmp_path / "old", corpus)
    corpus.recipe = plain | after
    assert Heard(tmp_path, corpus).plan.units > 0
    check_new(tmp_path, corpus)


def test_a_strict_build_runs_what_has_bad_records(tmp_path: Path, corpus: Corpus) -> None:
    from packline.errors import BadRecord

    with pytest.raises(BadRecord):
        built(tmp_path / "new", corpus, reuse=tmp_path / "old", strict=True)


def test_a_damaged_unit_is_run_again_and_reported(tmp_path: Path, corpus: Corpus) -> None:
    path = next((tmp_path / "old").glob("train-plain-*.bin"))
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    gone = next((tmp_path / "old").glob("*-mixed-*.idx"))
    gone.unlink()
    heard = Heard(tmp_path, corpus)
    units = {one.name.partition("-")[2].partition(".")[0] for one in (path, gone)}
    assert set(heard.run) >= {unit for unit in units if unit.count("-") == 1}
    assert str(path) in heard.notes and "is damaged: expected" in heard.notes and str(gone) in heard.notes
    check_new(tmp_path, corpus)


def test_a_damaged_receipt_costs_its_unit(tmp_path: Path, corpus: Corpus) -> None:
    path = next((tmp_path / "old/receipts").glob("plain-*.json"))
    path.write_bytes(path.read_bytes()[:-9])
    heard = Heard(tmp_path, corpus)
    assert heard.run == [path.stem] and str(path) in heard.plan.damaged[0]
    assert heard.reasons() == {"plain": {"damaged in the earlier store": 1}}


@pytest.mark.parametrize("what", ["store", "shards"])
def test_a_store_that_disappears_meanwhile_costs_time_only(tmp_path: Path, corpus: Corpus, what: str) -> None:
    events: list[Any] = []

    def hear(event: Any) -> None:
        events.append(event)
        if isinstance(event, ReusePlanned) and what == "store":
            shutil.rmtree(tmp_path / "old")
        elif isinstance(event, ReusePlanned):
            for path in (tmp_path / "old").glob("*.bin"):
                path.write_bytes(b"other")

    built(tmp_path / "new", corpus, reuse=tmp_path / "old", on_event=hear)
    check_new(tmp_path, corpus)
    assert sum(isinstance(event, Note) and "again" in event.text for event in events) > 1


def test_a_full_disk_keeps_what_is_committed(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packline.storage.local import share_file

    calls = [0]

    def full(*given: Any) -> str:
        calls[0] += 1
        if calls[0] > 20:
            raise OSError(errno.ENOSPC, "no space")
        return share_file(*given)

    monkeypatch.setattr("packline.jobs.reuse.BATCH", 2)
    with monkeypatch.context() as patch, pytest.raises(OutOfSpace):
        patch.setattr("packline.jobs.reuse.share_file", full)
        built(tmp_path / "new", corpus, reuse=tmp_path / "old")
    assert any((tmp_path / "new/receipts").iterdir())
    assert Heard(tmp_path, corpus).run == []
    check_new(tmp_path, corpus)


@pytest.mark.parametrize("place", [3, 25, 110])
def test_interrupted_anywhere_it_goes_on_with_or_without_the_earlier_store(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    calls = [0]

    def stopping(real: Any, *given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == place:
            raise KeyboardInterrupt
        return real(*given, **more)

    for name in ("fsync", "replace", "link"):
        monkeypatch.setattr(os, name, partial(stopping, getattr(os, name)))
    monkeypatch.setattr("packline.jobs.reuse.BATCH", 3)
    corpus.add_file("plain", "jsonl", 12)
    try:
        built(tmp_path / "new", corpus, reuse=tmp_path / "old")
    except KeyboardInterrupt:
        assert not (tmp_path / "new/manifest.json").exists() or place > 60
    more = {"reuse": tmp_path / "old"} if place % 2 else {}
    built(tmp_path / "new", corpus, **more)
    check_new(tmp_path, corpus)


def test_an_input_that_changes_while_it_is_compared_stops_the_build(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = min((tmp_path / "in/plain").iterdir())
    os.utime(path)

    def change(*given: Any) -> str:
        found = real(*given)
        path.write_bytes(path.read_bytes() + b"{}\n")
        return found

    real = piece_checksum
    monkeypatch.setattr("packline.jobs.build_job.piece_checksum", change)
    with pytest.raises(InputChanged, match="changed while it was read"):
        built(tmp_path / "new", corpus, reuse=tmp_path / "old")


def test_stores_and_recipes_that_do_not_go_with_reuse(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(StoreNotFound):
        built(tmp_path / "new", corpus, reuse=tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is the output itself"):
        built(tmp_path / "old", corpus, reuse=tmp_path / "old")
    corpus.recipe = {"val_documents": 3}
    with pytest.raises(RecipeError, match="val_documents does not go with --reuse"):
        built(tmp_path / "new", corpus, reuse=tmp_path / "old")
    assert not (tmp_path / "new").exists()
