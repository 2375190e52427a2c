"""A push publishes everything once, in few commits, the manifest last; whatever interrupts it, again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import result, run
from tests.hub.loopback import OTHER, READ, WRITE, LoopbackHub

import packline
from packline.errors import CorruptStore, HubError, RecipeError, StoreError
from packline.facade import Store
from packline.hub.pull import pull
from packline.hub.push import push
from packline.hub.repository import repository_paths
from packline.storage.hub_inputs import local_name
from packline.store.manifest import MANIFEST, to_json
from packline.testing import make_store

PLACE, NAME = "hf://datasets/org/tokens", "org/tokens"


def content(folder: Path) -> dict[str, bytes]:
    """Files of a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def of_store(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files of a repository without those of the hub, by their local names."""
    kept = {path: data for path, data in files.items() if path not in ("README.md", ".gitattributes")}
    return {local_name(path): data for path, data in kept.items()}


def test_the_manifest_comes_last_and_a_second_push_does_nothing(hub: LoopbackHub, store: Path) -> None:
    pushed = push(store, PLACE)
    assert of_store(hub.files(NAME)) == content(store)
    repository = hub.repository(NAME)
    assert repository.private and pushed.created and pushed.private is True
    last, *earlier = repository.history("main")
    assert last.sha == pushed.revision and MANIFEST in last.files
    assert all(MANIFEST not in commit.files for commit in earlier)
    assert set(last.files) - set(earlier[0].files) == {MANIFEST, "README.md"}
    assert pushed.sent_files == pushed.files == len(content(store))
    assert pushed.sent_bytes == pushed.bytes == sum(map(len, content(store).values()))
    hub.requests.clear()
    second = push(store, PLACE)
    assert second.nothing_to_do and second.revision == pushed.revision and not second.created
    assert hub.count("^(PUT|POST)") == 0


def test_a_push_makes_few_commits(hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(store, f"{PLACE}@one")
    first = len(hub.repository(NAME).history("main"))
    assert len(hub.repository(NAME).history("one")) == first + 2  # all files, then the record and the card
    monkeypatch.setattr("packline.hub.push.COMMIT_FILES", 1)
    monkeypatch.setattr("packline.hub.push.MOST_COMMITS", 3)
    push(store, f"{PLACE}@many")
    assert len(hub.repository(NAME).history("many")) == first + 4


def test_another_store_replaces_the_first_and_old_revisions_stay(
    hub: LoopbackHub, store: Path, tmp_path: Path
) -> None:
    first = push(store, PLACE)
    before = hub.files(NAME)
    other = make_store(tmp_path / "other", [[5, 1, 9], [8]], sources=["web", "code"]).path
    second = push(other, PLACE)
    assert of_store(hub.files(NAME)) == content(other)
    assert hub.files(NAME, first.revision) == before
    assert second.removed_files and second.created is False
    whole = [of_store(hub.files(NAME, commit.sha)) for commit in hub.repository(NAME).history("main")]
    for files in whole:  # a revision with a manifest is one of the two stores, and never a mixture
        assert MANIFEST not in files or files in (content(store), content(other))


def test_files_of_others_are_kept(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    from huggingface_hub import CommitOperationAdd, HfApi

    push(store, PLACE)
    operations = [CommitOperationAdd("LICENSE", b"free"), CommitOperationAdd("notes/a.txt", b"mine")]
    HfApi().create_commit(NAME, operations, commit_message="mine", repo_type="dataset")
    push(make_store(tmp_path / "other", [[2]]).path, PLACE)
    files = hub.files(NAME)
    assert files["LICENSE"] == b"free" and files["notes/a.txt"] == b"mine"


@pytest.mark.parametrize(
    ("what", "kind"),
    [("/preupload/", "503"), ("batch$", "reset"), ("/commit/", "503"), ("/commit/", "lost")],
)
def test_a_fault_does_not_change_the_result(
    hub: LoopbackHub, store: Path, what: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.fail(what, kind, times=2)
    push(store, PLACE)
    assert of_store(hub.files(NAME)) == content(store)
    assert hub.count("^PUT /lfs/") == len(set(hub.hub.folder.iterdir()))


def test_the_commit_limit_of_the_hub_is_explained(
    hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.fail("/commit/", "429", times=1000)
    with pytest.raises(HubError, match="429") as caught:
        push(store, PLACE)
    assert "again later" in caught.value.hint
    hub.faults.clear()
    hub.requests.clear()
    push(store, PLACE)
    assert of_store(hub.files(NAME)) == content(store)
    assert hub.count("^PUT /lfs/") == 0  # everything was uploaded before


def test_a_killed_push_continues_with_what_is_missing(
    hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        f"import sys; from packline.hub import push as p; p.COMMIT_FILES = 4;p.push(sys.argv[1], {PLACE!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(store)], env=dict(os.environ))
    hub.fail("/commit/", lambda: process.send_signal(signal.SIGKILL), skip=2)
    assert process.wait(60) == -signal.SIGKILL
    there = of_store(hub.files(NAME))
    assert 0 < len(there) < len(content(store)) and MANIFEST not in there
    hub.requests.clear()
    pushed = push(store, PLACE)
    assert of_store(hub.files(NAME)) == content(store)
    assert pushed.sent_files <= len(content(store)) - len(there) + 1
    uploads = [line for line in hub.requests if line.startswith("PUT /lfs/")]
    assert len(uploads) == len(set(uploads)) < len(content(store))


def test_two_pushes_at_once_do_not_mix(
    hub: LoopbackHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_store(tmp_path / "other", [[8]], sources=["code"]).path
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def push_another() -> None:
        hub.faults.clear()
        push(other, PLACE)

    hub.fail("/commit/", push_another)
    push(store, PLACE)
    assert of_store(hub.files(NAME)) == content(store)
    for commit in hub.repository(NAME).history("main"):
        files = of_store(hub.files(NAME, commit.sha))
        assert MANIFEST not in files or files in (content(store), content(other))


def test_a_damaged_file_is_not_published(hub: LoopbackHub, store: Path) -> None:
    shard = next(store.glob("train-*.bin"))
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptStore, match="was not pushed"):
        push(store, PLACE)
    assert MANIFEST not in hub.files(NAME)


def test_credentials_in_a_recipe_are_refused(hub: LoopbackHub, store: Path) -> None:
    from packline.store.manifest_check import read_manifest

    manifest = read_manifest(store)
    [first, *rest] = manifest.recipe.sources
    first = msgspec.structs.replace(first, inputs=("https://me:hunter2@host/a.jsonl",))
    recipe = msgspec.structs.replace(manifest.recipe, sources=(first, *rest))
    (store / MANIFEST).write_bytes(to_json(msgspec.structs.replace(manifest, recipe=recipe)))
    with pytest.raises(StoreError, match="credentials") as caught:
        push(store, PLACE)
    assert "hunter2" not in str(caught.value) and not hub.requests


def test_another_kind_is_not_mixed_in(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    push(store, PLACE)
    packline.export(store, out=tmp_path / "bin", to="llmc", workers=0)
    with pytest.raises(HubError, match="found store"):
        push(tmp_path / "bin", PLACE)


# errors that a user meets first


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("datasets/org/name", "begin with hf://"),
        ("hf://datasets/org/a/b", "names no repository"),
        ("hf://datasets/org/name?token=hf_hidden", "hf://datasets/org/name has a query"),
        ("hf://spaces/org/name", "is a space"),
    ],
)
def test_a_wrong_address_is_refused(store: Path, place: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        push(store, place)
    assert "hf_hidden" not in str(caught.value) + caught.value.hint


def test_a_push_without_a_token_is_refused(
    hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="no token") as caught:
        push(store, PLACE)
    assert "hf auth login" in caught.value.hint and not hub.requests


@pytest.mark.parametrize(("token", "message"), [(READ, "403"), (OTHER, "403"), ("wrong", "401")])
def test_a_token_without_permission_is_refused(
    hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch, token: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match=message) as caught:
        push(store, PLACE)
    assert token not in str(caught.value) + caught.value.hint or token == "wrong"


def test_an_absent_network_is_reported_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.hub.conftest import use_hub

    with LoopbackHub(tmp_path / "hub") as gone:
        pass
    use_hub(gone, tmp_path / "home", monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(HubError, match="cannot reach the hub"):
        push(store, PLACE)


def test_many_files_get_folders_which_a_pull_leaves_out(
    hub: LoopbackHub, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packline.hub.repository.repository_paths", lambda names: repository_paths(names, 3))
    push(store, PLACE)
    paths = set(hub.files(NAME))
    assert of_store(hub.files(NAME)) == content(store)
    counts = Counter(path.rpartition("/")[0] for path in paths)
    assert all(count <= 3 for folder, count in counts.items() if folder)
    assert MANIFEST in paths and "0000/" in "".join(sorted(paths))
    pull(PLACE, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(store) and not list((tmp_path / "copy").glob("0*"))
    there = packline.open(PLACE, cache=False)
    assert [one.tolist() for one in there.documents] == [one.tolist() for one in Store(store).documents]


def test_the_command_line(hub: LoopbackHub, store: Path) -> None:
    ran = run("push", store, PLACE)
    assert ran.returncode == 0, ran.stderr
    assert f"packline pull {PLACE}@{hub.repository(NAME).find('main').sha}" in ran.stdout
    again = run("push", store, PLACE, "--json")
    facts = result(again)
    published = b"".join(hub.files(NAME).values()).decode("latin-1")
    for text in (ran.stdout, ran.stderr, again.stdout, again.stderr, published):
        assert WRITE not in text
    assert facts["sent_files"] == 0 and facts["revision"] == hub.repository(NAME).find("main").sha
