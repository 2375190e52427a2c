"""The `packline` command: its subcommands, and the handling of errors.

    0    done
    1    an error while running; `verify`: problems found
    2    an invalid command line or recipe
    3    done, but more bad records than --max-bad-fraction
    4    `verify --against`: nothing was found, but not every question could be checked
    129  interrupted by SIGHUP: the terminal was closed
    130  interrupted by SIGINT: Ctrl-C
    143  interrupted by SIGTERM

A result that cannot be written, because standard output is closed or full, is an error (1); output files are
kept.

Each command is in a separate module that is imported only when it is called. An error is two lines on
standard error, `error:` and `hint:`; a traceback is shown only with --debug.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import keyword
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import packline
from packline.cli.help_texts import GROUPS, PAGES, SUMMARY, SUMMARY_END, TOPICS, WRITING
from packline.cli.output import discard, output
from packline.errors import OutputError, PacklineError, RecipeError, UnitsLeft
from packline.jobs.signals import interrupt_on_signals, signal_of

if TYPE_CHECKING:
    from cyclopts import App

DONE, FAILED, USAGE, TOO_MANY_BAD, UNCHECKED = 0, 1, 2, 3, 4


def make_app() -> App:
    """Create the command line, without importing its commands."""
    from cyclopts import App, Group

    app = App(
        name="packline",
        help=SUMMARY,
        version=packline.__version__,
        version_flags=["--version", "-V"],
        help_format="plaintext",
        help_epilogue=SUMMARY_END,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    groups = [Group(topic, sort_key=place) for place, topic in enumerate(TOPICS)]
    topics = {name: group for group, names in zip(groups, TOPICS.values(), strict=True) for name in names}
    for place, (name, (help, end)) in enumerate(PAGES.items()):
        word = f"{name}_" if keyword.iskeyword(name) else name
        # A command with subcommands is an App that declares its own epilogue.
        more = {} if name in GROUPS else {"help_epilogue": end}
        app.command(
            f"packline.cli.{word}:{word}", name=name, help=help, sort_key=place, group=topics[name], **more
        )
    options = Group("Options", sort_key=len(TOPICS))
    app.command(
        "packline.cli.completion:install_completion",
        name="--install-completion",
        help="Install completion of commands and options for bash, zsh or fish.",
        group=options,
    )
    app["--help"].group = app["--version"].group = options
    app["--version"].help = "Show the version."
    app["--help"].help = "Show this page, or with a command its own."
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code.

    Args:
        arguments: words after `packline`; default: those of this process.
    """
    if arguments is None:  # this process ends with the command, so collecting garbage then is of no use
        atexit.register(gc.freeze)
        gc.set_threshold(100_000)  # a tokenizer has 300,000 objects, which would be scanned again and again
        arguments = sys.argv[1:]
    quiet = "-q" in arguments or "--quiet" in arguments
    command = next(iter(arguments), "")
    output.configure(as_json="--json" in arguments, quiet=quiet, mute=quiet and command in WRITING)
    interrupt_on_signals()
    if debug := "--debug" in arguments:
        os.environ["PACKLINE_DEBUG"] = "1"
    try:
        return _run(arguments)
    except UnitsLeft as left:
        output.note(f"{left.message}: {left.hint}")
        output.result(
            {"command": arguments[0], "exit_code": DONE, "published": False, "message": left.message}
        )
        return DONE
    except PacklineError as error:
        if debug:
            raise
        with contextlib.suppress(OutputError, BrokenPipeError):  # for an error on standard output too
            output.error(type(error).__name__, error.message, error.hint)
        return USAGE if isinstance(error, RecipeError) else FAILED
    except KeyboardInterrupt as error:
        with contextlib.suppress(OutputError, BrokenPipeError):
            output.interrupted("", "")
        return 128 + signal_of(error)
    except BrokenPipeError:
        # The reader of the output has closed it. Python would report that again when it flushes at exit.
        discard(sys.stdout)
        return FAILED
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError):
            from packline.storage.local import plain_error

            if (plain := plain_error(error)) is not None:
                output.error(type(plain).__name__, plain.message, plain.hint)
                return FAILED
        hint = "this should not happen: --debug shows where it did"
        output.error(type(error).__name__, f"{type(error).__name__}: {error}", hint)
        return FAILED


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):  # without the modules that parse a command line
        output.line(packline.__version__)
        return DONE
    from cyclopts import CycloptsError

    try:
        code = make_app()(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from packline.cli.usage import describe

        output.error("UsageError", *describe(error, arguments))
        return USAGE
    return code if isinstance(code, int) else DONE


def interrupted(error: KeyboardInterrupt, kept: str) -> int:
    """Report what is kept and how to resume; return the exit code.

    Args:
        error: the interruption.
        kept: description of the work that is kept.
    """
    command = command_line()
    output.interrupted(kept, f"resume with: {command}", command=command)
    return 128 + signal_of(error)


def note_command(out: str, units: int) -> None:
    """Record in the work folder of a job how to resume it, for `packline status`."""
    from packline.jobs.work import Command, remember_command, work_folder
    from packline.storage.places import is_remote, without_secrets

    line = shlex.join(map(without_secrets, shlex.split(command_line())))
    command = Command(line, os.getcwd(), units)
    if is_remote(out):
        from packline.jobs.driver import record_command

        record_command(out, command)
    else:
        remember_command(work_folder(out), command)


def command_line() -> str:
    """Command line of this process, quoted for a shell."""
    program, *words = sys.argv
    if program.endswith("__main__.py"):
        return shlex.join([sys.executable, "-m", "packline", *words])
    found = shutil.which(Path(program).name)
    same = found is not None and Path(found).resolve() == Path(program).resolve()
    return shlex.join([Path(program).name if same else program, *words])
