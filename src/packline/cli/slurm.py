"""`packline slurm`: write an array script for Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE
from packline.cli.output import output
from packline.errors import PacklineError
from packline.jobs.slurm import array_script

_FLAGS = Flags()


def slurm(
    *command: Annotated[str, Parameter(help="The command to divide, after --.", allow_leading_hyphen=True)],
    nodes: Annotated[int, Parameter(help="Number of array tasks, each on a node of its own.")],
    script: Annotated[str, Parameter(help="File to write.")] = "packline.slurm",
    sbatch: Annotated[
        list[str] | None,
        Parameter(help="Option of sbatch: --sbatch time=04:00:00. May be repeated.", negative=""),
    ] = None,
    flags: Flags = _FLAGS,
) -> int:
    """Write an array script for Slurm; see `help_texts`."""
    text = array_script(command, nodes, options=sbatch or (), name=script)
    try:
        with open(script, "x") as file:
            file.write(text)
    except FileExistsError as error:
        raise PacklineError(
            f"{script} exists", hint="delete it, or name another file with --script"
        ) from error
    Path(script).chmod(0o755)
    output.line("  ", ("wrote", "quiet"), f"     {script}")
    output.line("  ", ("submit it", "quiet"), "  ", (f"sbatch {script}", "hint"))
    output.result({"command": "slurm", "script": script, "nodes": nodes, "exit_code": DONE})
    return DONE
