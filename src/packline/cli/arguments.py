"""The options of `build`, and those of every command.

Options exist only for settings that users vary from the command line; everything else, and more than one
source, belongs in a recipe (docs/recipe.md). An option that is not given leaves the recipe's setting
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from cyclopts import Group, Parameter, Token

from packline.errors import RecipeError
from packline.jobs.machines import On, Ray, parse_slice
from packline.quantities import parse_count, parse_length
from packline.recipe import Engine, Format, Recipe, RunOptions
from packline.settings import make_recipe
from packline.toml import is_toml

MAIN = Group("Main", sort_key=5)
DOCUMENTS = Group("Documents", sort_key=10)
TOKENS = Group("Tokens", sort_key=20)
SPLITS = Group("Splits and limits", sort_key=30)
RUNNING = Group("Running", sort_key=40)
OUTPUT = Group("Output", sort_key=50)

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

Inputs = Annotated[
    str,
    Parameter(help="Files, folders, globs or URIs (s3://, hf://, ...) of text; or one recipe (.toml)."),
]


def _converter(parse: Callable[[str], int]) -> Parameter:
    """Conversion of an option's value by a function of its text."""

    def convert(_: Any, tokens: Sequence[Token]) -> int:
        try:
            return parse(tokens[0].value)
        except RecipeError as error:
            raise ValueError(f"{error.message}\n{error.hint}") from error

    return Parameter(converter=convert)


Count = Annotated[int, _converter(parse_count)]
"""A number of things: 20000, 20k, 2B."""
Length = Annotated[int, _converter(parse_length)]
"""A number of tokens in a row, a document or a vocabulary: 4096, 4k."""


def option(help: str, group: Group, **more: Any) -> Parameter:
    """An option without effect unless given."""
    return Parameter(help=help, group=group, negative="", show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class _Given:
    """Options by the names of settings; None for those not given."""

    def given(self) -> dict[str, Any]:
        """The given options."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings(_Given):
    """Settings of a build that are varied from the command line; None for those not given."""

    tokenizer: Annotated[
        str | None,
        option("gpt2, a hub id, a tokenizer.json, a folder with one, a .tiktoken or .model file.", MAIN),
    ] = None
    eod: Annotated[
        str | None,
        option(
            "End-of-document token: its string or id. Default: the tokenizer's, if it has just one.", TOKENS
        ),
    ] = None
    bos: Annotated[
        str | None, option("Begin-of-document token: its string or id. Default: none.", TOKENS)
    ] = None
    engine: Annotated[
        Engine | None,
        option("Engine of the encoder. Default: auto. The store does not depend on it.", RUNNING),
    ] = None
    text: Annotated[
        str | None,
        option(
            "Field of the text, a.b for a nested one. Default: text, content, article or document.", DOCUMENTS
        ),
    ] = None
    template: Annotated[
        str | None, option("Template of the text, instead of --text: '{{ title }}: {{ body }}'.", DOCUMENTS)
    ] = None
    id: Annotated[str | None, option("Field of a document's id. Default: id.", DOCUMENTS)] = None
    format: Annotated[
        Format | None,
        option("Format of the files. Default: auto, by content and name.", DOCUMENTS),
    ] = None
    documents: Annotated[
        Literal["file", "line"] | None,
        option("Plain text: one document per file or per line. Default: file.", DOCUMENTS),
    ] = None
    separator: Annotated[
        str | None, option(r"Plain text: separator between documents. \n and \t are escapes.", DOCUMENTS)
    ] = None
    charset: Annotated[
        str | None, option("Plain text: its encoding, such as latin-1 or utf-16. Default: UTF-8.", DOCUMENTS)
    ] = None
    where: Annotated[
        str | None,
        option("Only records that meet a condition: \"score >= 3 and lang in ['en', 'de']\".", DOCUMENTS),
    ] = None
    columns: Annotated[
        str | None,
        option('Fields to carry along, with types where they matter: "url,score: float".', DOCUMENTS),
    ] = None
    val_fraction: Annotated[
        float | None, option("Fraction of documents for validation. Default: 0.", SPLITS)
    ] = None
    val_documents: Annotated[
        Count | None,
        option("Number of documents for validation, instead of a fraction; reads the inputs twice.", SPLITS),
    ] = None
    limit_documents: Annotated[Count | None, option("Stop after the first N documents.", SPLITS)] = None
    limit_tokens: Annotated[
        Count | None, option("Stop before the document that would exceed N tokens.", SPLITS)
    ] = None
    max_bad_fraction: Annotated[
        float | None,
        option("Fraction of bad records above which the exit code is 3. Default: 0.01.", RUNNING),
    ] = None
    strict: Annotated[bool | None, option("Stop at the first bad record.", RUNNING)] = None
    workers: Annotated[
        int | None,
        option("Number of processes. Default: one per usable core; this one for little text.", RUNNING),
    ] = None
    memory: Annotated[
        str | None,
        option("Memory limit for all processes together, e.g. 8GiB. Default: 1GiB per worker.", RUNNING),
    ] = None

    def as_settings(self) -> dict[str, Any]:
        """The given settings, by the field names of recipe and run options.

        >>> Settings(eod="7", separator="\\\\n\\\\n").as_settings()
        {'eod': 7, 'separator': '\\n\\n', 'documents': 'separator'}
        """
        given = self.given()
        given.pop("tokenizer", None)
        for name in ("eod", "bos"):
            if name in given:
                given[name] = _token(given[name])
        if "columns" in given:
            given["columns"] = split_columns(given["columns"])
        if "separator" in given:
            given["separator"] = re.sub(r"\\([ntr\\])", lambda match: ESCAPES[match[1]], given["separator"])
            given.setdefault("documents", "separator")
        return given


OnName = Annotated[
    Literal["local", "ray"] | None,
    option("Run on this machine (default), or on all nodes of the Ray cluster at $RAY_ADDRESS.", RUNNING),
]


def place_of(on: str | None) -> On:
    """Place of a job without receipts."""
    return Ray() if on == "ray" else "local"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlaceArguments:
    """Place of a job that keeps receipts; None for options that are not given."""

    on: OnName = None
    slice: Annotated[
        str | None, option("Run part i of n; other machines run the others: --slice 3/8.", RUNNING)
    ] = None
    join: Annotated[
        bool, option("Help a job that runs elsewhere: run units that it has not committed.", RUNNING)
    ] = False

    def place(self) -> On:
        """Place of the job.

        Raises:
            RecipeError: a slice that does not exist, or a slice of a cluster.
        """
        if self.slice is None and not self.join:
            return place_of(self.on)
        if self.on == "ray":
            raise RecipeError("--slice and --join divide a job among machines, and --on ray does so itself")
        if self.slice is not None and self.join:
            raise RecipeError("--slice i/n runs its part and then helps: expected it without --join")
        return parse_slice(self.slice or "0/1")


def recipe_of(inputs: tuple[str, ...], settings: Settings) -> tuple[Recipe, RunOptions]:
    """Recipe for a command line.

    Raises:
        RecipeError: settings are invalid.
    """
    if not inputs:
        raise RecipeError("no inputs", hint="name files, folders or URIs of text, or one recipe (.toml)")
    recipe, options = make_recipe(list(inputs), settings.tokenizer, settings.as_settings())
    if is_toml(inputs[0]):
        return recipe, options
    (whole,) = recipe.sources
    sources = tuple(msgspec.structs.replace(whole, inputs=part) for part in divide(inputs))
    return msgspec.structs.replace(recipe, sources=sources), options


MOST_SOURCES = 16
"""Most inputs on a command line that are sources; more are one."""


def divide(inputs: Sequence[str]) -> list[tuple[str, ...]]:
    """Inputs of each source: an input each, except files in one folder whose names differ in digits alone.

    >>> divide(["zh.jsonl", "ja.jsonl", "books/"])
    [('zh.jsonl',), ('ja.jsonl',), ('books/',)]
    >>> divide(["web/part-000.jsonl", "web/part-001.jsonl", "code.parquet"])
    [('web/part-000.jsonl', 'web/part-001.jsonl'), ('code.parquet',)]
    """
    groups: dict[str, list[str]] = {}
    for given in inputs:
        folder, slash, name = given.rpartition("/")
        groups.setdefault(folder + slash + re.sub(r"\d+", "0", name), []).append(given)
    return [tuple(group) for group in groups.values()] if len(groups) <= MOST_SOURCES else [tuple(inputs)]


def split_columns(given: str | None) -> tuple[str, ...]:
    """Columns separated by commas.

    >>> split_columns("url, score: float")
    ('url', 'score: float')
    """
    return tuple(name.strip() for name in given.split(",")) if given is not None else ()


def _token(word: str) -> str | int:
    """Read a number as an id. (A token called `7` can be named in a recipe, where `"7"` is a string.)"""
    return int(word) if word.isascii() and word.isdigit() else word


ROWS = Group("Rows", sort_key=15)
CHOICE = Group("Choice of documents", sort_key=20)


OF_ROWS = {
    "seq_len": "Tokens per row.",
    "packing": "Default: concat.",
    "batch_size": "Rows per global batch.",
    "seed": "Seed for the order of rows. Default: 0; export to npz, pt: as packed.",
    "in_order": "Rows as packed, in stored order.",
    "epochs": "Number of epochs. Default: 1.",
}
OF_DOCUMENTS = {
    "split": "train, val, test or all. Default: all; with --seq-len: train.",
    "labels": "Only documents with this label. May be repeated.",
    "sources": "Only documents of this source. May be repeated.",
    "min_tokens": "Only documents with at least N tokens.",
    "max_tokens": "Only documents with at most N tokens.",
    "where": "Only documents that meet a condition: \"score >= 3 and lang in ['en', 'de']\".",
    "unique": "Only the first of documents with equal texts.",
    "exclude": "Leave out a list of documents, as verify and analyze --write it. May be repeated.",
    "shuffle_documents": "Seed of a shuffle of documents. Default: as stored.",
}
"""Help of the options for settings of `ExportChoice`, which declares them; a run file has more."""
NAMES = {"labels": "--label", "sources": "--source"}


def _made_of_choice(helps: dict[str, str], group: Group) -> Any:
    """Class of options for these settings, with the types that they have in `ExportChoice`."""
    from packline.packing.options import ExportChoice

    kinds = get_type_hints(ExportChoice)
    made = []
    for name, help in helps.items():
        more = {"name": NAMES[name]} if name in NAMES else {}
        kind = _kind_of_option(name, kinds[name])
        made.append((name, Annotated[kind | None, option(help, group, **more)], field(default=None)))
    return make_dataclass("_Options", made, bases=(_Given,), frozen=True, kw_only=True)


def _kind_of_option(name: str, kind: Any) -> Any:
    """Type of an option: one value of a list at a time, and `4k` for numbers of tokens and rows."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    if any(get_origin(one) is tuple for one in kinds):
        return bool if bool in kinds else list[str]
    if int in kinds:
        return {"batch_size": Count, "seed": int, "shuffle_documents": int, "epochs": int}.get(name, Length)
    return kinds[0]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RowArguments(_made_of_choice(OF_ROWS, ROWS)):  # type: ignore[misc]
    """Rows of a store, and their order. A run file has more settings."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DocumentArguments(_made_of_choice(OF_DOCUMENTS, CHOICE)):  # type: ignore[misc]
    """Choice and order of documents."""

    run: Annotated[
        str | None, option("Run file whose settings of this store are taken; options override them.", CHOICE)
    ] = None

    def settings(self, store: str, *, rows: bool) -> dict[str, Any]:
        """The given options, on top of the settings that a run file has for a store.

        Args:
            store: folder of the store.
            rows: True: with the run file's settings of rows.

        Raises:
            RecipeError: the run file does not read the store, or reads it in several ways.
        """
        given = self.given()
        run = given.pop("run", None)
        if run is None:
            return given
        if is_toml(store):
            raise RecipeError(f"--run is for a store: {store} has its own settings", hint="leave it out")
        from packline.loading.run_file import settings_of_store

        return settings_of_store(run, store, rows=rows) | given
