"""Array script for Slurm: one task per node, each a slice of the same job.

An array of nodes, not of units: sites limit the size of an array, usually to 1,001 tasks, and the rate of
starts. A task that is preempted is queued again under its number, and resumes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from packline.errors import RecipeError

MOST_NODES = 1000
STORES = ("build", "sft", "import")
"""Commands that take `--slice` and make a store."""
JOBS = (*STORES, "export", "bake")
"""Commands that take `--slice`."""
SLICE = '"$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"'

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=packline
#SBATCH --array=0-{last}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
{options}\
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@90
#SBATCH --output={log}

# Submit with: sbatch {name}
# --out must be where all nodes see it: a shared disk or an object store.
#
# Each task runs its part of the units, then helps with what is left; the task that
# sees the last unit committed publishes the result. Watch it from anywhere with
#     packline status {out}
# A task that is preempted or runs out of time is resumed by submitting the script
# again: finished units are kept, and the bytes are the same. If all tasks have ended
# and the result is not published, this command does what is left, and publishes it:
#     {finish}

exec {command} --slice {slice}
"""


def array_script(
    command: Sequence[str], nodes: int, *, options: Sequence[str] = (), name: str = "packline.slurm"
) -> str:
    """Script of an array job.

    Args:
        command: words of a packline command, from `build`, `export` or another of `JOBS` on.
        nodes: number of tasks, each with a node's cores.
        options: further options of sbatch, such as `time=04:00:00`.
        name: name of the script's file, for its comments.

    Raises:
        RecipeError: too many nodes, or a command that has no slices.

    >>> script = array_script(["build", "web/", "--tokenizer", "gpt2", "--out", "store"], 8)
    >>> script.splitlines()[2], script.splitlines()[-1].partition(" --slice ")[0]
    ('#SBATCH --array=0-7', 'exec packline build web/ --tokenizer gpt2 --out store')
    """
    if not 1 <= nodes <= MOST_NODES:
        raise RecipeError(
            f"nodes is {nodes:,}: expected 1 to {MOST_NODES:,}, since sites limit the size of an array"
        )
    words = list(command[1:] if command and command[0] == "packline" else command)
    if not words or words[0] not in JOBS:
        raise RecipeError(
            f"cannot divide {words[0] if words else 'no command'!r} among nodes: expected {', '.join(JOBS)}",
            hint="packline slurm --nodes 16 -- build corpus/ --tokenizer gpt2 --out store",
        )
    for word in ("--slice", "--on"):
        if any(given == word or given.startswith(f"{word}=") for given in words):
            raise RecipeError(f"{word} is in the command, and the script divides it among nodes itself")
    out = _value(words, "--out")
    if out is None:
        raise RecipeError("the command has no --out", hint="name a folder that all nodes see")
    for option in options:
        if not re.fullmatch(r"[a-z][\w-]*(=[^\n]+)?", option):
            raise RecipeError(f"the option of sbatch is {option!r}: expected name=value")
    return SCRIPT.format(
        last=nodes - 1,
        options="".join(f"#SBATCH --{option}\n" for option in options),
        log="packline-%A_%a.log",
        name=shlex.quote(name),
        out=shlex.quote(out),
        finish=f"packline finalize {shlex.quote(out)}"
        if words[0] in STORES
        else shlex.join(["packline", *words]),
        command=shlex.join(["packline", *words]),
        slice=SLICE,
    )


def _value(words: Sequence[str], name: str) -> str | None:
    """Value of an option in a command line."""
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
