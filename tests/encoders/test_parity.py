"""Added tokens: ids that the reference gives, and probes that show an engine that reads them otherwise."""

from __future__ import annotations

import json
import time

import pytest
from tests.encoders.fuzzed_files import GPT2, added, contents_of

from packline.encoders.engines import ENGINES
from packline.encoders.parity import Reference, probes, try_engines
from packline.encoders.tokenizer import read_added_tokens
from packline.errors import TokenizerError


def with_ids(*tokens: tuple[str, int], **flags: bool) -> str:
    """A byte-level tokenizer of 900 tokens, with added tokens whose ids count from there."""
    contents = contents_of("bytes", pre_tokenizer=GPT2, tokens=[])
    contents["added_tokens"] = [added(content, 900 + number, **flags) for content, number in tokens]
    return json.dumps(contents)


def test_ids_that_the_reference_gives_otherwise_are_refused() -> None:
    letter = json.loads(with_ids())["model"]["vocab"]["t"]
    Reference(with_ids(("<a>", 0), ("t", letter - 900), ("<b>", 1)))
    for tokens in ([("<a>", 1)], [("<a>", 0), ("<b>", 5)], [("<a>", -900)], [("<a>", 0), ("<a>", 1)]):
        with pytest.raises(TokenizerError, match="added tokens have other ids than the"):
            Reference(with_ids(*tokens))
    with pytest.raises(TokenizerError, match="'t' is 901 in the file and"):
        Reference(with_ids(("<a>", 0), ("t", 1)))


@pytest.mark.parametrize(
    ("whole", "also"),
    [
        (with_ids(("qzx", 0), single_word=True), with_ids(("qzx", 0))),
        (with_ids(("qzx", 0), rstrip=True), with_ids(("qzx", 0))),
        (with_ids(("qzx", 0), lstrip=True), with_ids(("qzx", 0))),
        (with_ids(("foo", 0), ("foobar", 1)), with_ids(("foobar", 0), ("foo", 1))),
        (with_ids(*((f"<r{number}>", number) for number in range(900))), with_ids()),
    ],
)
def test_probes_show_an_engine_that_reads_added_tokens_otherwise(whole: str, also: str) -> None:
    wrong = ENGINES["gigatoken"](also)
    right = ENGINES["tokenizers"](whole)
    for engine, exact in ((wrong, False), (right, True)):
        engine.name = "gigatoken"
        (report,) = try_engines({"gigatoken": engine}, Reference(whole), ["x"])
        assert report.exact == exact


def test_every_added_token_is_probed_and_thousands_cost_little() -> None:
    contents = {"added_tokens": [added(f"<|reserved_{number}|>", number) for number in range(5000)]}
    started = time.process_time()
    texts = probes(json.dumps(contents))
    assert time.process_time() - started < 2
    whole = "\n".join(texts)
    assert all(token.content in whole for token in read_added_tokens(json.dumps(contents)))
    assert len(whole) < 200_000


def test_pairs_of_tokens_that_overlap_are_probed() -> None:
    tokens = [added(one, number) for number, one in enumerate(("foo", "foobar", "bar", "barn"))]
    found = probes(json.dumps({"added_tokens": tokens}))
    assert {"foobarn", "foofoobar", "foobarfoo", "bar barn", "xfoo"[1:], "afoob", "Foo"} <= set(found)
