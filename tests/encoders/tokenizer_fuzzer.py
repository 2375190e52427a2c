"""Random tokenizers of every kind, and whether each fast engine gives the reference's ids on hostile text.

    python -m tests.encoders.tokenizer_fuzzer --seconds 3600 --seed 1

A variant is a tokenizer.json made from a seed: a small model, and for each part of the file (normalizer,
pre-tokenizer, settings of the model, merges, added tokens and their flags, post-processor, decoder,
truncation, padding, dropout) a random choice, plain or odd. Each engine encodes hostile text with it, whether
or not its table of features (`packline.encoders.engines`) allows the tokenizer. A difference inside the
table is an error in the table; the counts outside it say what could be added. The command runs variants in a
child process, because a library may crash.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from random import Random
from typing import Any, Literal, NamedTuple

import tokenizers
from tests.encoders.fuzzed_files import make_contents
from tests.encoders.hostile_texts import hostile_texts

from packline.encoders import EngineName
from packline.encoders.engines import (
    ENGINES,
    SUPPORTED,
    Encodable,
    load_engine,
    tokenizer_features,
    unsupported,
)
from packline.encoders.parity import check_ids
from packline.encoders.tokenizer import load_tokenizer, refusals
from packline.errors import TokenizerError
from packline.sources.batch import Texts

Verdict = Literal["refused", "failed", "equal", "differs"]
FAST: tuple[EngineName, ...] = tuple(SUPPORTED)
SECONDS_A_VARIANT = 60


class Outcome(NamedTuple):
    """Result for one variant."""

    seed: int
    features: tuple[str, ...]
    verdicts: dict[EngineName, Verdict]
    details: dict[EngineName, str]


def reference_of(contents: dict[str, Any]) -> tokenizers.Tokenizer:
    """The reference on the file as it is, without what would cut documents or make ids random."""
    reference = tokenizers.Tokenizer.from_str(json.dumps(contents))
    reference.no_truncation()
    reference.no_padding()
    if hasattr(reference.model, "dropout"):
        reference.model.dropout = None
    return reference


def try_variant(seed: int, size: int = 30_000) -> Outcome | None:
    """Compare the engines with the reference on one variant; None where the reference cannot do it at all."""
    contents = make_contents(Random(seed))
    words = [token["content"] for token in contents["added_tokens"]]
    texts = hostile_texts(Random(seed + 1), words, size)
    try:
        with refusals("the reference"):
            reference = reference_of(contents)
            check_ids(json.dumps(contents), reference)
            expected = [found.ids for found in reference.encode_batch_fast(texts, add_special_tokens=False)]
    except TokenizerError:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(contents))
        file.flush()
        whole = load_tokenizer(file.name).json
    outcome = Outcome(seed, tokenizer_features(whole), {}, {})
    for name in FAST:
        verdict, detail = _verdict(name, whole, texts, expected)
        outcome.verdicts[name] = verdict
        if detail:
            outcome.details[name] = detail
    return outcome


def _verdict(
    name: EngineName, whole: str, texts: list[str], expected: list[list[int]]
) -> tuple[Verdict, str]:
    try:
        with refusals("refused"):
            encodable = Encodable.of(whole)
            known = unsupported(name, encodable.features) is None
            engine = load_engine(name, encodable) if known else ENGINES[name](whole)
    except TokenizerError as error:
        return "refused", str(error)
    try:
        with refusals("failed"):
            found = engine.encode(Texts.of(texts))
    except TokenizerError as error:
        return "failed", str(error)
    for place, right in enumerate(expected):
        ids = found[place].tolist()
        if ids != right:
            at = next((i for i, (a, b) in enumerate(zip(ids, right, strict=False)) if a != b), -1)
            return "differs", f"text {texts[place][:200]!r} token {at}: {ids[at:][:5]} for {right[at:][:5]}"
    return "equal", ""


class Report:
    """Counts over variants."""

    def __init__(self) -> None:
        self.variants = 0
        self.unreadable = 0  # by the reference, or with ids that it gives otherwise
        self.crashed: list[int] = []
        self.by_engine: Counter[tuple[str, str]] = Counter()
        """Verdicts by engine, and `used` where its table allows the variant."""
        self.lacking: Counter[tuple[str, str, str]] = Counter()
        """Verdicts by feature and engine, of variants in which it is the one that the table lacks."""
        self.wrong: list[Outcome] = []
        """Differences inside the table: there must be none."""

    def add(self, outcome: Outcome | None) -> None:
        """Count a variant."""
        if outcome is None:
            self.unreadable += 1
            return
        self.variants += 1
        for name, verdict in outcome.verdicts.items():
            self.by_engine[name, verdict] += 1
            lacking = set(outcome.features) - SUPPORTED[name]
            self.by_engine[name, "used"] += not lacking
            if len(lacking) == 1:
                self.lacking[next(iter(lacking)), name, verdict] += 1
            if not lacking and verdict in ("differs", "failed"):
                self.wrong.append(outcome)

    def lines(self) -> list[str]:
        """The report as text."""
        return [
            f"{self.variants:,} variants, {self.unreadable:,} not read alike, crashed {self.crashed[:9]}",
            *(f"  {name}: {word} {count}" for (name, word), count in sorted(self.by_engine.items())),
            "the one feature that lacks",
            *(f"  {feature[:90]:90} {name:9} {word} {count}"
              for (feature, name, word), count in sorted(self.lacking.items())),
            f"differences inside the tables: {len(self.wrong)}",
            *(f"  {one.seed}: {one.details} {one.features}" for one in self.wrong[:20]),
        ]  # fmt: skip


def main() -> None:
    """Try variants for a while and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first variant")
    parser.add_argument("--size", type=int, default=30_000, help="characters of text a variant")
    options = parser.parse_args()
    report, seed, end = Report(), options.seed, time.monotonic() + options.seconds
    pool = multiprocessing.Pool(1)
    while time.monotonic() < end:
        try:
            report.add(pool.apply_async(try_variant, (seed, options.size)).get(SECONDS_A_VARIANT))
        except multiprocessing.TimeoutError:  # a library has ended the process, or does not return
            report.crashed.append(seed)
            pool.terminate()
            pool = multiprocessing.Pool(1)
        seed += 1
    pool.terminate()
    print("\n".join(report.lines()))
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
