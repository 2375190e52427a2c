"""Needs of people who join: the first change, the rules of a release, and the workflows of the forge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packline.store.manifest import FORMAT_VERSION, READABLE
from packline.version import __version__

ROOT = Path(__file__).resolve().parents[2]
FORGE = ROOT / ".github"
FIRST_CHANGE = (ROOT / "docs" / "first-change.md").read_text("utf-8")
SCHEMAS = {
    "workflows/*.yml": "vendor.github-workflows",
    "ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    "ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "dependabot.yml": "vendor.dependabot",
}


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.yaml.decode((FORGE / "workflows" / name).read_bytes())
    return found


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_files_of_the_forge_have_the_form_that_it_expects(pattern: str) -> None:
    paths = sorted(map(str, FORGE.glob(pattern)))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[pattern], *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert paths and done.returncode == 0, done.stdout + done.stderr


def test_workflows_call_targets_that_exist_with_the_fewest_rights() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in (FORGE / "workflows").glob("*.yml"):
        steps = workflow(path.name)
        assert steps["permissions"] == {"contents": "read"}
        called = re.findall(r"run: make ([\w-]+)", path.read_text("utf-8"))
        assert called and set(called) <= targets
    rights = [job["permissions"] for job in workflow("release.yml")["jobs"].values() if "permissions" in job]
    assert rights == [{"id-token": "write"}]


def test_every_python_that_is_promised_is_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    promised = re.findall(r"Python :: (3\.\d+)\b", "\n".join(classifiers))
    tested = workflow("ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert promised and set(promised) <= set(tested)


def test_the_road_of_the_first_change_exists() -> None:
    road = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", FIRST_CHANGE, re.MULTILINE)
    assert len(road) == 10
    assert [name for name in road if not (ROOT / "src" / "packline" / name).is_file()] == []


def test_the_first_change_can_be_made_and_its_test_notices(tmp_path: Path) -> None:
    """The test of the page fails before the change of the code, and passes after it."""
    files = [ROOT / "tests/test_quantities.py", ROOT / "src/packline/quantities.py"]
    texts = [path.read_text("utf-8") for path in files]
    diffs = re.findall(r"^```diff\n-(.*)\n\+(.*)\n```", FIRST_CHANGE, re.MULTILINE)
    assert len(diffs) == 2
    for text, (old, new) in zip(texts, diffs, strict=True):  # also where somebody has just made the change
        assert text.count(old) + text.count(new) == 1
    (test, code), (old_code, new_code) = texts, diffs[1]
    package = Path(shutil.copytree(ROOT / "src" / "packline", tmp_path / "packline"))
    (tmp_path / "test_change.py").write_text(test.replace(*diffs[0]), "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "test_change.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for text, told in (
        (code.replace(new_code, old_code), "' 0p' is not a number"),
        (code.replace(old_code, new_code), ""),
    ):
        (package / "quantities.py").write_text(text, "utf-8")
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == bool(told) and told in done.stdout, done.stdout + done.stderr


def test_the_version_and_the_format_of_stores_are_those_of_the_table() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    minor = __version__.rpartition(".")[0]
    reads = ", ".join(map(str, READABLE))
    assert f"| {minor} | {FORMAT_VERSION} | {reads} |" in page, "the format changed: raise the minor number"
