"""Recipes that a build accepts; their inputs do not exist."""

from __future__ import annotations

from hypothesis import strategies as st

from packline.recipe import Recipe, Source


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """A recipe that `packline.build` accepts."""
    names = draw(st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=3, unique=True))
    sources = tuple(
        Source(
            inputs=(f"{name}/*.jsonl",),
            name=name,
            label=draw(st.none() | st.sampled_from(["web", "code"])),
            text=draw(st.none() | st.sampled_from(["text", "body.text"])),
            min_chars=draw(st.integers(0, 100)),
        )
        for name in names
    )
    return Recipe(
        sources=sources,
        tokenizer="tokenizer.json",
        eod=draw(st.none() | st.just("<|endoftext|>") | st.integers(0, 1000)),
        val_fraction=draw(st.floats(0, 0.5)),
        seed=draw(st.integers(0, 2**63 - 1)),
        limit_documents=draw(st.none() | st.integers(1, 10**9)),
    )
