"""Errors on their way between processes: the same class, message and hint arrive, and none is lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline import errors
from packline.errors import PacklineError, WorkerDied
from packline.jobs.events import Failed, as_failed, revive

LINE = st.text(st.characters(codec="utf-8"), max_size=20)
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PacklineError)]


def sent(error: BaseException, **options: str) -> PacklineError:
    """The error at the other end of a pipe."""
    return revive(msgspec.msgpack.decode(msgspec.msgpack.encode(as_failed(error, **options)), type=Failed))


@given(st.sampled_from(KINDS), LINE, LINE)
def test_an_error_arrives_as_it_was_raised(kind: type[PacklineError], message: str, hint: str) -> None:
    found = sent(kind(message, hint=hint))
    assert (type(found), found.message, found.hint, str(found)) == (kind, message, hint, message)


@given(LINE, LINE)
def test_an_error_that_is_not_known_here_is_still_an_error(message: str, hint: str) -> None:
    found = revive(Failed("Unheard", message, hint))
    assert (type(found), found.message, found.hint) == (PacklineError, message, hint)


def test_an_unexpected_error_names_its_kind_and_its_line() -> None:
    def look_up(nothing: dict[str, int]) -> int:
        return nothing["key"]

    with pytest.raises(KeyError) as caught:
        look_up({})
    line = caught.traceback[-1].lineno + 1
    found = sent(caught.value)
    assert type(found) is PacklineError
    assert found.message == f"KeyError: 'key' (test_events.py:{line})"
    assert sent(ValueError("no traceback")).message == "ValueError: no traceback"


def test_memory_that_ran_out_is_a_dead_worker_with_a_remedy() -> None:
    found = sent(MemoryError())
    assert type(found) is WorkerDied and found.hint == "lower --workers or raise --memory"
