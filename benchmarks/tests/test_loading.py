"""The measurement of loading: fresh processes, equal tokens, figures round by round, wrong work refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.peers import missing_peers, peers_python

import packline
from benchmarks import loading
from benchmarks.catalogue import TokenizerFile
from benchmarks.contenders.batches import check_batch
from benchmarks.errors import BenchmarkError
from benchmarks.figures import loading_figures, opening_figures
from benchmarks.render import render
from benchmarks.results import LoadingRun, OpeningRun, PermutationRun, Results, load_results, save_results
from benchmarks.suite import ROOT, environment


def results() -> Results:
    return Results(date="2030-01-01", machine={"busy_cores_at_start": 0.0}, versions={}, corpora={})


def run(contender: str, kind: Any, number: int, tokens: int) -> LoadingRun:
    return LoadingRun(
        contender=contender, kind=kind, gives="tokens", round=number, tokens=tokens, seconds=2.0
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens as `prepare_tokens` leaves them, of made-up text and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("loading")
    words = {word: number for number, word in enumerate(["<eod>", "a", "b", "c", "d", "e", "f"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="f"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    generator = np.random.default_rng(0)
    with (folder / "english.jsonl").open("w") as file:
        for length in generator.integers(100, 3000, 150).tolist():
            file.write(f'{{"text": "{" ".join(generator.choice(list("abcde"), length))}"}}\n')
    named = TokenizerFile("words", str(folder / "tokenizer.json"), "<eod>", 0)
    loading.prepare_tokens(folder / "english.jsonl", folder, named)
    return folder


def test_tokens_are_those_of_the_store_in_one_file(work: Path) -> None:
    tokens = np.fromfile(work / "tokens.bin", "<u2")
    store = packline.open(work / "store")
    np.testing.assert_array_equal(tokens, np.concatenate(list(store.documents)))
    rows = store.rows(seq_len=4096)
    np.testing.assert_array_equal(rows.read(np.arange(2))["tokens"].reshape(-1), tokens[: 2 * 4096])


@pytest.mark.parametrize(
    "contender", loading.CONTENDERS, ids=[one.name.replace(" ", "-") for one in loading.CONTENDERS]
)
def test_every_contender_of_our_own_runs(work: Path, contender: loading.Contender) -> None:
    found = loading.measure_once(contender, work, sys.executable, 0.05, 3)
    assert (found.contender, found.kind, found.round) == (contender.name, contender.kind, 3)
    assert found.tokens % (32 * 4096) == 0 and found.tokens > 0
    assert found.seconds >= 0.05 and found.rate > 1


def test_two_workers_are_compared_with_two_workers() -> None:
    one = results()
    one.loading += [
        run("packline, Rows.read", "packline", 1, 600),
        run("packline, Loader", "packline", 1, 300),
        run("packline, DataLoader, 2 workers", "packline", 1, 200),
        run("litdata StreamingDataLoader, 2 workers", "peer", 1, 100),
    ]
    figures = {figure.name: figure for figure in loading_figures(one)}
    workers = figures["packline, DataLoader, 2 workers / litdata StreamingDataLoader, 2 workers"]
    assert workers.spread.median == pytest.approx(2.0) and workers.goal == 1.0
    loader = figures["packline, Loader / packline, Rows.read"]
    assert loader.spread.median == pytest.approx(0.5) and not loader.reached
    assert len(figures) == 2


def test_batches_of_torch_run_where_torch_is(work: Path) -> None:
    pytest.importorskip("torch", reason="the optional torch is not installed")
    for contender in loading.TORCH_CONTENDERS:
        assert loading.measure_once(contender, work, sys.executable, 0.05, 1).tokens > 0


@pytest.mark.long(only=True)
def test_megatron_and_olmo_read_the_same_tokens(work: Path) -> None:
    modules = ("megatron", "olmo_core")
    if missing := missing_peers(peers_python(), modules):
        pytest.skip(f"not installed with the peers: {missing} (make peers)")
    loading.export_pair(work)
    for contender in loading.PEER_CONTENDERS:
        if contender.name in ("Megatron GPTDataset", "OLMo-core, 4 threads"):
            assert loading.measure_once(contender, work, peers_python(), 0.05, 1).tokens > 0


def test_nanogpt_batches_run_where_torch_is(work: Path) -> None:
    pytest.importorskip("torch", reason="torch is a peer's, and not installed here")
    for contender in [one for one in loading.PEER_CONTENDERS if "nanoGPT" in one.name]:
        assert loading.measure_once(contender, work, sys.executable, 0.05, 1).tokens > 0


@pytest.mark.parametrize(
    ("script", "package"),
    [
        ("litdata_tokens", "litdata"),
        pytest.param("mosaic_streaming", "streaming", marks=pytest.mark.long(only=True)),
    ],
)
def test_peers_read_back_what_their_writers_wrote(
    work: Path, tmp_path: Path, script: str, package: str
) -> None:
    if missing := missing_peers(peers_python(), (package,)):
        pytest.skip(f"not installed with the peers: {missing} (make peers)")
    out = str(tmp_path / "out")
    for arguments in ([out, "--prepare", str(work / "tokens.bin")], [out, "--seconds", "0.05"]):
        command = [peers_python(), "-m", f"benchmarks.contenders.{script}", *arguments]
        subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)


def test_a_batch_of_another_shape_or_with_other_targets_is_not_timed() -> None:
    tokens = np.arange(32 * 4097).reshape(32, 4097)
    check_batch(tokens[:, :-1], tokens[:, 1:])
    with pytest.raises(SystemExit, match="shapes"):
        check_batch(tokens[:16, :-1], tokens[:16, 1:])
    with pytest.raises(SystemExit, match="not the next tokens"):
        check_batch(tokens[:, :-1], tokens[:, :-1])
    with pytest.raises(SystemExit, match="not the next tokens"):
        check_batch(tokens[:, :-1], np.full((32, 4096), -100))


def test_the_made_up_store_is_one_that_packline_reads(work: Path, tmp_path: Path) -> None:
    loading.synthetic_store(work / "store", tmp_path / "many", 50_000)
    store = packline.open(tmp_path / "many")
    assert len(store.documents) == 50_000
    lengths = store.shards[0].lengths.astype(np.int64)
    assert lengths.min() >= 1 and 450 < lengths.mean() < 550
    np.testing.assert_array_equal(store.shards[0].places(slice(None)), np.cumsum(lengths) - lengths)
    assert (tmp_path / "many" / "train-000000.bin").stat().st_blocks * 512 < 1 << 16
    spans = store.rows(seq_len=4096).spans(np.array([10]))
    assert int(spans.lengths.sum()) == 4096
    found = loading.measure_opening(tmp_path / "many", 2)
    assert (found.documents, found.round) == (50_000, 2)
    assert 0 < found.open_seconds < 5 and found.rows == int(lengths.sum()) // 4096 + (
        int(lengths.sum()) % 4096 >= 2048
    )


def test_permuting_is_measured() -> None:
    found = loading.measure_permutation(1, size=1000, indices=3000)
    assert (found.size, found.indices) == (1000, 3000)
    assert found.seconds > 0


def test_a_ratio_is_taken_within_a_round() -> None:
    one = results()
    for number, speed in ((1, 1), (2, 3), (3, 1)):
        one.loading += [
            run("bare NumPy slices", "ceiling", number, 1000 * speed),
            run("packline, Rows.read", "packline", number, 600 * speed),
            run("nanoGPT get_batch", "peer", number, 200 * speed),
            run("blocks of litdata", "peer", number, 300 * speed),
        ]
    figures = {figure.name: figure for figure in loading_figures(one)}
    bare = figures["packline, Rows.read / bare NumPy slices"]
    assert (bare.spread.least, bare.spread.greatest) == pytest.approx((0.6, 0.6))
    assert bare.goal == 0.6 and bare.reached
    assert figures["packline, Rows.read / nanoGPT get_batch"].spread.median == pytest.approx(3.0)
    assert figures["packline, Rows.read / blocks of litdata"].goal is None
    assert not any("mosaic" in name for name in figures)


def test_opening_and_permuting_are_judged() -> None:
    one = results()
    one.opening = [
        OpeningRun(
            documents=10**8,
            rows=10,
            round=1,
            open_seconds=0.06,
            rows_seconds=0.06,
            batch_seconds=9.0,
            resident_bytes=1 << 20,
        )
    ]
    one.permutation = [PermutationRun(size=10**8, round=1, indices=10**7, seconds=0.25)]
    figures = opening_figures(one)
    assert [figure.spread.median for figure in figures] == pytest.approx([0.12, 1.0, 40.0])
    assert [figure.reached for figure in figures] == [False, True, True]


def test_runs_survive_the_file_and_are_in_the_table(tmp_path: Path) -> None:
    one = results()
    one.machine = {
        "cores": 2,
        "processor": "p",
        "memory_gib": 1.0,
        "system": "s",
        "python": "3",
        "busy_cores_at_start": 0.0,
    }
    one.loading = [
        run("packline, Rows.read", "packline", 1, 10**9),
        run("nanoGPT get_batch", "peer", 1, 10**8),
    ]
    save_results(tmp_path / "results.json", one)
    again = load_results(tmp_path / "results.json")
    assert again == one
    lines = render(again).splitlines()
    assert "| **packline, Rows.read** | 1 | 500 (500-500) |" in lines
    assert "| nanoGPT get_batch | 1 | 50 (50-50) |" in lines


def test_without_text_or_with_a_large_vocabulary_there_is_an_error(tmp_path: Path, work: Path) -> None:
    named = TokenizerFile("words", str(work / "tokenizer.json"), "<eod>", 0)
    with pytest.raises(BenchmarkError, match=r"absent\.jsonl is absent"):
        loading.prepare_tokens(tmp_path / "absent.jsonl", tmp_path, named)


def test_an_interpreter_without_the_peers_is_an_error(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PEERS", ("no-such-peer",))
    named = TokenizerFile("words", str(work / "tokenizer.json"), "<eod>", 0)
    with pytest.raises(BenchmarkError, match="lacks one of no-such-peer"):
        loading.measure_loading(
            work,
            results(),
            tokenizer=named,
            documents=10,
            rounds=1,
            seconds=0.05,
            peers_python=sys.executable,
            say=lambda line: None,
        )
    assert not (work / "loading").exists()
