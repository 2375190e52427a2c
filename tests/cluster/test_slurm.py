"""The array script: written as sites allow it, and run by a real Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.builds import SRC, build, digests
from tests.laws.reference import write_corpus
from tests.storage.servers import free_port

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def array_script(command: str, nodes: int) -> str:
    """The script of the page, for another command and number of nodes."""
    _, found, rest = PAGE.read_text().partition("```bash\n#!/bin/bash\n#SBATCH")
    text = "#!/bin/bash\n#SBATCH" + rest.partition("```")[0]
    given, asked = "packline build recipe.toml --out /shared/store", "--array=0-15"
    assert found and text.count(given) == text.count(asked) == text.count('/16"') == 1
    return text.replace(given, command).replace(asked, f"--array=0-{nodes - 1}").replace('/16"', f'/{nodes}"')


def test_some_tasks_alone_have_their_own_slices(tmp_path: Path) -> None:
    """As `sbatch --array=3,7` calls the script, which sets the number of tasks to 2."""
    (tmp_path / "packline").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "packline").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_ARRAY_TASK_COUNT": "2",
    }
    script = array_script("packline build in --out store", 16)
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "build in --out store --slice 7/16\n"


CONF = """
ClusterName=packline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A controller and a node on this machine; the environment of their clients."""
    programs = [
        shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("slurmctld", "slurmd")
    ]
    if os.getuid() or None in programs or shutil.which("sbatch") is None:
        pytest.skip("Slurm needs root, and its packages: make slurm")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(
            host=socket.gethostname().partition(".")[0],
            controller_port=free_port(),
            node_port=free_port(),
            cores=os.cpu_count(),
            folder=folder,
        )
    )
    environment = {**os.environ, "SLURM_CONF": str(conf), "PYTHONPATH": str(SRC)}
    daemons = [
        subprocess.Popen([str(program), "-D", "-f", str(conf)], env=environment, stderr=subprocess.DEVNULL)
        for program in programs
    ]
    try:
        end = time.monotonic() + 30
        while "idle" not in answer(["sinfo", "-h", "-o", "%T"], environment):
            if time.monotonic() > end:
                pytest.skip(f"Slurm does not start here: {(folder / 'slurmctld.log').read_text()[-500:]}")
            time.sleep(0.2)
        yield environment
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


def answer(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_real_slurm_runs_the_script(
    slurm: dict[str, str], documents: list[str], tokenizer_json: Path, tmp_path: Path
) -> None:
    write_corpus(tmp_path / "in", [("jsonl", documents[:150], True), ("parquet", documents[150:300], False)])
    build(tmp_path / "whole", tmp_path / "in", tokenizer_json)
    command = [
        "build",
        str(tmp_path / "in"),
        "--tokenizer",
        str(tokenizer_json),
        "--out",
        "store",
        "--engine",
        "tokenizers",
    ]
    text = array_script(shlex.join(["packline", *command, "--workers", "1"]), 2)
    own = tmp_path / "bin"
    own.mkdir()
    (own / "packline").write_text(f'#!/bin/sh\nexec {sys.executable} -m packline "$@"\n')
    (own / "packline").chmod(0o755)
    (tmp_path / "packline.slurm").write_text(text)
    environment = {**slurm, "PATH": f"{own}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sbatch", "--wait", "packline.slurm"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("packline-*.log")))
    assert done.returncode == 0, done.stderr + logs
    assert len(list(tmp_path.glob("packline-*.log"))) == 2
    assert digests(tmp_path / "store") == digests(tmp_path / "whole")
