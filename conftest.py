"""What pytest leaves out where an optional library is missing, order, bytecode, signals as at a terminal."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from packline.errors import PacklineError

# They need torch; importing packline.torch elsewhere is an error on purpose.
OF_TORCH = ["src/packline/torch", "tests/torch/transformer.py", "tests/vocabulary/test_nanochat_folder.py"]
collect_ignore = [] if importlib.util.find_spec("torch") else OF_TORCH

# Object stores on loopback, started by the first test that asks for one.
pytest_plugins = ["tests.storage.servers"]

# A shell starts background jobs deaf to Ctrl-C, and children inherit it: tests that interrupt would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes: where Python may not keep bytecode, each would compile packline again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# torch would take a thread for each core in each process: on tiny models they wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without tests that only `make test-long` runs; files with slow tests first where processes share them.

    So all processes end at the same time. The tests of a file stay together, because a process makes what
    they share only once.
    """
    if not os.environ.get("PACKLINE_ALL"):
        items[:] = [
            item for item in items if not any(m.kwargs.get("only") for m in item.iter_markers("long"))
        ]
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`: three for two cores, since tests also wait for disks, servers and processes."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


@pytest.fixture(autouse=True)
def _no_notes_in_doctests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints of errors, which `doctest` would take for the message that an example expects."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.setattr(PacklineError, "add_note", lambda error, note: None)
