"""`packline info --seq-len`: its numbers are right, its table is readable, and plans are written."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import result, run
from tests.packing.counting import prices

from packline.facade import Store
from packline.packing import best_fit
from packline.packing.options import DocumentFilter
from packline.packing.packer import Counts
from packline.packing.selection import Selection
from packline.testing import make_store

WEB, BOOKS, VAL = [5, 9, 3, 3, 8, 30, 1] * 4, [41, 17, 2], [6, 6]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two labels, two splits."""
    folder = tmp_path_factory.mktemp("pack") / "store"
    splits, labels = ["train", "train", "val"], ["web", "books", "web"]
    return make_store(folder, [WEB, BOOKS, VAL], splits=splits, labels=labels).path


@pytest.mark.parametrize(
    "words, lengths",
    [
        ([], WEB + BOOKS),
        (["--split", "val"], VAL),
        (["--split", "all"], WEB + BOOKS + VAL),
        (["--label", "books"], BOOKS),
        (["--label", "books", "--label", "web", "--split", "val"], VAL),
        (["--source", "made-web", "--min-tokens", "3", "--max-tokens", "9"], [5, 9, 3, 3, 8] * 4),
    ],
)
def test_the_numbers_are_those_of_packing(store: Path, words: list[str], lengths: list[int]) -> None:
    done = run("info", store, "--seq-len", "10", "--seq-len", "4", *words, "--json")
    assert done.returncode == 0, done.stderr
    values = result(done)
    assert (values["documents"], values["tokens"]) == (len(lengths), sum(lengths))
    assert values["plans"] == [] and len(values["prices"]) == 10
    for found in values["prices"]:
        name = found["packing"] if found["overflow"] is None else f"{found['packing']}, {found['overflow']}"
        counts = prices(lengths, found["seq_len"])[name]
        assert msgspec.convert(found, Counts) == counts, name
        places = counts.rows * found["seq_len"]
        assert found["padding_share"] == (counts.padding_tokens / places if places else 0)
        assert found["lost_share"] == (counts.dropped_tokens + counts.truncated_tokens) / counts.tokens
        assert found["split_share"] == counts.split_documents / counts.documents
    assert not (store / "plans").exists()


def test_the_last_lines_name_the_cheapest(store: Path) -> None:
    lines = run("info", store, "--seq-len", "10").stdout.splitlines()[-3:]
    assert lines[0].split("  ")[1] == "loses fewest tokens"
    expected = prices(WEB + BOOKS, 10)
    lossless = {name for name, one in expected.items() if not one.dropped_tokens + one.truncated_tokens}
    assert lossless == {"concat", "best_fit", "pad, split"}
    assert lines[0].endswith("concat, best_fit and pad split: none")
    padding = {name: one.padding_tokens / (10 * one.rows) for name, one in expected.items()}
    names = " and ".join(name for name in expected if padding[name] == min(padding.values()))
    assert f"  {names}: " in lines[2]
    assert "of these, splits fewest documents  best_fit and pad split: " in lines[1]


def test_a_plan_is_written_when_asked_for_and_checked_the_next_time(store: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(store, tmp_path / "store"))
    words = ["info", str(store), "--seq-len", "10", "--packing", "best_fit", "--write"]
    words += ["--shuffle-documents", "3"]
    first = run(*words)
    assert first.returncode == 0, first.stderr
    (folder,) = (store / "plans").iterdir()
    assert f"{folder}: " in first.stdout and "written" in first.stdout
    assert "already exists, and is complete" in run(*words).stdout
    values = result(run(*words, "--json"))
    assert [price["packing"] for price in values["prices"]] == ["best_fit"]
    assert values["plans"][0]["folder"] == str(folder)
    assert values["plans"][0]["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    # It is the plan that rows of these settings use.
    selection = Selection(Store(store), DocumentFilter(shuffle_documents=3))
    packer = best_fit.BestFit(selection, 10)
    assert packer.plan.folder == folder
    data = bytearray((folder / "plan.bin").read_bytes())
    data[-70] ^= 1
    (folder / "plan.bin").write_bytes(data)
    damaged = run(*words)
    assert damaged.returncode == 1
    assert "is damaged: expected checksum" in damaged.stderr and "hint: delete that folder" in damaged.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (["--seq-len", "8", "--write", "--packing", "pad"], "--write belongs to --packing best_fit"),
        (["--seq-len", "8", "--packing", "nope"], "--packing"),
        (["--packing", "pad"], "expected --seq-len"),
        (["--unique"], "expected --seq-len"),
    ],
)
def test_settings_that_make_no_sense_are_wrong_usage(store: Path, words: list[str], message: str) -> None:
    done = run("info", store, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert done.stdout == ""
