"""The loopback hub answers the real client as the real hub does; push, pull and inputs are tested with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, HfFileSystem
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from tests.hub.loopback import OTHER, READ, LoopbackHub

DATA = bytes(range(256)) * 100


def put(api: HfApi, files: dict[str, bytes], parent: str | None = None) -> str:
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    made = api.create_commit(
        "org/set", operations, commit_message="files", repo_type="dataset", parent_commit=parent
    )
    return str(made.oid)


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    api = HfApi()
    api.create_repo("org/set", repo_type="dataset", private=True)
    return api


def test_files_go_there_and_back(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    sha = put(api, {"a/x.bin": DATA, "README.md": b"# A set\n"})
    assert api.dataset_info("org/set").sha == sha
    assert hub.files("org/set")["a/x.bin"] == DATA
    tree = api.list_repo_tree("org/set", recursive=True, repo_type="dataset")
    listed: dict[str, Any] = {each.path: each for each in tree}
    assert set(listed) == {".gitattributes", "README.md", "a", "a/x.bin"}
    assert listed["a/x.bin"].lfs.size == len(DATA) and listed["README.md"].lfs is None
    folder = api.snapshot_download("org/set", repo_type="dataset", revision=sha, local_dir=tmp_path / "copy")
    assert (Path(folder) / "a/x.bin").read_bytes() == DATA
    assert (Path(folder) / "README.md").read_text() == "# A set\n"


def test_an_old_revision_stays_readable(api: HfApi) -> None:
    first = put(api, {"x.bin": DATA})
    put(api, {"x.bin": b"other"})
    assert (
        Path(api.hf_hub_download("org/set", "x.bin", repo_type="dataset", revision=first)).read_bytes()
        == DATA
    )
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("org/set", revision="missing")


def test_a_commit_needs_its_parent(api: HfApi) -> None:
    first = put(api, {"x.bin": DATA})
    put(api, {"y.bin": DATA}, parent=first)
    with pytest.raises(HfHubHTTPError, match="412"):
        put(api, {"z.bin": DATA}, parent=first)


def test_a_stored_object_is_not_uploaded_again(hub: LoopbackHub, api: HfApi) -> None:
    put(api, {"x.bin": DATA})
    put(api, {"y.bin": DATA})
    assert hub.count("^PUT /lfs/") == 1


def test_files_are_deleted(hub: LoopbackHub, api: HfApi) -> None:
    put(api, {"x.bin": DATA})
    api.create_commit("org/set", [CommitOperationDelete("x.bin")], commit_message="less", repo_type="dataset")
    assert "x.bin" not in hub.files("org/set")


def test_a_tree_comes_in_pages(tmp_path: Path, hub: LoopbackHub, api: HfApi) -> None:
    hub.page = 10
    put(api, {f"{number:03d}.txt": b"text" for number in range(35)})
    names = [each.path for each in api.list_repo_tree("org/set", repo_type="dataset")]
    assert names == sorted([".gitattributes", *(f"{number:03d}.txt" for number in range(35))])


def test_ranges_are_read_through_the_file_system(api: HfApi) -> None:
    sha = put(api, {"a/x.bin": DATA})
    files = HfFileSystem(skip_instance_cache=True)
    with files.open(f"datasets/org/set@{sha}/a/x.bin", "rb", block_size=1 << 10) as file:
        file.seek(1000)
        assert file.read(500) == DATA[1000:1500]
    assert files.info(f"datasets/org/set@{sha}/a/x.bin")["size"] == len(DATA)
    assert f"datasets/org/set@{sha}/a/x.bin" in files.find(f"datasets/org/set@{sha}")


def test_who_may_do_what(hub: LoopbackHub, api: HfApi) -> None:
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token=False).dataset_info("org/set")
    assert HfApi(token=READ).dataset_info("org/set").private
    with pytest.raises(HfHubHTTPError, match="403"):
        put(HfApi(token=OTHER), {"x.bin": DATA})
    with pytest.raises(HfHubHTTPError, match="403"):
        HfApi(token=OTHER).create_repo("org/second", repo_type="dataset")
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(token="wrong").dataset_info("org/set")


@pytest.mark.parametrize("kind", ["503", "lost", "interrupted"])
def test_the_client_gets_over_a_fault_of_an_upload(hub: LoopbackHub, api: HfApi, kind: str) -> None:
    hub.fail("^PUT /lfs/", kind)
    put(api, {"x.bin": DATA})
    assert hub.files("org/set")["x.bin"] == DATA and hub.count("^PUT /lfs/") == 2


def test_a_flipped_byte_arrives(hub: LoopbackHub, api: HfApi) -> None:
    put(api, {"x.bin": DATA})
    hub.fail("^GET /lfs/", "flip")
    found = Path(api.hf_hub_download("org/set", "x.bin", repo_type="dataset")).read_bytes()
    assert sum(a != b for a, b in zip(found, DATA, strict=True)) == 1


def test_another_process_uses_the_hub_by_its_environment(hub: LoopbackHub, api: HfApi) -> None:
    put(api, {"x.txt": b"text"})
    code = "import huggingface_hub as h; print(h.HfApi().list_repo_files('org/set', repo_type='dataset'))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert "x.txt" in ran.stdout, ran.stderr
