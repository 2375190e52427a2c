"""The sample of a dry run: ranges within the file and the budget, fractions and sizes as by hand."""

from __future__ import annotations

import gzip
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs import dry_run
from packline.jobs.text_build import load_encoder, prepare
from packline.recipe import Recipe, RunOptions, Source
from packline.sources.files import InputFile
from packline.store.ledger import Ledger

SOURCE = Source(inputs=("a",))
KB = 1 << 10


@given(st.integers(1, 1 << 34), st.integers(dry_run.LEAST_RANGE, 16 << 20))
def test_ranges_are_apart_within_the_file_and_the_budget(size: int, budget: int) -> None:
    file = InputFile(0, 0, "a.jsonl", "a.jsonl", size, "", "jsonl", "")
    spans = list(dry_run._spans(file, SOURCE, budget))
    assert spans[0].start == 0
    places = [place for span in spans for place in (span.start, span.stop)]
    assert places == sorted(places) and places[-1] <= size
    read = sum(span.stop - span.start for span in spans)
    if size > budget:
        assert budget - len(spans) < read <= budget
        assert 2 <= len(spans) <= dry_run.MOST_RANGES and spans[-1].stop > size // 2
    else:
        assert read == size
    for one in (
        InputFile(0, 0, "a", "a", size, "", "jsonl", "gzip"),
        InputFile(0, 0, "a", "a", size, "", "json", ""),
    ):
        (span,) = dry_run._spans(one, SOURCE, budget)
        assert (span.start, span.stop) == (0, size), "no reader can begin inside"


@given(st.integers(0, 1000), st.integers(0, 30), st.integers(0, 50), st.integers(0, 50))
def test_a_bad_file_counts_as_one_record(records: int, bad_files: int, good: int, bad: int) -> None:
    ledger = Ledger(documents_in=good + bad, documents=good, rejected={"malformed_json": bad})
    sample = dry_run.Sample([], bad_files, ledger, whole=np.array([records, 0, 0, 0], float))
    share = Fraction(bad, good + bad) if good + bad else Fraction(0)
    total = records + bad_files
    assert sample.bad_fraction == pytest.approx(float((records * share + bad_files) / total) if total else 0)
    reasons = {"invalid_utf8": bad_files, "malformed_json": bad}
    assert sample.reject_reasons == {reason: count for reason, count in reasons.items() if count}


@given(st.binary(min_size=1, max_size=200), st.integers(1, 2000), st.sampled_from(["gzip", "zstd"]))
def test_the_expansion_of_a_small_file_is_exact(data: bytes, times: int, kind: str) -> None:
    text = data * times
    packed = gzip.compress(text) if kind == "gzip" else zstandard.compress(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(packed)
        file = InputFile(0, 0, "a", str(path), len(packed), "", "jsonl", kind)  # type: ignore[arg-type]
        assert dry_run._expansion(file) == len(text) / len(packed)


def test_a_file_that_cannot_be_read_adds_nothing_and_the_others_count_for_it(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text("one\ntwo\n\nthree\n")
    source = Source(inputs=(str(tmp_path),), documents="line")
    recipe = Recipe(sources=(source,), tokenizer=str(tokenizer_json))
    work = prepare(recipe, RunOptions(engine="tokenizers"))
    encoder = load_encoder(work)
    (whole,) = dry_run.run_samples(work, encoder)
    (tmp_path / "b.txt").unlink()
    (sample,) = dry_run.run_samples(work, encoder)
    assert (whole.whole[:2].tolist(), whole.problems) == ([16, 12], [])
    assert sample.whole[:2].tolist() == [16, 12], "the missing file is taken to be like the others"
    assert sample.ledger.documents == 9
    (problem,) = sample.problems
    assert problem.startswith(f"{tmp_path / 'b.txt'}: ")
