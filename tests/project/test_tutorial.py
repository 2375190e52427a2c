"""docs/tutorial.md: its commands and its Python run in order, in an empty folder, and the model learns."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text("utf-8")


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    commands = programs = 0
    for language, code in re.findall(r"^```(console|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        if language == "python":
            if code.startswith("# needs torch"):
                pytest.importorskip("torch", reason="the optional torch is not installed")
            exec(compile(code, "tutorial.md", "exec"), names)
            programs += 1
            continue
        for line in code.splitlines():
            program, *words = shlex.split(line.removeprefix("$ "))
            assert program == "packline"
            command = [sys.executable, "-m", "packline", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if "--step 10" in line:
                assert "row 0" in done.stdout
            if "--id bisect.py" in line:
                assert "step" in done.stdout
            commands += 1
    assert (commands, programs) == (7, 4)
    assert names["losses"][-1] < names["losses"][0] - 1
