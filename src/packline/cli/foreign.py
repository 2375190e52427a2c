"""Shared parts of the commands that read other projects' data sets: reading options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from packline.cli.arguments import MAIN, TOKENS, _token, option
from packline.cli.exporting import options_of
from packline.errors import RecipeError
from packline.formats.import_ import ImportRequest


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
