"""Special-token strings: counted in each text as if it stood alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from packline.encoders.special import SpecialTokenCounter
from packline.sources.texts import Texts

SPECIAL = {"<s>": 0, "x<s>y": 1, "<s><s>": 2, "é": 3, "|": 4}


def count_alone(text: str) -> int:
    """From the left, the longest that begins there; then behind it."""
    found = place = 0
    while place < len(text):
        longest = max((len(token) for token in SPECIAL if text.startswith(token, place)), default=0)
        found += longest > 0
        place += longest or 1
    return found


@given(st.lists(st.text(st.sampled_from("<s>xyé|è"), max_size=9), max_size=8))
@example(["x", "<s>", "y"])
@example(["<s", ">", "<s>", ""])
@example(["", "x<s>", "y<s>", "<s>"])
@example(["a\u00e8", "", "|"])
def test_each_text_is_counted_as_if_alone(texts: list[str]) -> None:
    counter = SpecialTokenCounter(SPECIAL)
    assert counter.count(Texts.of(texts)).tolist() == [count_alone(text) for text in texts]
    inside = Texts(Texts.of(["<s>", *texts, "<s>"]).array[1:-1])
    assert counter.count(inside).tolist() == [count_alone(text) for text in texts]


def test_without_special_tokens_there_are_none() -> None:
    assert SpecialTokenCounter({}).count(Texts.of(["<s>", ""])).tolist() == [0, 0]
