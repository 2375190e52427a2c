"""The options of `build`, and those of every command.

Options exist only for settings that users vary from the command line; everything else, and more than one
source, belongs in a recipe (docs/recipe.md). An option that is not given leaves the recipe's setting
unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter, Token

from packline.errors import RecipeError
from packline.jobs.on import On, Ray, parse_slice
from packline.quantities import parse_bytes, parse_count, parse_length
from packline.recipe import Recipe, RunOptions
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """Options of every command."""

    json: Annotated[bool, option("One JSON object as the last line of standard output.", OUTPUT)] = False
    quiet: Annotated[
        bool, option("No progress, and no summary of what was written; errors remain.", OUTPUT, alias="-q")
    ] = False
    debug: Annotated[bool, option("Show the traceback of an error.", OUTPUT)] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Build and run settings; None for those not given."""

    tokenizer: Annotated[
        str | None,
        option("gpt2, a hub id, a tokenizer.json, a folder with one, a .tiktoken or .model file.", MAIN),
    ] = None
    encoding: Annotated[
        str | None,
        option(
            "Encoding of a .tiktoken file whose name does not reveal it.", TOKENS, name="--tiktoken-encoding"
        ),
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
    special_tokens: Annotated[
        Literal["text", "parse", "reject"] | None,
        option(
            "Treat special-token strings in documents as text (default), control tokens, or bad records.",
            TOKENS,
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "gigatoken", "fastokens", "nanotoken", "tokenizers"] | None,
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
        Literal["auto", "jsonl", "parquet", "text"] | None,
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
    newlines: Annotated[
        Literal["unix"] | None, option("Plain text: make all line ends those of Unix.", DOCUMENTS)
    ] = None
    one_source: Annotated[
        bool | None, option("Make several inputs one source. Default: a source per input.", DOCUMENTS)
    ] = None
    label: Annotated[str | None, option("Label stored with every document.", DOCUMENTS)] = None
    where: Annotated[
        str | None,
        option("Only records that meet a condition: \"score >= 3 and lang in ['en', 'de']\".", DOCUMENTS),
    ] = None
    columns: Annotated[
        str | None,
        option('Fields to carry along, with types where they matter: "url,score: float".', DOCUMENTS),
    ] = None
    min_chars: Annotated[Count | None, option("Leave out shorter documents.", DOCUMENTS)] = None
    max_chars: Annotated[Count | None, option("Leave out longer documents.", DOCUMENTS)] = None
    max_document_size: Annotated[
        str | None, option("Maximum document size; a larger one is a bad record. Default: 256MiB.", DOCUMENTS)
    ] = None
    val_fraction: Annotated[
        float | None, option("Fraction of documents for validation. Default: 0.", SPLITS)
    ] = None
    val_documents: Annotated[
        Count | None,
        option("Number of documents for validation, instead of a fraction; reads the inputs twice.", SPLITS),
    ] = None
    test_fraction: Annotated[
        float | None, option("Fraction of documents for testing. Default: 0.", SPLITS)
    ] = None
    seed: Annotated[int | None, option("Seed of the split. Default: 0.", SPLITS)] = None
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
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if value is not None and name != "tokenizer"}
        for name in ("eod", "bos"):
            if name in given:
                given[name] = _token(given[name])
        if "columns" in given:
            given["columns"] = split_columns(given["columns"])
        if "separator" in given:
            given["separator"] = re.sub(r"\\([ntr\\])", lambda match: ESCAPES[match[1]], given["separator"])
            given.setdefault("documents", "separator")
        if "max_document_size" in given:
            given["max_document_bytes"] = parse_bytes(given.pop("max_document_size"))
        return given


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterArguments:
    """Place of a job; None for options that are not given."""

    on: Annotated[
        Literal["local", "ray"] | None,
        option(
            "Run on this machine (default), or on all nodes of a Ray cluster; --workers per node.", RUNNING
        ),
    ] = None
    address: Annotated[
        str | None, option("Address of the Ray cluster. Default: $RAY_ADDRESS, or this machine.", RUNNING)
    ] = None

    def place(self) -> On:
        """Place of the job.

        Raises:
            RecipeError: an address without Ray.
        """
        if self.on != "ray":
            if self.address is not None:
                raise RecipeError("--address is that of a Ray cluster", hint="add --on ray")
            return "local"
        return Ray(self.address)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlaceArguments(ClusterArguments):
    """Place of a job that keeps receipts."""

    slice: Annotated[
        str | None, option("Run part i of n; other machines run the others: --slice 3/8.", RUNNING)
    ] = None
    join: Annotated[
        bool, option("Help a job that runs elsewhere: run units that it has not committed.", RUNNING)
    ] = False
    scratch: Annotated[
        str | None,
        option("Folder for unfinished files of a URI. Default: $PACKLINE_SCRATCH, or a cache.", RUNNING),
    ] = None
    one_writer: Annotated[
        bool,
        option("Accept a store that ignores conditional puts: no other process writes into --out.", RUNNING),
    ] = False

    def place(self) -> On:
        """Place of the job.

        Raises:
            RecipeError: a slice that does not exist, or a slice of a cluster.
        """
        self._set_environment()
        if self.slice is None and not self.join:
            return super().place()
        if self.on == "ray":
            raise RecipeError("--slice and --join divide a job among machines, and --on ray does so itself")
        if self.slice is not None and self.join:
            raise RecipeError("--slice i/n runs its part and then helps: expected it without --join")
        return parse_slice(self.slice or "0/1")

    def _set_environment(self) -> None:
        """Let this process and its workers know where unfinished files are, and what the store is like."""
        if self.scratch is not None:
            os.environ["PACKLINE_SCRATCH"] = os.path.abspath(self.scratch)
        if self.one_writer:
            os.environ["PACKLINE_ONE_WRITER"] = "1"


def recipe_of(inputs: tuple[str, ...], settings: Settings) -> tuple[Recipe, RunOptions]:
    """Recipe for a command line.

    Raises:
        RecipeError: settings are invalid, or a label is given for a recipe with its own labels.
    """
    if not inputs:
        raise RecipeError("no inputs", hint="name files, folders or URIs of text, or one recipe (.toml)")
    given = settings.as_settings()
    label, one_source = given.pop("label", None), given.pop("one_source", False)
    recipe, options = make_recipe(list(inputs), settings.tokenizer, given)
    if is_toml(inputs[0]):
        for name, value in (("label", label), ("one_source", one_source)):
            if value:
                raise RecipeError(
                    f"--{name.replace('_', '-')} is for files of text: a recipe has its own [[sources]]"
                )
        return recipe, options
    (whole,) = recipe.sources
    parts = [tuple(inputs)] if one_source else divide(inputs)
    sources = tuple(msgspec.structs.replace(whole, inputs=part, label=label) for part in parts)
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


@dataclass(frozen=True, kw_only=True)
class _Given:
    """Options for a choice; None for those not given."""

    def settings(self) -> dict[str, Any]:
        """The given options, by the names of `formats.choice.ExportChoice`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RowShape(_Given):
    """Shape of rows."""

    seq_len: Annotated[Length | None, option("Tokens per row.", ROWS)] = None
    packing: Annotated[Literal["concat", "best_fit", "pad"] | None, option("Default: concat.", ROWS)] = None
    batch_size: Annotated[Count | None, option("Rows per global batch.", ROWS)] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RowArguments(RowShape):
    """Shape of rows, and their choice and order."""

    pack_window: Annotated[
        int | None, option("best_fit: units packed together. Default: all documents.", ROWS)
    ] = None
    seed: Annotated[
        int | None, option("Seed for the order of rows. Default: 0; npz, pt: as packed.", ROWS)
    ] = None
    in_order: Annotated[bool | None, option("Rows as packed, in stored order.", ROWS)] = None
    order: Annotated[
        Literal["global", "blocks"] | None,
        option("With a seed: global (default), or blocks: a shuffle of blocks of rows in windows.", ROWS),
    ] = None
    block_rows: Annotated[Count | None, option("blocks: rows of a block. Default: 256.", ROWS)] = None
    window_blocks: Annotated[
        Count | None, option("blocks: blocks whose rows are mixed. Default: 256.", ROWS)
    ] = None
    epochs: Annotated[int | None, option("Number of epochs. Default: 1.", ROWS)] = None
    stage: Annotated[int | None, option("Stage of a run file. Default: all.", ROWS)] = None
    keep_untrained: Annotated[bool | None, option("Also rows without a trained token.", ROWS)] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DocumentArguments(_Given):
    """Choice and order of documents."""

    split: Annotated[
        str | None, option("train, val, test or all. Default: all; with --seq-len: train.", CHOICE)
    ] = None
    labels: Annotated[
        list[str] | None, option("Only documents with this label. May be repeated.", CHOICE, name="--label")
    ] = None
    sources: Annotated[
        list[str] | None, option("Only documents of this source. May be repeated.", CHOICE, name="--source")
    ] = None
    min_tokens: Annotated[Length | None, option("Only documents with at least N tokens.", CHOICE)] = None
    max_tokens: Annotated[Length | None, option("Only documents with at most N tokens.", CHOICE)] = None
    where: Annotated[
        str | None,
        option("Only documents that meet a condition: \"score >= 3 and lang in ['en', 'de']\".", CHOICE),
    ] = None
    unique: Annotated[bool | None, option("Only the first of documents with equal texts.", CHOICE)] = None
    unique_against: Annotated[
        list[str] | None, option("As --unique; also no text of this other store. May be repeated.", CHOICE)
    ] = None
    exclude: Annotated[
        list[str] | None,
        option("Leave out a list of documents, as verify and analyze --write it. May be repeated.", CHOICE),
    ] = None
    shuffle_documents: Annotated[
        int | None, option("Seed of a shuffle of documents. Default: as stored.", CHOICE)
    ] = None

    def settings(self) -> dict[str, Any]:
        """The given options, by the names of `formats.choice.ExportChoice`.

        >>> DocumentArguments(unique_against=["monday"]).settings()["unique"]
        ['monday']
        """
        given = super().settings()
        against = given.pop("unique_against")
        return given | {"unique": against or self.unique or None}


STORE = Group("Settings of a run on one store (a run file contains them)", sort_key=30)
OF_LOADER = ("batch_size", "seed", "order", "block_rows", "window_blocks", "epochs")
"""Settings of the loader; the others are those of rows."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StoreSettings(DocumentArguments):
    """Training settings of a store without a run file; None for those not given."""

    seq_len: Annotated[Length | None, option("Row length in tokens (required).", STORE)] = None
    batch_size: Annotated[Count | None, option("Rows per global batch (required).", STORE)] = None
    packing: Annotated[str | None, option("concat (default), best_fit or pad.", STORE)] = None
    min_tail_fraction: Annotated[
        float | None, option("concat: minimum share of the last row that must be full. Default: 0.5.", STORE)
    ] = None
    boundary_loss: Annotated[bool | None, option("Rows had loss across boundaries.", STORE)] = None
    pack_window: Annotated[
        int | None, option("best_fit: units packed together. Default: all documents.", STORE)
    ] = None
    overflow: Annotated[str | None, option("pad: truncate (default), split or drop.", STORE)] = None
    seed: Annotated[int | None, option("Seed of the loader. Default: 0.", STORE)] = None
    order: Annotated[str | None, option("Order of rows: global (default) or blocks.", STORE)] = None
    block_rows: Annotated[Count | None, option("blocks: rows of a block. Default: 256.", STORE)] = None
    window_blocks: Annotated[
        Count | None, option("blocks: blocks whose rows are mixed. Default: 256.", STORE)
    ] = None
    epochs: Annotated[int | None, option("Default: 1.", STORE)] = None
    in_order: Annotated[bool | None, option("Rows were not shuffled.", STORE)] = None

    def given(self) -> dict[str, Any]:
        """The given settings, by name."""
        return {name: value for name, value in self.settings().items() if value is not None}
