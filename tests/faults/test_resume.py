"""Going on with a build: only with the same recipe and inputs, else a refusal with the difference."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.builds import Stop, build, digests, set_sizes, stop_after
from tests.laws.reference import write_corpus

from packline.errors import InputChanged, ResumeMismatch
from packline.jobs.events import Comparing, Finished, Planned, UnitDone

NUMBERS = [f"document {number} of many" for number in range(120)]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    set_sizes(monkeypatch, 1500, 300)


def interrupted(
    tmp_path: Path, tokenizer: Path, kind: str = "jsonl", units: int = 2, **settings: Any
) -> Path:
    """Inputs `in/0.KIND`, and in `out` a build of them that committed some of its units."""
    write_corpus(tmp_path / "in", [(kind, NUMBERS, False), ("jsonl", NUMBERS[:50], False)])
    with pytest.raises(Stop):
        build(tmp_path / "out", tmp_path / "in", tokenizer, on_event=stop_after(units), **settings)
    assert len(list((tmp_path / "out/receipts").glob("in-*.json"))) >= units
    assert not (tmp_path / "out/manifest.json").exists()
    return tmp_path / "in" / f"0.{kind}"


def goes_on(tmp_path: Path, tokenizer: Path, **settings: Any) -> None:
    """Build on, to the bytes of a build that was never stopped."""
    build(tmp_path / "out", tmp_path / "in", tokenizer, **settings)
    build(tmp_path / "clean", tmp_path / "in", tokenizer, **settings)
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")


def refused(tmp_path: Path, tokenizer: Path, **settings: Any) -> str:
    """The message of the refusal; asking again changes nothing."""
    before = kept(tmp_path / "out")
    messages = set()
    for _ in range(2):
        with pytest.raises(ResumeMismatch) as caught:
            build(tmp_path / "out", tmp_path / "in", tokenizer, **settings)
        messages.add(caught.value.message)
        assert "--out" in caught.value.hint
    assert len(messages) == 1
    assert kept(tmp_path / "out") == before
    return messages.pop()


def kept(out: Path) -> dict[str, str]:
    """All files but those of units that did not end."""
    unfinished = (".packline/tmp/",)
    return {name: digest for name, digest in digests(out).items() if not name.startswith(unfinished)}


def test_an_interrupted_build_goes_on_to_the_same_bytes(tmp_path: Path, tokenizer_json: Path) -> None:
    interrupted(tmp_path, tokenizer_json)
    told: list[Any] = []
    goes_on(tmp_path, tokenizer_json, on_event=told.append)
    assert [event.units_done for event in told if isinstance(event, Planned)] == [2, 0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"val_fraction": 0.25}, "val_fraction: 0.0 -> 0.25"),
        ({"bos": 0}, "bos: not given -> 0"),
        ({"limit_documents": 5}, "limit_documents: not given -> 5"),
    ],
)
def test_another_recipe_is_refused_with_the_difference(
    change: dict[str, Any], told: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    interrupted(tmp_path, tokenizer_json)
    assert told in refused(tmp_path, tokenizer_json, **change)


def test_run_options_may_change_between_runs(tmp_path: Path, tokenizer_json: Path) -> None:
    interrupted(tmp_path, tokenizer_json, engine="gigatoken")
    goes_on(tmp_path, tokenizer_json, engine="fastokens", memory="2GiB", max_bad_fraction=0.5)


def test_another_tokenizer_at_the_same_path_is_refused(tmp_path: Path, tokenizer_json: Path) -> None:
    copy = tmp_path / "tokenizer.json"
    copy.write_text(tokenizer_json.read_text())
    interrupted(tmp_path, copy)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(copy))
    tokenizer.add_tokens(["one more"])
    tokenizer.save(str(copy))
    assert "the tokenizer's content" in refused(tmp_path, copy)


def test_inputs_of_other_sizes_new_ones_and_lost_ones_are_refused(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    path = interrupted(tmp_path, tokenizer_json)
    data = path.read_bytes()
    path.write_bytes(data + b"\n")
    message = refused(tmp_path, tokenizer_json)
    assert f"input {path}: {len(data):,} bytes -> {len(data) + 1:,} bytes" in message
    path.write_bytes(data)
    (tmp_path / "in/new.jsonl").write_bytes(data)
    assert f"input {tmp_path / 'in/new.jsonl'} is new" in refused(tmp_path, tokenizer_json)
    (tmp_path / "in/new.jsonl").unlink()
    (tmp_path / "in/1.jsonl").unlink()
    assert f"input {tmp_path / 'in/1.jsonl'} is gone" in refused(tmp_path, tokenizer_json)


def later(path: Path) -> None:
    """Another modification time, after all others whatever the file system's clock."""
    now = time.time_ns() + 1_000_000_000
    os.utime(path, ns=(now, now))


def test_other_content_of_the_same_size_is_refused_again_and_again(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    path = interrupted(tmp_path, tokenizer_json)
    path.write_bytes(path.read_bytes().replace(b"document 1 ", b"DOCUMENT 1 "))
    later(path)
    assert str(path) in refused(tmp_path, tokenizer_json)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_that_was_only_touched_is_the_same_file(
    kind: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    path = interrupted(tmp_path, tokenizer_json, kind, units=1)
    later(path)
    goes_on(tmp_path, tokenizer_json)


def test_a_stream_that_was_read_whole_may_be_touched_but_not_changed(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    write_corpus(tmp_path / "in", [("jsonl.gz", NUMBERS, False), ("jsonl", NUMBERS, False)])
    path = tmp_path / "in/0.jsonl.gz"
    done: list[str] = []

    def hear(event: Any) -> None:
        if isinstance(event, UnitDone):
            done.append(event.unit)
            if event.unit == "in-000001":
                raise Stop

    with pytest.raises(Stop):
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, on_event=hear)
    assert done[0].startswith("in-000000-") and (tmp_path / "out/receipts/in-000000.stream.json").exists()
    data = path.read_bytes()
    path.write_bytes(
        data[:4] + b"\x01" + data[5:]
    )  # the time in its header: the same documents, another file
    later(path)
    assert str(path) in refused(tmp_path, tokenizer_json)
    path.write_bytes(data)
    later(path)
    goes_on(tmp_path, tokenizer_json)


@pytest.mark.parametrize(("kind", "limit"), [("jsonl.zst", {}), ("jsonl", {"limit_documents": 9})])
def test_what_was_read_in_part_and_then_touched_is_refused(
    kind: str, limit: dict[str, int], tmp_path: Path, tokenizer_json: Path
) -> None:
    path = interrupted(tmp_path, tokenizer_json, kind, units=1, **limit)
    later(path)
    assert f"another state of {path}" in refused(tmp_path, tokenizer_json, **limit)


@pytest.mark.parametrize(
    ("kind", "change"),
    [("jsonl", "shrink"), ("jsonl", "grow"), ("jsonl.gz", "grow"), ("jsonl.gz", "rewrite"),
     ("parquet", "shrink"), ("parquet", "rewrite")],
)  # fmt: skip
def test_a_file_that_changes_while_it_is_read_stops_the_build(
    kind: str, change: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    write_corpus(tmp_path / "in", [("jsonl", NUMBERS, False), (kind, NUMBERS, False)])
    path = tmp_path / f"in/1.{kind}"
    data = path.read_bytes()

    def hear(event: Any) -> None:
        if isinstance(event, UnitDone) and event.unit == "in-000000":
            shrunk, grown = data[: len(data) * 2 // 3], data + data[:99]
            path.write_bytes({"shrink": shrunk, "grow": grown, "rewrite": data}[change])
            later(path)

    with pytest.raises(InputChanged, match="changed while it was read") as caught:
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, on_event=hear)
    assert str(path) in caught.value.message and f"expected {len(data):,} bytes" in caught.value.message
    assert "new folder" in caught.value.hint
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_finished_store_is_not_built_over(tmp_path: Path, tokenizer_json: Path) -> None:
    write_corpus(tmp_path / "in", [("jsonl", NUMBERS, False)])
    build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    assert "seed: 0 -> 9" in refused(tmp_path, tokenizer_json, seed=9)
    path = tmp_path / "in/0.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + b'{"text": "one more"}\n')
    assert f"{len(data):,} bytes -> " in refused(tmp_path, tokenizer_json)
    path.write_bytes(data.replace(b"document 1 ", b"DOCUMENT 1 "))
    later(path)
    assert f"the content of input {path}" in refused(tmp_path, tokenizer_json)


KINDS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet", "txt")


def rerun(tmp_path: Path, tokenizer: Path, **settings: Any) -> list[Any]:
    """Events of a build that must find its store finished."""
    told: list[Any] = []
    before = digests(tmp_path / "out")
    build(tmp_path / "out", tmp_path / "in", tokenizer, on_event=told.append, **settings)
    assert [event.nothing_to_do for event in told if isinstance(event, Finished)] == [True]
    assert digests(tmp_path / "out") == before
    return told


@pytest.mark.parametrize("how", ["touch", "copy"])
def test_a_finished_store_is_that_of_inputs_that_were_touched_or_copied(
    how: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    write_corpus(tmp_path / "in", [(kind, NUMBERS, False) for kind in KINDS])
    build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    if how == "copy":
        shutil.move(tmp_path / "in", tmp_path / "before")
        shutil.copytree(tmp_path / "before", tmp_path / "in")
    for path in (tmp_path / "in").iterdir():
        later(path)
    compared = [event for event in rerun(tmp_path, tokenizer_json) if isinstance(event, Comparing)]
    assert {event.files for event in compared} == {len(KINDS)}
    assert compared[0].fraction == 0 and len({event.fraction for event in compared}) > len(KINDS)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "parquet"])
def test_a_finished_store_is_not_that_of_inputs_of_equal_size_whose_time_is_set_back(
    kind: str, tmp_path: Path, tokenizer_json: Path
) -> None:
    write_corpus(tmp_path / "in", [(kind, NUMBERS, False), ("jsonl", NUMBERS, False)])
    path = tmp_path / f"in/0.{kind}"
    build(tmp_path / "out", tmp_path / "in", tokenizer_json)
    before, data = path.stat(), path.read_bytes()
    other, changed = tmp_path / f"other/0.{kind}", b""
    for word in ("mane", "zany", "mans", "maxi", "mask", "maps", "made", "main", "mark", "mail", "math"):
        write_corpus(other.parent, [(kind, [text.replace("many", word) for text in NUMBERS], False)])
        if len(changed := other.read_bytes()) == len(data):
            break
    assert len(changed) == len(data) and changed != data
    path.write_bytes(changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert str(path) in refused(tmp_path, tokenizer_json)
    path.write_bytes(data)
    rerun(tmp_path, tokenizer_json)


def test_what_a_limit_left_unread_may_be_touched_and_what_it_read_in_part_may_not(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    write_corpus(tmp_path / "in", [("jsonl", NUMBERS, False) for _ in range(3)])
    limited = {"limit_documents": 150}
    build(tmp_path / "out", tmp_path / "in", tokenizer_json, **limited)
    for number in (0, 2):
        later(tmp_path / f"in/{number}.jsonl")
    rerun(tmp_path, tokenizer_json, **limited)
    later(tmp_path / "in/1.jsonl")
    message = refused(tmp_path, tokenizer_json, **limited)
    assert f"the content of input {tmp_path / 'in/1.jsonl'}, or a part of it that was not read" in message


def test_a_leftover_of_nobody_is_deleted_and_never_published(tmp_path: Path, tokenizer_json: Path) -> None:
    interrupted(tmp_path, tokenizer_json)
    out = tmp_path / "out"
    tmp = out / ".packline"
    for stray in ("train-in-000077.bin", tmp / "tmp/train-in-000001.bin"):
        (out / stray).parent.mkdir(exist_ok=True)
        (out / stray).write_bytes(b"stray")
    (out / "receipts/.in-000009.json.tmp").write_bytes(b"{")
    goes_on(tmp_path, tokenizer_json)
