"""`packline --install-completion`: completion of commands and options, by cyclopts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from packline.cli.main import DONE, make_app
from packline.cli.output import output
from packline.errors import PacklineError


def install_completion(
    *,
    shell: Literal["bash", "zsh", "fish"] | None = None,
    script: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Install completion for a shell: by default the one that runs this, where it looks for completions."""
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        path = make_app().install_completion(shell=shell or detect_shell(), output=script)
    except ShellDetectionError as error:
        raise PacklineError("cannot tell which shell this is", hint="name it: --shell bash") from error
    except OSError as error:
        raise PacklineError(
            f"cannot install completion: {error.filename}: {error.strerror}",
            hint="a shell loads it from its start file and a folder in your home: both have to be writable",
        ) from error
    output.line("  ", ("completion ", "good"), str(path))
    output.line("  ", ("next       ", "quiet"), "open a new shell, which loads it")
    return DONE
