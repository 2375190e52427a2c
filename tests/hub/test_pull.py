"""A pull gives what was pushed, checked, at a commit; whatever goes wrong is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import result, run
from tests.hub.loopback import LoopbackHub
from tests.hub.repositories import git_file
from tests.hub.test_push import NAME, PLACE, content

import packline
from packline.errors import CorruptStore, HubError, StoreError
from packline.hub.pull import pull, pulled_from
from packline.hub.push import push
from packline.store.manifest import MANIFEST
from packline.testing import make_store


def test_a_pulled_store_is_the_pushed_one(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    pushed = push(store, PLACE)
    hub.page = 3  # of a listing; the client asks for the next ones
    pulled = pull(PLACE, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(store)
    assert pulled.revision == pushed.revision and pulled.kind == "store"
    found = pulled_from(tmp_path / "copy")
    assert found is not None and (found.repository, found.commit) == (PLACE, pushed.revision)
    assert packline.open(tmp_path / "copy").verify().ok
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_second_pull_does_nothing(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    push(store, PLACE)
    pull(PLACE, tmp_path / "copy")
    hub.requests.clear()
    assert pull(PLACE, tmp_path / "copy").nothing_to_do
    assert hub.count("resolve") == 0
    with pytest.raises(StoreError, match="was not pulled from"):
        pull(PLACE, store)
    push(make_store(tmp_path / "other", [[2, 2]]).path, PLACE)
    with pytest.raises(StoreError, match="another commit"):
        pull(PLACE, tmp_path / "copy")


def test_an_interrupted_pull_continues(
    hub: LoopbackHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, PLACE)
    out = tmp_path / "copy"
    code = f"import sys; from packline.hub.pull import pull; pull({PLACE!r}, sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], env=dict(os.environ))
    hub.fail("^GET /lfs/", lambda: process.send_signal(signal.SIGKILL), skip=6)
    assert process.wait(60) == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [".packline"]
    pulled = pull(PLACE, out)
    assert content(out) == content(store)
    assert 0 < pulled.fetched_files < pulled.files


@pytest.mark.parametrize("kind", ["flip", "cut", "503"])
def test_a_bad_answer_is_asked_again(
    hub: LoopbackHub, store: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, PLACE)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.fail("^GET /lfs/", kind)
    hub.fail(r"^GET .*resolve/.*\.json", kind)
    pull(PLACE, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(store)


def test_a_file_that_stays_damaged_is_refused(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    push(store, PLACE)
    hub.fail("^GET /lfs/", "flip", times=1000)
    with pytest.raises(CorruptStore, match=r"arrived damaged twice: .*[0-9a-f]{32}"):
        pull(PLACE, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [".packline"]
    hub.faults.clear()
    pull(PLACE, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(store)


def test_damage_in_the_repository_is_noticed(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    push(store, PLACE)
    shard = next(path.name for path in store.glob("train-*.bin"))
    other = [CommitOperationAdd(shard, bytes((store / shard).stat().st_size))]
    HfApi().create_commit(NAME, other, commit_message="damage", repo_type="dataset")
    with pytest.raises(CorruptStore, match=f"{shard} .*arrived damaged twice: .*expected .*found"):
        pull(PLACE, tmp_path / "copy")
    gone = [CommitOperationDelete(shard)]
    HfApi().create_commit(NAME, gone, commit_message="loss", repo_type="dataset")
    with pytest.raises(CorruptStore, match=f"lacks {shard}"):
        pull(PLACE, tmp_path / "copy")


def test_an_unfinished_push_is_not_pulled(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    from huggingface_hub import CommitOperationDelete, HfApi

    pushed = push(store, PLACE)
    HfApi().create_commit(NAME, [CommitOperationDelete(MANIFEST)], commit_message="-", repo_type="dataset")
    with pytest.raises(HubError, match="nothing that packline reads") as caught:
        pull(PLACE, tmp_path / "copy")
    assert "earlier commit" in caught.value.hint
    pull(f"{PLACE}@{pushed.revision}", tmp_path / "copy")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.bin", "a//b.bin", "a/./b.bin", "nul\0.bin", "n" * 300]
)
def test_names_of_a_hostile_listing_are_refused(
    hub: LoopbackHub, store: Path, tmp_path: Path, name: str
) -> None:
    push(store, PLACE)
    hub.repository(NAME).find("main").files[name] = git_file(b"hostile")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(HubError, match="cannot be kept under its name"):
        pull(PLACE, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert hub.count("resolve") == 0


# offline


def test_offline_a_pulled_folder_is_enough_and_nothing_else_is_read(
    hub: LoopbackHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    pushed = push(store, PLACE)
    pull(PLACE, tmp_path / "copy")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert pull(PLACE, tmp_path / "copy").revision == pushed.revision
    assert pull(f"{PLACE}@{pushed.revision}", tmp_path / "copy").nothing_to_do
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        pull(PLACE, tmp_path / "other")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        push(store, PLACE)
    assert not hub.requests


# errors that a user meets first


def test_a_private_repository_needs_a_token(
    hub: LoopbackHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, PLACE)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="no such repository") as caught:
        pull(PLACE, tmp_path / "copy")
    assert "HF_TOKEN" in caught.value.hint


def test_the_command_line_prints_the_commit(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    pushed = push(store, PLACE)
    ran = run("pull", PLACE, tmp_path / "copy", "--json")
    assert result(ran)["pinned"] == f"{PLACE}@{pushed.revision}", ran.stderr
    assert content(tmp_path / "copy") == content(store)
