"""Pages of a run show what its loader gives, at any step, rank and slot."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.formats.stores import make_store, random_documents
from tests.viewing.parsed import ids_shown
from tests.viewing.web.sites import client_of, get, small_store

import packline
from packline.facade import Store

RUN = """
[loader]
batch_size = 4
seed = 3

[[stages]]
seq_len = 16
tokens = 640
[[stages.sources]]
store = "one"
weight = 0.75
[[stages.sources]]
store = "two"
weight = 0.25

[[stages]]
seq_len = 32
packing = "pad"
batch_size = 8
tokens = 512
[[stages.sources]]
store = "one"
min_tokens = 4
max_epochs = "unlimited"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_store(folder / "one")
    make_store(folder / "two", random_documents(90, 400)[::-1], vocab_size=400, eod_id=0)
    (folder / "run.toml").write_text(RUN, "utf-8")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> TestClient:
    return client_of([], runs=[folder / "run.toml"])


def test_each_step_is_the_loaders(client: TestClient, folder: Path) -> None:
    loader = packline.Loader.from_file(folder / "run.toml", prefetch=0)
    assert len(loader) == 12
    for step in (0, 5, 9, 10, 11):
        batch = loader.batch(step)
        for slot in range(len(batch["tokens"])):
            found = get(client, f"/run?step={step}&row={slot}")
            filled = int((batch["segment_ids"][slot] >= 0).sum())
            assert ids_shown(found) == batch["tokens"][slot][:filled].tolist()


def test_ranks_share_a_batch(client: TestClient, folder: Path) -> None:
    for rank in (0, 1):
        loader = packline.Loader.from_file(folder / "run.toml", rank=rank, world_size=2, prefetch=0)
        expected = [one for row in loader.batch(3)["tokens"].tolist() for one in row]
        assert ids_shown(get(client, f"/run?step=3&ranks=2&rank={rank}")) == expected


def test_the_page_shows_stages_and_shares(client: TestClient) -> None:
    found = get(client, "/run?step=4")
    text = found.of("main")
    assert "75.0%" in text and "25.0%" in text and "stage 1" in text and "10 to 11" in text
    slider = next(one for one in found.all("input") if one.get("type") == "range")
    assert (slider["min"], slider["max"], slider["value"]) == ("0", "11", "4")
    (line,) = [one for one in found.all("svg") if one.get("class") == "timeline"]
    assert "now step 4" in (line["aria-label"] or "")
    assert "/run?step=10" in [one.get("href") for one in found.all("a")]
    assert "min_tokens 4" in get(client, "/run?step=11").of("main")


def test_both_stores_are_served_and_a_document_names_its_steps(client: TestClient, folder: Path) -> None:
    run, store = folder / "run.toml", Store(folder / "two")
    uses = packline.trace(run, document=7, store=store)
    found = get(client, "/document/7?store=1")
    links = [one.get("href") for one in found.all("a")]
    for use in uses[:3]:
        assert f"/run?step={use.step}&row={use.index}" in links
    assert uses or "never used" in found.of("main")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/run?step=12", "0 to 11"),
        ("/run?ranks=3", "divides"),
        ("/run?ranks=2&rank=2", "0 to 1"),
        ("/run?row=9", "0 to 3"),
        ("/run?run=one", "expected one of"),
    ],
)
def test_what_a_run_has_not_is_answered(client: TestClient, path: str, expected: str) -> None:
    assert expected in get(client, path, 400).of("main")


def test_jumps_stay_in_the_run(client: TestClient, folder: Path) -> None:
    answer = client.get("/jump?to=step&number=5&run=0")
    assert answer.headers["location"] == "/run?run=0&step=5"
    without = client_of([Store(folder / "one")])
    assert "packline serve run.toml" in get(without, "/run", 400).of("main")
    assert "/run" not in [one.get("href") for one in get(without, "/").all("a")]


def test_a_changed_run_shows_what_was_used_before_the_change(folder: Path) -> None:
    change = RUN.replace("[[stages]]\nseq_len = 32", "[[stages]]\nfrom_step = 7\nseq_len = 32")
    (folder / "changed.toml").write_text(change, "utf-8")
    client = client_of([], runs=[folder / "changed.toml"])
    loader = packline.Loader.from_file(folder / "changed.toml", prefetch=0)
    assert (len(loader), loader.rows_of_step(6).stage, loader.rows_of_step(7).stage) == (9, 0, 1)
    for step in (6, 8):
        # Counted from the batches, not from the schedule.
        drawn = [loader.rows_of_step(before) for before in range(step)]
        text = " ".join(get(client, f"/run?step={step}").of("main").split()).replace(" (min_tokens 4)", "")
        for seq_len, stage in ((16, 0), (32, 1)):
            used = sum(int((one.sources == 0).sum()) for one in drawn if one.stage == stage)
            whole = len(loader.schedule.stages[stage].mixture.rows[0])
            assert f"one, rows of {seq_len}" in text or not used
            assert f"{whole}{used}{used / whole:.2f}" in text or not used
        assert ("earlier stages" in text) == (step >= 7)
        assert "448 of 640" in text  # 7 batches of 4 rows of 16
