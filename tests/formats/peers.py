"""Run code where the other projects are installed: the judges of what packline writes.

    found = run_peer("import torch; answer = torch.load(arguments[0], weights_only=True).tolist()", path,
                     modules=("torch",))

Their pins disagree with packline's, so they live in an environment of their own: the interpreter that
`PACKLINE_PEERS_PYTHON` names, else `.venv-peers` of the checkout (`make peers`), else this one. The code
finds its `arguments` (strings) and leaves an `answer` that JSON can hold; warnings and prints of the peers do
not matter. A test whose modules are not there skips; a peer that fails makes the test fail, with its words.

Code that needs packline as well (`with_packline`) finds it, and what it needs, behind the peers' own modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 200

# `streaming` imports torchvision, of which it needs nothing here and whose wheel fits one build of torch.
# Modules with the few names that it looks up take its place in the peer's process. `megatron.core` imports
# all of Megatron, of which its files need two modules: an empty package takes its place.
BEGIN = """
import importlib.machinery, json, sys, types, warnings
warnings.simplefilter("ignore")
if {fake_torchvision}:
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms",
                 "torchvision.transforms.functional"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    sys.modules["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {{}})
    sys.modules["torchvision.transforms.functional"].to_tensor = lambda image: image
if {lean_megatron}:
    import megatron
    sys.modules["megatron.core"] = types.ModuleType("megatron.core")
    sys.modules["megatron.core"].__path__ = [f"{{path}}/core" for path in megatron.__path__]
    import megatron.core.parallel_state
sys.path += {own_path!r}
_answer_file, *arguments = sys.argv[1:]
"""
END = """
with open(_answer_file, "w") as _file:
    json.dump(answer, _file)
"""
FIND = """
import importlib.util, sys
print([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
"""


def peers_python() -> str:
    """The interpreter that has the peers."""
    own = ROOT / ".venv-peers" / "bin" / "python"
    named = os.environ.get("PACKLINE_PEERS_PYTHON")
    return named or (str(own) if own.exists() else sys.executable)


@cache
def missing_peers(python: str, modules: tuple[str, ...]) -> str:
    """Those of some modules that an interpreter does not have."""
    done = subprocess.run([python, "-c", FIND, *modules], capture_output=True, text=True, check=True)
    return done.stdout.strip().strip("[]")


def run_peer(code: str, *arguments: object, modules: tuple[str, ...], with_packline: bool = False) -> Any:
    """Run code in the peers' environment and return its `answer`.

    Args:
        code: uses `arguments`, sets `answer`.
        arguments: handed over as strings.
        modules: top-level modules that must be there; the test skips where one is not.
        with_packline: whether the code imports packline. Both interpreters must be of one Python version.
    """
    python = peers_python()
    if missing := missing_peers(python, modules):
        pytest.skip(f"not installed with the peers: {missing} (make peers)")
    own_path = [str(ROOT / "src"), *filter(None, sys.path)] if with_packline else []
    begin = BEGIN.format(
        fake_torchvision="streaming" in modules, lean_megatron="megatron" in modules, own_path=own_path
    )
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        script = Path(folder, "peer.py")
        script.write_text(f"{begin}\n{code}\n{END}")
        # Where a peer keeps a cache, it is in this folder and goes with it.
        home = dict.fromkeys(("HOME", "HF_HOME", "TMPDIR"), folder)
        home |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": ""}
        home |= {"OMP_NUM_THREADS": "1"}  # tiny models: a second thread only waits
        done = subprocess.run(
            [python, str(script), str(answer), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            env=os.environ | home,
            cwd=folder,
        )
        assert done.returncode == 0, f"the peer failed:\n{done.stderr[-3000:]}"
        return json.loads(answer.read_text())
