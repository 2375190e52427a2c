"""The `packline` command: its subcommands, and the handling of errors.

    0    done
    1    an error while running, also of writing the result; `verify`: problems found
    2    an invalid command line or recipe
    3    done, but more bad records than --max-bad-fraction
    4    `verify --against`: nothing was found, but not every question could be checked
    129  interrupted by SIGHUP: the terminal was closed
    130  interrupted by SIGINT: Ctrl-C
    143  interrupted by SIGTERM

The module of a command is imported only when it is called.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import keyword
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import packline
from packline.cli.output import discard, output
from packline.errors import OutputError, PacklineError, RecipeError, UnitsLeft
from packline.jobs.signals import interrupt_on_signals, signal_of

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

DONE, FAILED, USAGE, TOO_MANY_BAD, UNCHECKED = 0, 1, 2, 3, 4

SUMMARY = """Raw text to training-ready tokens: fast, exact, crash-proof and
traceable to the source."""

OF_EVERY_COMMAND = """Every command: --json writes one JSON object as the last line of standard
output, -q or --quiet leaves out progress and summaries, --debug shows the
traceback of an error."""
VARIABLES = ("PACKLINE_SCRATCH", "PACKLINE_ONE_WRITER")
"""Environment variables that a command to resume a job has to repeat."""
GLOBAL = ("--json", "--quiet", "-q", "--debug")

SUMMARY_END = f"""{OF_EVERY_COMMAND}

Examples:

  packline demo
  packline build corpus/ --tokenizer gpt2 --out store
  packline info store

Help on a command: packline COMMAND --help"""

COMMANDS = {
    "Start": {
        "demo": "Build, verify and show a store of Python's own library. No network.",
        "init": "Write a first recipe, or a run file.",
    },
    "Make a store": {
        "build": "Turn text into a token store.",
        "status": "Show the progress of a job.",
        "sft": "Turn conversations into a token store with a loss mask.",
        "merge": "Combine several stores into one, by hard links.",
    },
    "Look at it": {
        "info": "Show the contents of a store, or what a run reads.",
        "view": "Show the tokens of a document, a row or a batch, or list documents.",
        "serve": "Show stores and runs in a browser.",
    },
    "Check it": {
        "verify": "Check a store, or another project's dataset, from its files alone.",
        "analyze": "Count the tokens of a store, a dataset or a batch, and find bad documents.",
        "diff": "Show what differs between two stores, or between two run files.",
    },
    "Train": {
        "trace": "Show the documents of a batch, or the batches of a document.",
        "export": "Write a store, a run or text in the layout of another project.",
    },
    "Other formats": {
        "formats": "List the supported formats, or describe one.",
        "import": "Turn another project's dataset into a store.",
    },
    "Tokenizers and evaluation sets": {
        "tokenizer": "Train a tokenizer, compare it with others, check it, write it for a trainer.",
        "evals": "Tokenize evaluation sets and mark the scored tokens.",
    },
    "Move and publish": {
        "push": "Send a store, an export or a folder to the hub or an object store.",
        "pull": "Fetch a store, an export or a folder from the hub or an object store.",
    },
}
"""Commands by topic, in the order of `packline --help`, and the first line of the help page of each."""

WRITING = ("build", "sft", "merge", "init", "export", "import", "evals", "push", "pull", "demo")
"""Commands whose result is files; with --quiet they print nothing."""


MODULES = {"pull": "transfer", "push": "transfer", "status": "progress"}
"""Modules of commands that share one."""


def _place(name: str) -> str:
    word = f"{name}_" if keyword.iskeyword(name) else name
    return f"packline.cli.{MODULES.get(name, word)}:{word}"


def load_command(name: str) -> Any:
    """A command: a function, or the App of the commands within it."""
    module, _, word = _place(name).partition(":")
    return getattr(importlib.import_module(module), word)


def page_of(command: Any) -> dict[str, str]:
    """Help page of a function, or of the module whose functions are commands within a command."""
    import inspect  # cyclopts has loaded it, which `packline --version` does without

    purpose, _, lines = (inspect.getdoc(command) or "").partition("\n\nExamples:")
    return {"help": purpose, "help_epilogue": f"{OF_EVERY_COMMAND}\n\nExamples:{lines}"}


def make_app(command: str = "") -> App:
    """Create the command line."""
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
    for place, (topic, commands) in enumerate(COMMANDS.items()):
        group = Group(topic, sort_key=place)
        for order, (name, summary) in enumerate(commands.items()):
            found: Any = _place(name)
            page = {"help": summary}
            if name == command and isinstance(loaded := load_command(name), FunctionType):
                found, page = loaded, page_of(loaded)
            app.command(found, name=name, group=group, sort_key=order, **page)
    options = Group("Options", sort_key=len(COMMANDS))
    if not command or command.startswith("-"):  # loads what other commands need not
        app.register_install_completion_command(
            help="Install completion of commands and options for bash, zsh or fish.", group=options
        )
    app["--help"].group = app["--version"].group = options
    app["--version"].help = "Show the version."
    app["--help"].help = "Show this page, or with a command its own."
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    if arguments is None:  # this process ends with the command, so collecting garbage then is of no use
        atexit.register(gc.freeze)
        gc.set_threshold(100_000)  # a tokenizer has 300,000 objects, which would be scanned again and again
        arguments = sys.argv[1:]
    options, words = split_global(arguments)
    quiet = "-q" in options or "--quiet" in options
    command = next(iter(words), "")
    output.configure(as_json="--json" in options, quiet=quiet, mute=quiet and command in WRITING)
    interrupt_on_signals()
    if debug := "--debug" in options:
        os.environ["PACKLINE_DEBUG"] = "1"
    try:
        return _run(words)
    except UnitsLeft as left:
        output.note(f"{left.message}: {left.hint}")
        return output.result(command, published=False, message=left.message)
    except PacklineError as error:
        if debug:
            raise
        with contextlib.suppress(OutputError, BrokenPipeError):  # for an error on standard output too
            output.error(type(error).__name__, error.message, error.hint)
        return USAGE if isinstance(error, RecipeError) else FAILED
    except KeyboardInterrupt as error:
        kept, resume = "".join(getattr(error, "__notes__", ())), command_line()
        with contextlib.suppress(OutputError, BrokenPipeError):
            if kept:
                output.interrupted(kept, f"resume with: {resume}", command=resume)
            else:
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


def split_global(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Options of every command, and the other words; after `--` all words are inputs.

    >>> split_global(["info", "store", "--json", "--", "-q"])
    ({'--json'}, ['info', 'store', '--', '-q'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own = [word for word in arguments[:end] if word not in GLOBAL]
    return {*arguments[:end]} & {*GLOBAL}, [*own, *arguments[end:]]


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):  # without the modules that parse a command line
        output.line(packline.__version__)
        return DONE
    from cyclopts import CycloptsError

    try:
        code = make_app(next(iter(arguments), ""))(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        output.error("UsageError", *_describe(error, arguments))
        return USAGE
    return code if isinstance(code, int) else DONE


@contextlib.contextmanager
def resumable(kept: Callable[[], str]) -> Iterator[None]:
    """Let the job that runs meanwhile record how to resume it, and an interruption say what is kept."""
    from packline.jobs.work import Command, Resuming
    from packline.storage.places import without_secrets

    words = list(map(without_secrets, shlex.split(command_line())))
    if "--slice" in words:  # what is left may be of other slices
        at = words.index("--slice")
        del words[at : at + 2]
    words = [word for word in words if not word.startswith("--slice=")]
    Resuming.command = Command(shlex.join(words), os.getcwd())
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(kept())
        raise
    finally:
        Resuming.command = None


def command_line() -> str:
    """Command line of this process, quoted for a shell, with the variables that it depends on."""
    program, *words = sys.argv
    found = shutil.which(Path(program).name)
    if program.endswith("__main__.py"):
        words = [sys.executable, "-m", "packline", *words]
    elif found is not None and Path(found).resolve() == Path(program).resolve():
        words = [Path(program).name, *words]
    else:
        words = [program, *words]
    given = (f"{name}={shlex.quote(os.environ[name])} " for name in VARIABLES if os.environ.get(name))
    return "".join(given) + shlex.join(words)


NOW = {
    "dedup": "packline analyze, and --unique where rows are made",
    "decontaminate": "packline verify --against",
    "inspect": "packline view",
    "preprocess": "packline build",
    "tokenize": "packline build",
    "prepare": "packline build",
    "stats": "packline analyze",
    "ls": "packline info",
}
"""Commands that people look for, and what does it."""


def _describe(error: CycloptsError, words: Sequence[str]) -> tuple[str, str]:
    """Message and hint for a wrong command line."""
    from cyclopts import CoercionError, MissingArgumentError, UnknownOptionError
    from cyclopts.exceptions import UnknownCommandError, UnusedCliTokensError

    chain = list(error.command_chain or ())
    message, hint = " ".join(str(error).split()), ""
    if isinstance(error, UnknownCommandError) and not chain and words[0] in NOW:
        message, hint = f"packline has no command {words[0]!r}", f"{NOW[words[0]]} does it"
    elif isinstance(error, UnknownOptionError):
        hint = _place_of_setting((error.token.keyword or error.token.value).partition("=")[0], chain)
    elif isinstance(error, MissingArgumentError | UnusedCliTokensError):
        hint = sample_line(chain)
    elif isinstance(error, CoercionError) and (own := str(error.__context__ or "").partition("\n"))[2]:
        message, hint = f"{error.token.keyword if error.token else ''}: {own[0]}", own[2]  # of a converter
    return message, hint or f"{' '.join(['packline', *chain])} --help shows what there is"


def _place_of_setting(option: str, chain: Sequence[str]) -> str:
    """Place of a setting that is no option: a recipe or a run file; empty if there is none."""
    from packline.packing.options import RowOptions
    from packline.recipe import Recipe, Source

    name = option.removeprefix("--").replace("-", "_")
    if chain == ["build"] and name in {*Recipe.__struct_fields__, *Source.__struct_fields__}:
        return f"write {name} = ... in a recipe: packline init drafts one"
    of_runs = {*RowOptions.__struct_fields__, "order", "block_rows", "window_blocks"}
    if chain and chain[0] in ("export", "info", "trace", "view") and name in of_runs:
        return f"write {name} = ... in a run file: packline init --run STORE drafts one"
    return ""


def sample_line(chain: Sequence[str]) -> str:
    """First example of the command's help page."""
    if not chain:
        return "packline --help"
    command = load_command(chain[0])
    page = (
        page_of(command)["help_epilogue"] if isinstance(command, FunctionType) else str(command.help_epilogue)
    )
    lines = page.replace(" \\\n     ", "")
    line = re.search(rf"^ +(packline {' '.join(chain)} .*)$", lines, re.MULTILINE)
    return f"for example: {line[1]}" if line else f"{' '.join(['packline', *chain])} --help"
