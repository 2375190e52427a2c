"""Random tokenizers of every kind, and whether each fast engine gives the reference's ids on hostile text.

    python -m tests.encoders.tokenizer_fuzzer --seconds 3600 --seed 1 --report report.json

A variant is a tokenizer.json made from a seed: a small model, and for each part of the file (normalizer,
pre-tokenizer, settings of the model, merges, added tokens and their flags, post-processor, decoder,
truncation, padding, dropout) a random choice, plain or odd. Each engine encodes hostile text with it, whether
or not its table of features (`packline.encoders.engines`) allows the tokenizer. A difference inside the
table is an error in the table; the counts outside it say what could be added. The command runs each variant
in a child process, because a library may crash, and prints counts by feature.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import tokenizers
from tests.encoders.fuzzed_files import make_contents
from tests.encoders.hostile_texts import hostile_texts

from packline.encoders import EngineName
from packline.encoders.engines import ENGINES, load_engine
from packline.encoders.features import SUPPORTED, Encodable, tokenizer_features, unsupported
from packline.encoders.tokenizer import _convert, refusals
from packline.errors import TokenizerError
from packline.sources.batch import Texts

Verdict = Literal["refused", "failed", "equal", "differs"]
FAST: tuple[EngineName, ...] = tuple(SUPPORTED)
SECONDS_A_VARIANT = 60


class Outcome(msgspec.Struct):
    """Result for one variant."""

    seed: int
    features: list[str]
    verdicts: dict[str, Verdict]
    allowed: list[str]
    """Engines whose table has all features."""
    details: dict[str, str]


def json_of(contents: dict[str, Any]) -> str:
    """The tokenizer.json that packline gives to engines, special tokens included."""
    return _convert(json.dumps(contents).encode(), None, "variant").json


def reference_of(contents: dict[str, Any]) -> tokenizers.Tokenizer:
    """The reference on the file as it is, without what would cut documents or make ids random."""
    reference = tokenizers.Tokenizer.from_str(json.dumps(contents))
    reference.no_truncation()
    reference.no_padding()
    if hasattr(reference.model, "dropout"):
        reference.model.dropout = None
    return reference


def misdeclared(contents: dict[str, Any], reference: tokenizers.Tokenizer) -> bool:
    """True if the file gives added tokens other ids than the reference."""
    found = {token.content: number for number, token in reference.get_added_tokens_decoder().items()}
    return any(
        found.get(token["content"]) != token["id"] for token in contents["added_tokens"] if token["content"]
    )


def try_variant(seed: int, size: int = 30_000) -> Outcome | None:
    """Compare the engines with the reference on one variant; None where the reference cannot do it at all."""
    contents = make_contents(Random(seed))
    words = [token["content"] for token in contents["added_tokens"]]
    texts = hostile_texts(Random(seed + 1), words, size)
    try:
        with refusals("the reference"):
            reference = reference_of(contents)
            expected = [found.ids for found in reference.encode_batch_fast(texts, add_special_tokens=False)]
    except TokenizerError:
        return None
    if misdeclared(contents, reference):
        return None
    whole = json_of(contents)
    features = tokenizer_features(whole)
    outcome = Outcome(seed, list(features), {}, [], {})
    for name in FAST:
        if unsupported(name, features) is None:
            outcome.allowed.append(name)
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


class Report(msgspec.Struct):
    """Counts over variants."""

    variants: int = 0
    unreadable: int = 0
    """Refused by the reference or too much for it, or with ids that the reference gives otherwise."""
    crashed: list[int] = msgspec.field(default_factory=list)
    """Seeds whose process ended or took too long."""
    by_engine: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    by_feature: dict[str, dict[str, Counter[str]]] = msgspec.field(default_factory=dict)
    """Feature, engine: verdicts, and `used` where the engine's table allows the variant."""
    only: dict[str, dict[str, Counter[str]]] = msgspec.field(default_factory=dict)
    """Likewise of variants in which this is the one feature that the engine's table lacks."""
    wrong: list[Outcome] = msgspec.field(default_factory=list)
    """Differences inside the table: there must be none."""

    def add(self, outcome: Outcome | None) -> None:
        """Count a variant."""
        if outcome is None:
            self.unreadable += 1
            return
        self.variants += 1
        for name, verdict in outcome.verdicts.items():
            used = name in outcome.allowed
            words = [verdict, "used"] if used else [verdict]
            self.by_engine.setdefault(name, Counter()).update(words)
            lacking = set(outcome.features) - SUPPORTED[name]  # type: ignore[index]
            for feature in outcome.features:
                self.by_feature.setdefault(feature, {}).setdefault(name, Counter()).update(words)
            if len(lacking) == 1:
                self.only.setdefault(lacking.pop(), {}).setdefault(name, Counter()).update(words)
            if used and verdict in ("differs", "failed"):
                self.wrong.append(outcome)

    def lines(self) -> list[str]:
        """The report as text."""
        lines = [
            f"{self.variants:,} variants, {self.unreadable:,} not read alike, crashed {self.crashed[:9]}"
        ]
        lines += [f"  {name}: {dict(counts)}" for name, counts in self.by_engine.items()]
        for title, table in (("by feature", self.by_feature), ("the one feature that lacks", self.only)):
            lines.append(title)
            for feature, engines in sorted(table.items()):
                for name, counts in engines.items():
                    shown = ", ".join(f"{word} {counts[word]}" for word in sorted(counts))
                    lines.append(f"  {feature[:90]:90} {name:9} {shown}")
        lines.append(f"differences inside the tables: {len(self.wrong)}")
        lines += [f"  {one.seed}: {one.details} {one.features}" for one in self.wrong[:20]]
        return lines


def _in_a_child(seed: int, size: int) -> Outcome | Literal["crashed"] | None:
    """Try a variant where a crash does no harm."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # panics are told on stderr
        found = try_variant(seed, size)
        with os.fdopen(write, "wb") as file:
            file.write(msgspec.json.encode(found))
        os._exit(0)
    os.close(write)
    data, deadline = b"", time.monotonic() + SECONDS_A_VARIANT
    while select.select([read], [], [], max(deadline - time.monotonic(), 0))[0]:
        more = os.read(read, 1 << 16)
        if not more:
            break
        data += more
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    os.waitpid(child, 0)
    try:
        return msgspec.json.decode(data, type=Outcome | None)
    except msgspec.DecodeError:
        return "crashed"


def main() -> None:
    """Try variants for a while and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first variant")
    parser.add_argument("--size", type=int, default=30_000, help="characters of text a variant")
    parser.add_argument("--report", type=Path, help="also write counts as JSON")
    options = parser.parse_args()
    report, seed, started = Report(), options.seed, time.monotonic()
    import awkward  # noqa: F401  once, for all children
    import fastokens._native  # noqa: F401
    import gigatoken  # noqa: F401

    for number in range(50):
        make_contents(Random(number))  # trains the small models
    told = started
    while time.monotonic() - started < options.seconds:
        found = _in_a_child(seed, options.size)
        if found == "crashed":
            report.crashed.append(seed)
        else:
            report.add(found)
        seed += 1
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{told - started:.0f} s: {report.lines()[0]}; wrong {len(report.wrong)}", flush=True)
            if options.report:
                options.report.write_bytes(msgspec.json.encode(report))
    if options.report:
        options.report.write_bytes(msgspec.json.encode(report))
    print("\n".join(report.lines()))
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
