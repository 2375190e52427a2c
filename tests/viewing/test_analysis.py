"""Every figure of an analysis against the same figure counted slowly."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.counting import prices
from tests.store.stores import relist
from tests.viewing.parsed import text_of
from tests.viewing.token_stores import equal_groups, store_of, what_is_wrong

import packline
from packline.errors import CorruptStore, RecipeError, StoreNotFound, WorkerDied
from packline.facade import Store
from packline.testing import EOD, EOD_ID, make_store
from packline.viewing import tally
from packline.viewing.analysis import Analysis, Suspicious, analyze, analyze_foreign
from packline.viewing.describe import analysis_page, analysis_warnings
from packline.viewing.tally import Suspect
from packline.vocabulary.training import train_bpe

Shards = list[list[list[int]]]
small_body = st.lists(st.integers(0, 6), max_size=12) | st.lists(st.integers(1, 5), min_size=30, max_size=67)
small_shards = st.lists(st.lists(small_body, min_size=1, max_size=6), min_size=1, max_size=4)
V = 1000


def by_reason(analysis: Analysis) -> dict[str, Suspicious]:
    return {one.reason: one for one in analysis.suspicious}


def check(analysis: Analysis, shards: Shards, splits: list[str], labels: list[str | None]) -> None:
    bodies = [body for shard in shards for body in shard]
    tokens = [token for body in bodies for token in (*body, EOD_ID)]
    used = Counter(tokens)
    split_of = [split for split, shard in zip(splits, shards, strict=True) for _ in shard]
    lengths = sorted(len(body) + 1 for body in bodies)
    sizes = [max(len(body), 1) for body in bodies]  # as `make_store` has it
    assert (analysis.documents, analysis.tokens) == (len(bodies), len(tokens))
    assert (analysis.text_bytes, analysis.text_tokens) == (sum(sizes), len(tokens) - len(bodies))
    assert (analysis.lengths.shortest, analysis.lengths.longest) == (lengths[0], lengths[-1])

    groups: dict[tuple[str, str | None], list[int]] = {}
    for split, label, shard in zip(splits, labels, shards, strict=True):
        sums = groups.setdefault((split, label), [0, 0, 0, 0])
        counts = (len(shard), sum(len(body) + 1 for body in shard), sum(max(len(b), 1) for b in shard), 1)
        for place, count in enumerate(counts):
            sums[place] += count
    assert {
        (one.split, one.label): [one.documents, one.tokens, one.text_bytes, one.shards]
        for one in analysis.groups
    } == groups
    assert [one.split for one in analysis.groups] == sorted(one.split for one in analysis.groups)

    assert [(one.id, one.text, one.count) for one in analysis.special] == [(EOD_ID, EOD, used[EOD_ID])]
    assert analysis.boundary == {EOD_ID: len(bodies)}
    plain = [(id, count) for id, count in used.items() if id != EOD_ID]
    plain.sort(key=lambda one: (-one[1], one[0]))
    assert [(one.id, one.count) for one in analysis.most_used] == plain[:20]
    never = [id for id in range(1, V) if not used[id]]
    assert analysis.never_used == len(never)
    assert [one.id for one in analysis.never_used_first] == never[:20]

    wrong = [what_is_wrong(body) for body in bodies]
    for reason in ("repetition", "one token", "long run", "no text"):
        right = sorted((-one[reason], number) for number, one in enumerate(wrong) if reason in one)
        found = by_reason(analysis)[reason]
        assert found.count == len(right)
        assert [(-one.value, one.document) for one in found.documents] == right[:20]

    twice, same = analysis.duplicates, equal_groups(bodies)
    assert twice.groups == len(same)
    assert twice.across_splits == sum(len({split_of[one] for one in group}) > 1 for group in same)
    named = {one.document for kind in analysis.suspicious for one in kind.documents}
    named |= {one for group in twice.largest for one in group.documents}
    assert set(analysis.places) == named


@settings(max_examples=25)
@given(small_shards, st.sampled_from(["uint16", "int32"]), st.data())
def test_every_figure_is_that_of_counting_by_hand(shards: Shards, dtype: str, data: st.DataObject) -> None:
    splits = data.draw(
        st.lists(st.sampled_from(["train", "val"]), min_size=len(shards), max_size=len(shards))
    )
    labels: list[str | None] = data.draw(
        st.lists(st.sampled_from([None, "web"]), min_size=len(shards), max_size=len(shards))
    )
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(Path(folder) / "s", shards, dtype=dtype, splits=splits, labels=labels, vocab_size=V)
        check(analyze(store, workers=0), shards, splits, labels)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Documents of all sizes: a block has many, or is a piece of one."""
    draw = np.random.default_rng(5)
    shards = [
        [draw.integers(1, 1000, size).tolist() for size in sizes]
        for sizes in ([3, 700_000, 10], [1_400_000, 1, 200_000], [50] * 2000)
    ]
    shards[2][7] = shards[2][1900]
    return store_of(tmp_path_factory.mktemp("large") / "s", shards)


def test_processes_give_the_same_as_this_one(large: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "ALONE_TOKENS", 1000)
    done: list[int] = []
    apart = analyze(large, workers=3, on_event=done.append)
    assert sum(done) == apart.tokens == sum(len(one) for one in large.documents)
    assert apart == analyze(large, workers=0)
    assert apart.duplicates.groups == 1
    used = np.bincount(np.concatenate(list(large.documents)), minlength=V)
    most = np.lexsort((np.arange(V), -used))
    assert [one.id for one in apart.most_used] == [int(one) for one in most if one != EOD_ID][:20]


KILLED = """
import sys
if "packline.jobs.host" in sys.orig_argv:
    import os, signal
    from packline.viewing import tally
    count = tally.count_range
    def killed(settings, documents, *others):
        if documents.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return count(settings, documents, *others)
    tally.count_range = killed
"""


def test_a_dead_worker_is_an_error(large: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "ALONE_TOKENS", 1000)
    (tmp_path / "sitecustomize.py").write_text(KILLED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerDied, match="SIGKILL") as error:
        analyze(large, workers=2)
    assert error.value.hint == "use fewer workers if memory ran out"


def test_a_damaged_shard_is_an_error(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", [[[1, 2], [3]], [[4]]])
    name = store.manifest.shards[0].name
    table = tmp_path / "s" / f"{name}.docs.parquet"
    whole = table.read_bytes()
    table.write_bytes(whole[:-20])
    with pytest.raises(CorruptStore, match=r"cannot read .*docs\.parquet"):
        analyze(store, workers=0)
    shutil.copy(tmp_path / "s" / f"{store.manifest.shards[1].name}.docs.parquet", table)
    with pytest.raises(CorruptStore, match="expected 2 documents, found 1"):
        analyze(relist(store.path), workers=0)
    table.write_bytes(whole)
    relist(store.path)
    (tmp_path / "s" / f"{name}.bin").write_bytes(b"12")
    with pytest.raises(CorruptStore, match="expected 10 bytes"):
        analyze(tmp_path / "s")
    with pytest.raises(StoreNotFound):
        analyze(tmp_path)


def test_an_empty_store(tmp_path: Path) -> None:
    analysis = analyze(make_store(tmp_path / "s", []), seq_len=8)
    assert (analysis.documents, analysis.tokens, analysis.bytes_per_token) == (0, 0, 0.0)
    assert (analysis.most_used, analysis.never_used, analysis.prices) == ([], V - 1, [])
    assert "There are no documents." in text_of(analysis_page(analysis))


def test_bytes_a_token_and_special_tokens_of_a_real_store(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], documents: list[str]
) -> None:
    import base64
    import random

    random.seed(1)
    noise = [base64.b85encode(random.randbytes(800)).decode() for _ in range(3)]
    prose = [text for text in documents if len(text) > 2000 and text.isascii()][:150]
    marked = ["a <|endoftext|> b", "<|endoftext|>" * 3]
    path = write_jsonl(tmp_path / "in.jsonl", [*prose[:70], *noise, *prose[70:], " " * 6000, *marked])
    store = packline.build(path, tokenizer_json, out=tmp_path / "s", workers=0, special_tokens="parse")
    analysis = analyze(relist(store.path), workers=0)
    assert analysis.text_bytes == store.manifest.ledger.text_bytes
    rates = [
        (store.provenance(number).text_bytes / (len(body) - 1), number)
        for number, body in enumerate(store.documents)
        if len(body) > 32
    ]
    assert analysis.rates.documents == len(rates)
    assert analysis.rates.median == pytest.approx(sorted(rates)[len(rates) // 2][0], rel=0.022)
    few, many = by_reason(analysis)["few bytes per token"], by_reason(analysis)["many bytes per token"]
    low = sorted(one for one in rates if one[0] < analysis.rates.low)
    assert [(one.value, one.document) for one in few.documents] == low
    assert few.count == len(low) and set(range(70, 73)) <= {one.document for one in few.documents}
    high = sorted((-rate, number) for rate, number in rates if rate >= analysis.rates.high)
    assert many.count == len(high)
    assert [(-one.value, one.document) for one in many.documents] == high[:20]
    (control,) = analysis.special
    assert control.count - analysis.boundary[control.id] == 4
    assert any("occurs 4 times inside documents" in line for line in analysis_warnings(analysis))
    assert by_reason(analysis)["no text"].documents == [Suspect(len(store.documents) - 1, 1.0)]


def test_turns_of_conversations_are_no_finding(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Seven."}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n", "utf-8")
    tokenizer = train_bpe(["How many? Seven."] * 9, 270, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    (tmp_path / "tokenizer.json").write_text(tokenizer, "utf-8")
    store = packline.sft(
        tmp_path / "chats.jsonl",
        tmp_path / "tokenizer.json",
        out=tmp_path / "s",
        chat_template="chatml",
        eod="<|endoftext|>",
        workers=0,
    )
    analysis = analyze(store, workers=0)
    counts = {one.text: one.count - analysis.boundary.get(one.id, 0) for one in analysis.special}
    assert counts == {"<|endoftext|>": 0, "<|im_start|>": 2, "<|im_end|>": 2}
    assert not [line for line in analysis_warnings(analysis) if "special token" in line]


def test_prices_are_those_of_packing(tmp_path: Path) -> None:
    lengths = [5, 9, 3, 3, 8, 30, 1]
    store = make_store(tmp_path / "s", [lengths, [4, 4]], splits=["train", "val"])
    analysis = analyze(store, seq_len=[10, 4], workers=0)
    assert [price.seq_len for price in analysis.prices] == [10] * 5 + [4] * 5
    for price in analysis.prices:
        assert price.counts == prices(lengths, price.seq_len)[price.name]
    (one,) = analyze(store, seq_len=10, packing="concat", workers=0).prices
    assert one.name == "concat"
    with pytest.raises(RecipeError):
        analyze(store, seq_len=1, workers=0)


def test_the_page_shows_the_figures_and_warns(tmp_path: Path) -> None:
    bodies = [[5] * 200, [1, 2, 3], [1, 2, 3], [4]]
    store = store_of(tmp_path / "s", [bodies, [[1, 2, 3]]], splits=["train", "val"])
    page = analysis_page(analyze(store, seq_len=8, workers=0))
    text = text_of(page, 120)
    assert any("1 text in several splits" in line for line in page.warnings)
    assert any(line.startswith("40.0% of the documents are duplicates") for line in page.warnings)
    for shown in (
        "documents            5",
        "215",
        "w5",
        "repetition",
        "200 tokens",
        "1, 2, 4",
        "0000.jsonl at 100",
    ):
        assert shown in text, shown


@pytest.mark.parametrize("format", ["megatron", "llmc"])
def test_another_projects_files_have_the_figures_of_the_store(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], documents: list[str], format: str
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [*documents[:200], *documents[:5]])
    store = packline.build(path, tokenizer_json, out=tmp_path / "s", workers=0, eod=EOD)
    packline.export(store, to=format, out=tmp_path / "out", workers=0)
    options = {"edges": "bos"} if format == "llmc" else {}
    found = analyze_foreign(
        tmp_path / "out", tokenizer=str(tokenizer_json), format=format, eod=EOD, options=options
    )
    right = analyze(store, workers=0)
    assert right.duplicates.groups == 5
    for name in ("documents", "tokens", "text_bytes", "text_tokens", "lengths", "special", "boundary"):
        assert getattr(found, name) == getattr(right, name), name
    for name in ("most_used", "never_used", "rates", "suspicious", "duplicates"):
        assert getattr(found, name) == getattr(right, name), name
    assert (found.format, right.format) == (format, "store")


def test_another_projects_file_of_another_tokenizer_is_refused(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.array([5, 6, 60_000, 0], "<u2").tobytes())
    with pytest.raises(CorruptStore, match=r"document 0, token 2: an id outside the vocabulary: .* 60,000"):
        analyze_foreign(tmp_path / "train.bin", tokenizer=str(tokenizer_json), format="nanogpt", eod=EOD)
