"""Errors: the tree on the page is the tree of the classes."""

from __future__ import annotations

import builtins
import re

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


def test_the_drawn_tree_is_the_tree_of_the_classes() -> None:
    known = {kind.__name__: kind for kind in classes()}
    drawn: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+)(?: +\((\w+)\))?", line)
        if match and match[2] in known:
            depth = len(match[1]) // 4
            above = [*above[:depth], match[2]]
            drawn[match[2]] = (above[depth - 1] if depth else "", match[3] or "")
    assert set(drawn) == set(known)
    for name, (parent, builtin) in drawn.items():
        assert [base.__name__ for base in known[name].__bases__ if issubclass(base, PacklineError)] == (
            [parent] if parent else []
        )
        assert not builtin or issubclass(known[name], getattr(builtins, builtin))


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
