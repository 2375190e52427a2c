"""The options of `build`, and those of several commands.

Options exist only for settings that users vary from the command line; everything else belongs in a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from cyclopts import Group, Parameter, Token

from packline.conversion import is_toml
from packline.errors import RecipeError
from packline.jobs.machines import On, Ray, parse_slice
from packline.packing.options import ExportChoice
from packline.quantities import LENGTHS, parse_count, parse_length
from packline.recipe import Recipe, RunOptions, Source
from packline.settings import make_recipe

MAIN = Group("Main", sort_key=5)
DOCUMENTS = Group("Documents", sort_key=10)
TOKENS = Group("Tokens", sort_key=20)
SPLITS = Group("Splits and limits", sort_key=30)
RUNNING = Group("Running", sort_key=40)
OUTPUT = Group("Output", sort_key=50)
FOREIGN = Group("Datasets of other projects", sort_key=12)

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

Inputs = Annotated[
    str,
    Parameter(help="Files, folders, globs or URIs (s3://, hf://, ...) of text; or one recipe (.toml)."),
]


def _converter(parse: Callable[[str], Any]) -> Parameter:
    """Conversion of an option's value by a function of its text."""

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        try:
            return parse(tokens[0].value)
        except RecipeError as error:
            raise ValueError(f"{error.message}\n{error.hint}") from error

    return Parameter(converter=convert)


def split_columns(given: str) -> tuple[str, ...]:
    """Columns separated by commas."""
    return tuple(name.strip() for name in given.split(","))


def unescape(given: str) -> str:
    """A separator with its escapes replaced."""
    return re.sub(r"\\([ntr\\])", lambda match: ESCAPES[match[1]], given)


def read_token(word: str) -> str | int:
    """Read a number as an id. (A token called `7` can be named in a recipe, where `"7"` is a string.)"""
    return int(word) if word.isascii() and word.isdigit() else word


Count = Annotated[int, _converter(parse_count)]
"""A number of things: 20000, 20k, 2B."""
Length = Annotated[int, _converter(parse_length)]
"""A number of tokens in a row, a document or a vocabulary: 4096, 4k."""
TokenName = Annotated[str, _converter(read_token)]
"""A token: its string, or the digits of its id, which arrive as a number."""


def option(help: str, group: Group, **more: Any) -> Parameter:
    """An option without effect unless given."""
    return Parameter(help=help, group=group, negative="", show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Options by the names of settings; None for those not given."""

    def given(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


NAMES = {"labels": "--label", "sources": "--source"}
WRITTEN: dict[str, Any] = {
    "columns": Annotated[str, _converter(split_columns)],
    "separator": Annotated[str, _converter(unescape)],
}
"""Types of options that are written otherwise than in a file."""


def make_options(structs: Sequence[Any], helps: dict[Group, dict[str, str]]) -> Any:
    """Class of options for settings of structs, which have their types; numbers as in TOML files."""
    types = {name: kind for struct in structs for name, kind in get_type_hints(struct).items()}
    made = []
    for group, settings in helps.items():
        for name, help in settings.items():
            more = {"name": NAMES[name]} if name in NAMES else {}
            kind = WRITTEN.get(name) or _kind_of_option(name, types[name])
            made.append((name, Annotated[kind | None, option(help, group, **more)], field(default=None)))
    return make_dataclass("_Options", made, bases=(Given,), frozen=True, kw_only=True)


def _kind_of_option(name: str, kind: Any) -> Any:
    """Type of an option: one value of a list at a time."""
    kinds = [one for one in get_args(kind) or (kind,) if one not in (type(None), msgspec.UnsetType)]
    if get_origin(kind) is Literal:
        return kind
    if any(get_origin(one) is tuple for one in kinds):
        return bool if bool in kinds else list[str]
    if int in kinds:
        return TokenName if str in kinds else Length if name in LENGTHS else Count
    return kinds[0]


OF_BUILD = {
    MAIN: {
        "tokenizer": "gpt2, a hub id, a tokenizer.json, a folder with one, a .tiktoken or .model file.",
    },
    TOKENS: {
        "eod": "End-of-document token: its string or id. Default: the tokenizer's, if it has just one.",
        "bos": "Begin-of-document token: its string or id. Default: none.",
    },
    DOCUMENTS: {
        "text": "Field of the text, a.b for a nested one. Default: text, content, article or document.",
        "template": "Template of the text, instead of --text: '{{ title }}: {{ body }}'.",
        "id": "Field of a document's id. Default: id.",
        "format": "Format of the files. Default: auto, by content and name.",
        "documents": "Plain text: one document per file or per line. Default: file.",
        "separator": r"Plain text: separator between documents. \n and \t are escapes.",
        "charset": "Plain text: its encoding, such as latin-1 or utf-16. Default: UTF-8.",
        "where": "Only records that meet a condition: \"score >= 3 and lang in ['en', 'de']\".",
        "columns": 'Fields to carry along, with types where they matter: "url,score: float".',
    },
    SPLITS: {
        "val_fraction": "Fraction of documents for validation. Default: 0.",
        "val_documents": "Number of documents for validation, instead of a fraction; reads the inputs twice.",
        "limit_documents": "Stop after the first N documents.",
        "limit_tokens": "Stop before the document that would exceed N tokens.",
    },
    RUNNING: {
        "engine": "Engine of the encoder. Default: auto. The store does not depend on it.",
        "max_bad_fraction": "Fraction of bad records above which the exit code is 3. Default: 0.01.",
        "strict": "Stop at the first bad record.",
        "workers": "Number of processes. Default: one per usable core; this one for little text.",
    },
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings(make_options((Source, Recipe, RunOptions), OF_BUILD)):  # type: ignore[misc]
    """Settings of a build that are varied from the command line; None for those not given."""

    memory: Annotated[
        str | None,
        option("Memory limit for all processes together, e.g. 8GiB. Default: 1GiB per worker.", RUNNING),
    ] = None


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
        """Place of the job."""
        if self.slice is None and not self.join:
            return place_of(self.on)
        if self.on == "ray":
            raise RecipeError("--slice and --join divide a job among machines, and --on ray does so itself")
        if self.slice is not None and self.join:
            raise RecipeError("--slice i/n runs its part and then helps: expected it without --join")
        return parse_slice(self.slice or "0/1")


def recipe_of(inputs: tuple[str, ...], settings: Settings) -> tuple[Recipe, RunOptions]:
    """Recipe for a command line."""
    if not inputs:
        raise RecipeError("no inputs", hint="name files, folders or URIs of text, or one recipe (.toml)")
    given = settings.given()
    if "separator" in given:
        given.setdefault("documents", "separator")
    recipe, options = make_recipe(list(inputs), given.pop("tokenizer", None), given)
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RowArguments(make_options((ExportChoice,), {ROWS: OF_ROWS})):  # type: ignore[misc]
    """Rows of a store, and their order. A run file has more settings."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DocumentArguments(make_options((ExportChoice,), {CHOICE: OF_DOCUMENTS})):  # type: ignore[misc]
    """Choice and order of documents."""

    run: Annotated[
        str | None, option("Run file whose settings of this store are taken; options override them.", CHOICE)
    ] = None

    def settings(self, store: str, *, rows: bool) -> dict[str, Any]:
        """The given options, on top of the settings that a run file has for a store."""
        given = self.given()
        run = given.pop("run", None)
        if run is None:
            return given
        if is_toml(store):
            raise RecipeError(f"--run is for a store: {store} has its own settings", hint="leave it out")
        from packline.loading.run_file import settings_of_store

        return settings_of_store(run, store, rows=rows) | given


def options_of(words: list[str] | None) -> dict[str, Any]:
    """Options of a format from `name=value` words.

    >>> options_of(["files=single", "shard_tokens=1_000"])
    {'files': 'single', 'shard_tokens': '1_000'}
    """
    options: dict[str, Any] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise RecipeError(f"--set {word}: expected name=value", hint="--set shard_tokens=50000000")
        options[name.replace("-", "_")] = value
    return options


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options for reading a data set of another project; None for those not given."""

    from_: Annotated[
        str | None,
        option(
            "Format of the dataset; `packline formats` lists them. Default: detected; verify needs it.",
            FOREIGN,
            name="--from",
        ),
    ] = None
    tokenizer: Annotated[
        str | None, option("Tokenizer that made the ids: a tokenizer.json, a hub id, ...", FOREIGN)
    ] = None
    eod: Annotated[
        TokenName | None,
        option("End-of-document token: its string or id. Default: from the data or the tokenizer.", FOREIGN),
    ] = None
    bos: Annotated[
        TokenName | None, option("Begin-of-document token: its string or id. Default: none.", FOREIGN)
    ] = None
    set: Annotated[
        list[str] | None,
        option("Option of the format to read: NAME=VALUE, a list as NAME=A,B. May be repeated.", FOREIGN),
    ] = None

    def options(self) -> dict[str, Any]:
        return options_of(self.set)
