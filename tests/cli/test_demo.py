"""The demo: a store of this Python's own library, verified, in a folder that nothing else is lost from."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.command import result, run

import packline
from packline.cli.demo import prepare_folder
from packline.errors import StoreError


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the library in the place of the whole, a module in another encoding among it."""
    whole, folder = Path(sysconfig.get_paths()["stdlib"]), tmp_path / "library"
    (folder / "json").mkdir(parents=True)
    for name in ("bisect.py", *(path.name for path in sorted(whole.glob("[ab]*.py"))), "json/decoder.py"):
        shutil.copy(whole / name, folder / name)
    (folder / "site-packages").mkdir()
    shutil.copy(whole / "bisect.py", folder / "site-packages" / "other.py")
    (folder / "odd.py").write_bytes("# naïve\n".encode("latin-1"))
    paths = SimpleNamespace(get_paths=lambda: {"stdlib": str(folder)})
    monkeypatch.setattr(sys.modules["packline.cli.demo"], "sysconfig", paths)
    monkeypatch.setattr(sys.modules["packline.cli.demo"], "VOCAB_SIZE", 700)


@pytest.mark.usefixtures("small_library")
def test_it_builds_verifies_and_shows_and_may_run_again(tmp_path: Path) -> None:
    done = run("demo", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "all is well" in done.stdout and "bisect.py" in done.stdout
    store = packline.open(tmp_path / "here" / "store")
    files = [store.provenance(number).file for number in range(len(store.documents))]
    text = (tmp_path / "library" / "bisect.py").read_text("utf-8")
    assert store.text(files.index("bisect.py")) == text and "decoder.py" in str(files)
    assert "other.py" not in str(files) and list(store.manifest.sources) == ["code", "docs"]
    again = run("demo", "--out", "here", "--json", cwd=tmp_path)
    facts = result(again)
    assert (again.returncode, again.stderr, len(again.stdout.splitlines())) == (0, "", 1)
    assert facts["verify"]["ok"] and facts["verify"]["deep"]["documents"] > 50
    assert facts["documents"] == len(store.documents)
    assert facts["bad_records"] == 1


def test_it_touches_no_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.txt").write_text("ten years of work", "utf-8")
    done = run("demo", "--out", tmp_path, "--json")
    assert (done.returncode, result(done)["error"]["kind"]) == (1, "StoreError")
    assert [path.name for path in tmp_path.rglob("*")] == ["store", "thesis.txt"]
    with pytest.raises(StoreError, match="is a file"):
        prepare_folder(tmp_path / "store" / "thesis.txt")
