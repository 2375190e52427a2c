"""Several raylets on this machine, in a process of their own, so that no test's process loads Ray.

python -m tests.cluster.raylets        commands on standard input, an answer to each on standard output
    add CORES    start a raylet            its number
    kill NUMBER  end it with SIGKILL       its number
end of input: all are ended
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import packline

QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""A dead node is noticed after 5 seconds instead of 17."""
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # binds to 127.0.0.1 only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(16),
}


class Raylets:
    """A cluster of raylets, each of which is a node for Ray; the head runs no units."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid
        self.environment = {**LOOPBACK, "RAY_ADDRESS": self._answer()}
        """Variables of a process that uses the cluster."""

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the cluster has ended"
        return line

    def _ask(self, command: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return int(self._answer())

    def add(self, cores: int = 1) -> int:
        """Start a node; its number."""
        return self._ask(f"add {cores}")

    def kill(self, number: int) -> None:
        """End a node without notice."""
        self._ask(f"kill {number}")


@contextmanager
def start_raylets() -> Iterator[Raylets]:
    """A cluster that ends with the block."""
    root = Path(__file__).parents[2]
    source = str(Path(packline.__file__).parents[1])
    given = [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    paths = [*given, source, str(root)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.raylets"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **LOOPBACK, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    try:
        yield Raylets(process)
    finally:
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.wait(60)
        process.stdout.close()


CHAT = """
template = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
packline.sft(given["inputs"], given["tokenizer"], out=given["out"], on=given["on"], workers=1,
    eod="<|endoftext|>", chat_template=template)
"""
"""A program for `run_python`."""


def run_python(program: str, given: dict[str, Any], environment: dict[str, str]) -> str:
    """Output of a program in a process of its own, so that no test's process loads Ray."""
    begin = "import json, sys\nimport packline\ngiven = json.loads(sys.argv[1])\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + program, json.dumps(given)],
        env={"PYTHONPATH": str(Path(packline.__file__).parents[1]), **os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _add(cluster: Any, cores: int) -> Any:
    """A new node; a busy machine may need a second try."""
    try:
        return cluster.add_node(node_ip_address="127.0.0.1", num_cpus=cores, wait=False)
    except Exception:  # Ray has no class for it
        return cluster.add_node(node_ip_address="127.0.0.1", num_cpus=cores, wait=False)


def main() -> None:
    """Run a cluster until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints goes to standard error
    import logging

    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    place = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**place, "num_cpus": 0, "_system_config": QUICK})
    nodes: dict[int, Any] = {}
    print(cluster.address, file=answers, flush=True)
    for line in sys.stdin:
        command, number = line.split()
        if command == "add":
            name = len(nodes)
            nodes[name] = _add(cluster, int(number))
        else:
            name = int(number)
            cluster.remove_node(nodes[name], allow_graceful=False)
        print(name, file=answers, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
