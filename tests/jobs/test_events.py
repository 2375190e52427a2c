"""Errors on their way between processes: the same class, message and hint arrive, and none is lost."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline import errors
from packline.errors import PacklineError, WorkerDied
from packline.jobs.executors import sendable

LINE = st.text(st.characters(codec="utf-8"), max_size=20)
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PacklineError)]


def sent(error: BaseException) -> PacklineError:
    """The error at the other end of a pipe."""
    found: PacklineError = ForkingPickler.loads(ForkingPickler.dumps(sendable(error)))
    return found


@given(st.sampled_from(KINDS), LINE, LINE)
def test_an_error_arrives_as_it_was_raised(kind: type[PacklineError], message: str, hint: str) -> None:
    found = sent(kind(message, hint=hint))
    assert (type(found), found.message, found.hint, str(found)) == (kind, message, hint, message)
    assert getattr(found, "__notes__", []) == ([f"hint: {hint}"] if hint else [])


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
