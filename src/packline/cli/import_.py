"""`packline import`: another project's data set becomes a store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import MAIN, RUNNING, TOKENS, PlaceArguments, _token, option
from packline.cli.exporting import options_of
from packline.cli.imported import dry_run as show_plan
from packline.cli.imported import finished_lines, import_interrupted
from packline.cli.main import DONE
from packline.cli.output import output
from packline.cli.progress import Tally, watch
from packline.errors import RecipeError
from packline.formats.import_ import ImportRequest, plan_import, run_import
from packline.jobs.store_job import Imported


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options for reading a data set of another project; None for those not given."""

    from_: Annotated[
        str | None,
        option(
            "Format of the dataset; `packline formats` lists them. Default: detected.", MAIN, name="--from"
        ),
    ] = None
    tokenizer: Annotated[
        str | None, option("Tokenizer that made the ids: a tokenizer.json, a hub id, ...", MAIN)
    ] = None
    eod: Annotated[
        str | None,
        option("End-of-document token: its string or id. Default: from the data or the tokenizer.", TOKENS),
    ] = None
    bos: Annotated[
        str | None, option("Begin-of-document token: its string or id. Default: none.", TOKENS)
    ] = None
    set: Annotated[
        list[str] | None,
        option("Option of the format to read: NAME=VALUE, a list as NAME=A,B. May be repeated.", MAIN),
    ] = None

    def boundary(self) -> tuple[str | int | None, str | int | None]:
        """End and beginning of documents; a number is an id."""
        return (
            None if self.eod is None else _token(self.eod),
            None if self.bos is None else _token(self.bos),
        )

    def options(self) -> dict[str, Any]:
        """Options of the format, by name."""
        return options_of(self.set)

    def request(self, path: str, out: str, workers: int | None) -> ImportRequest:
        """Request for an import.

        Raises:
            RecipeError: no tokenizer is given.
        """
        if self.tokenizer is None:
            raise RecipeError("no tokenizer", hint="name the one that made the ids with --tokenizer")
        eod, bos = self.boundary()
        return ImportRequest(path, self.from_, self.tokenizer, out, eod, bos, self.options(), workers)


_PLACE, _READING = PlaceArguments(), Reading()


def import_(
    path: Annotated[str, Parameter(help="File or folder of the dataset.")],
    /,
    *,
    out: Annotated[
        str, Parameter(help="Output folder, or URI: new, empty, or with this import unfinished.", alias="-o")
    ],
    dry_run: Annotated[bool, option("Show what would be read; write nothing.", MAIN)] = False,
    reading: Reading = _READING,
    workers: Annotated[
        int | None, option("Number of processes. Default: one per usable core; 0 for little data.", RUNNING)
    ] = None,
    place: PlaceArguments = _PLACE,
) -> int:
    r"""Turn another project's dataset into a store.

    PATH is its file or folder, and --tokenizer the tokenizer that made its ids.
    Every id and the boundary tokens of every document are checked; damage is an
    error that names the place, and no store is written. After an interruption the
    same command resumes the import.

    Examples:

      packline import data --from megatron --tokenizer gpt2/tokenizer.json \
          --out store
      packline import shards --from llmc --tokenizer gpt2/tokenizer.json \
          --set edges=bos --out store
      packline import data.ds --from datatrove --tokenizer Qwen/Qwen3-8B \
          --eod '<|endoftext|>' --out store
    """
    request = reading.request(path, out, workers)
    if dry_run:
        return show_plan("import", out, partial(plan_import, request))
    tally = Tally()
    try:
        with watch(tally, out) as hear:
            imported = run_import(request, hear, place.place())
    except KeyboardInterrupt as error:
        return import_interrupted(error, tally)
    output.lines(finished_lines(imported, out))
    output.result(facts(imported, tally, path, out))
    return DONE


def facts(imported: Imported, tally: Tally, path: str, out: str) -> dict[str, Any]:
    """Results of a finished import as values for JSON output."""
    manifest = imported.manifest
    return {
        "command": "import",
        "path": path,
        "store": out,
        "exit_code": DONE,
        "nothing_to_do": imported.nothing_to_do,
        "imported": msgspec.to_builtins(manifest.imported),
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "text_bytes": manifest.ledger.text_bytes,
        "unfinished": imported.unfinished,
        "shards": len(manifest.shards),
        "seconds": imported.seconds,
        "units_done_before": tally.planned.units_done if tally.planned else 0,
        "workers": tally.planned.workers if tally.planned else 0,
        "notes": tally.notes,
    }
