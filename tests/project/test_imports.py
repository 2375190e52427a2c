"""The public face: what `packline` exports, and that importing it costs next to nothing.

A command-line tool that imports torch to print its help is slow in the hand. What is loaded is
looked up in a fresh process, by name and not by time, so that a busy machine changes nothing.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import packline

ROOT = Path(__file__).resolve().parents[2]

# The promise to users. Adding a name here is a decision; removing one breaks somebody.
EXPORTS = [
    "ConversationSource",
    "Loader",
    "Mixture",
    "PacklineError",
    "Ray",
    "Recipe",
    "Rows",
    "Slice",
    "Source",
    "Stage",
    "Store",
    "analyze",
    "attention_mask",
    "build",
    "copy",
    "cu_seqlens",
    "diff",
    "estimate",
    "export",
    "follow",
    "import_",
    "info",
    "merge",
    "open",
    "pull",
    "pulled_from",
    "push",
    "report",
    "sft",
    "trace",
    "train_bpe",
    "verify",
    "view",
    "write_rows",
]

HEAVY = {
    *("awkward", "cyclopts", "fastokens", "gigatoken", "nanotoken"),
    *("pyarrow", "ray", "rich", "tokenizers", "torch"),
}

# What may load something heavy at its top: it is itself loaded only by those who want that.
OPTIONAL = ("packline.cli", "packline.viewing", "packline.torch", "packline.__main__")


def loaded_by(statements: str) -> set[str]:
    """The top-level packages in memory after `statements` in a fresh Python."""
    code = f"{statements}\nimport json, sys\nsys.stdout.write(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_packline_loads_nothing_heavy() -> None:
    loaded = loaded_by("import packline")
    assert "packline" in loaded
    assert not loaded & HEAVY


def test_no_module_loads_what_only_some_users_have_or_need() -> None:
    modules = [
        module.name
        for module in pkgutil.walk_packages(packline.__path__, "packline.")
        if not module.name.startswith(OPTIONAL)
    ]
    assert "packline.errors" in modules
    loaded = loaded_by("\n".join(f"import {name}" for name in modules))
    assert not loaded & {"awkward", "cyclopts", "ray", "rich", "torch"}


def test_the_command_line_of_a_build_loads_nothing_that_encodes() -> None:
    # A command line is parsed, or refused, without a quarter of a second of NumPy and Arrow.
    loaded = loaded_by("import packline.cli.build")
    assert {"packline", "cyclopts"} <= loaded
    assert not loaded & {"numpy", "pyarrow", "tokenizers", "gigatoken", "fastokens"}


def test_the_version_is_shown_without_a_parser() -> None:
    loaded = loaded_by("from packline.cli.main import main; main(['--version'])")
    assert not loaded & {"cyclopts", "msgspec", "rich"}


def test_the_exports_are_the_promised_ones() -> None:
    assert sorted([*packline.__all__, "open"]) == sorted(EXPORTS)  # a star import keeps Python's own `open`
    assert len(set(packline.__all__)) == len(packline.__all__)
    assert "packline" in loaded_by("import packline; packline.errors.StoreNotFound")


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_exists_and_explains_itself(name: str) -> None:
    value = getattr(packline, name)
    assert name in dir(packline)
    documentation = inspect.getdoc(value) or ""
    assert documentation, f"packline.{name} has no docstring"
    if inspect.isfunction(value) or inspect.isclass(value):
        assert ">>>" in documentation, f"packline.{name} has no example in its docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(packline, "no_such_name")  # noqa: B009 (a type checker refuses the plain form)


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert importlib.metadata.version("packline") == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
