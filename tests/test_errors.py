"""Errors are shown as their messages, and names are suggested for what is misspelt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline import errors
from packline.errors import PacklineError, did_you_mean

LINE = st.text(st.characters(codec="utf-8"), max_size=20)
WORDS = ["title", "body", "content", "metadata"]


def classes() -> list[type[PacklineError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, PacklineError)]


@given(st.sampled_from(classes()), LINE, LINE)
def test_an_error_is_shown_as_its_message_whatever_it_is_besides(
    kind: type[PacklineError], message: str, hint: str
) -> None:
    error = kind(message, hint=hint)
    assert (str(error), error.message, error.hint) == (message, message, hint)
    for base in kind.__mro__[:-2]:
        with pytest.raises(base):
            raise error


@given(st.sampled_from(WORDS), st.data())
def test_a_word_with_one_letter_less_is_known(word: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(word) - 1))
    assert did_you_mean(word[:place] + word[place + 1 :], iter(WORDS)) == f"did you mean {word!r}? "
    assert did_you_mean(word.upper(), WORDS) == f"did you mean {word!r}? "
    assert did_you_mean("9" * len(word), WORDS) == did_you_mean(word, []) == ""
