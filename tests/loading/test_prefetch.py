"""The thread ahead: order, errors in their place, no thread left behind, forks that do not hang."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.loading.read_ahead import make_ahead

LOADING = """
from packline.loading.read_ahead import make_ahead
batches = make_ahead(lambda step: step, 0, 100, ahead=2)
next(batches)
time.sleep(0.01)
print(next(batches), end="")  # made by the thread
"""


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "packline-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    assert threads() == []
    yield
    gc.collect()
    assert threads() == []


@settings(max_examples=25)
@given(st.integers(0, 5), st.integers(0, 20), st.integers(0, 6))
def test_results_come_in_order(start: int, count: int, ahead: int) -> None:
    made = make_ahead(lambda number: number * 3, start, start + count, ahead=ahead)
    assert list(made) == [number * 3 for number in range(start, start + count)]
    assert threads() == []


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_more_is_made_ahead_than_was_asked_for(ahead: int) -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    taken = make_ahead(make, 0, 100, ahead=ahead)
    for number in range(5):
        assert next(taken) == number
        deadline = time.monotonic() + 60
        while len(made) < number + 1 + ahead and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert made == list(range(number + 1 + ahead))
    taken.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ahead", [0, 1, 50])
@pytest.mark.parametrize("error", [ValueError("damaged"), KeyboardInterrupt()])
def test_an_error_comes_out_in_the_place_of_its_result(ahead: int, error: BaseException) -> None:
    def make(number: int) -> int:
        if number == 7:
            raise error
        return number

    made = make_ahead(make, 0, 20, ahead=ahead)
    assert [next(made) for _ in range(7)] == list(range(7))
    with pytest.raises(type(error)) as caught:
        next(made)
    assert caught.value is error
    with pytest.raises(StopIteration):
        next(made)


def test_the_thread_ends_with_the_iterator() -> None:
    made = make_ahead(lambda number: number, 0, 1000, ahead=2)
    assert threads() == []  # none before the first result is wanted
    assert next(made) == 0
    assert len(threads()) == 1
    made.close()  # type: ignore[attr-defined]
    assert threads() == []
    for number in make_ahead(lambda number: number, 0, 1000, ahead=2):
        if number == 3:
            break
    del number
    gc.collect()
    assert threads() == []


def test_the_thread_works_for_a_caller_who_is_away_and_not_for_one_who_waits() -> None:
    made = make_ahead(lambda number: (number, threading.current_thread()), 0, 20_000, ahead=2)
    here = threading.current_thread()

    def makers(count: int, seconds: float) -> list[threading.Thread]:
        found = []
        for _ in range(count):
            found.append(next(made)[1])
            time.sleep(seconds)
        return found

    assert next(made) == (0, here)
    time.sleep(0.002)
    assert here not in makers(10, 0.002)
    waiting = [next(made) for _ in range(15_000)]
    assert [number for number, _ in waiting] == list(range(11, 15_011))
    assert here in {maker for _, maker in waiting}
    time.sleep(0.002)
    next(made)  # nobody was asked for it before it was wanted
    time.sleep(0.002)
    assert here not in makers(10, 0.002)
    made.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("taken", [1, 3, 20])
def test_a_forked_child_makes_the_rest_itself(taken: int) -> None:
    made = make_ahead(lambda number: number * number, 0, 20, ahead=4)
    before = [next(made) for _ in range(taken)]
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads: the case that is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        wrong = 1
        try:
            rest = list(made)
            wrong = int(before + rest != [number * number for number in range(20)])
        finally:
            os._exit(wrong)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the forked child hangs")
    assert os.waitstatus_to_exitcode(done[1]) == 0
    assert before + list(made) == [number * number for number in range(20)]  # and the parent goes on


def test_a_program_ends_without_a_word() -> None:
    """If something keeps `__main__`, its objects go after the names of the modules that they use."""
    keep = "ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules[__name__]))"
    program = f"import ctypes, sys, time\n{LOADING}\n{keep}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1", "")
