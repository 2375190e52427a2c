"""The recipe: the whole job as one frozen value, on disk TOML.

Two stores built from the same inputs with equal recipes are equal byte for byte, so a recipe contains
everything that may change a byte, and nothing else.
"""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from packline.conversion import convert, in_toml, read_table, read_toml
from packline.errors import RecipeError, did_you_mean, refuse_name
from packline.quantities import read_quantities

Format = Literal["auto", "jsonl", "parquet", "text"]
Documents = Literal["file", "line", "separator"]
SpecialTokens = Literal["text", "parse", "reject"]
ColumnType = Literal["string", "integer", "float", "boolean", "timestamp"]
Engine = Literal["auto", "gigatoken", "fastokens", "nanotoken", "tokenizers"]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
"""All splits, in the order in which they are shown and written."""

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PartOf = Annotated[float, Meta(ge=0, lt=1)]
"""Fraction of documents in a split."""

# Fields with UNSET were added later. When not given they are left out of the manifest, so its bytes equal
# those of earlier versions of packline, and a build begun with one of them can be resumed.


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files of one kind and how to get their text.

    >>> Source(inputs=("web/*.jsonl.zst",), name="web", label="pretraining", min_chars=100).text is None
    True
    """

    inputs: tuple[str, ...]
    """Files, folders, globs or URIs."""
    name: str = ""
    """Name in provenance and reports; by default derived from the file or folder shared by the inputs."""
    format: Format = "auto"
    """`auto` detects the kind of each file: Parquet by its first bytes, JSONL by its name, else text."""
    text: str | None = None
    """Field of the text (`a.b` for a nested one); else the first of text, content, article, document."""
    id: str | None = None
    """Field of a document's id; else `id` where the data has one."""
    documents: Documents = "file"
    """Plain text only: one document per file, per line, or per section between separators."""
    separator: str | None = None
    """Separator for `documents = "separator"`; not part of any document."""
    label: str | None = None
    """Label stored with every document, for choosing documents when the store is read."""
    min_chars: Natural = 0
    """Documents with fewer characters (code points) are left out and counted."""
    max_chars: Natural | None = None
    """Documents with more characters are left out and counted."""
    template: str | UnsetType = UNSET
    """Sandboxed Jinja template that makes the text from a record's fields. Replaces `text`."""
    where: str | UnsetType = UNSET
    """Condition on the fields of a record, such as `score >= 3 and language in ['de', 'en']`; records that do
    not meet it are left out and counted. See `packline.where.conditions`."""
    split: Split | UnsetType = UNSET
    """Split of all its documents, regardless of their hash."""
    columns: tuple[str, ...] | UnsetType = UNSET
    """Fields carried along in provenance: `url`, `metadata.language`, or with a type, `score: float`."""
    charset: str | UnsetType = UNSET
    """Plain text only: encoding of the files, such as `latin-1` or `utf-16`; else UTF-8."""
    newlines: Literal["unix"] | UnsetType = UNSET
    """Plain text only: `unix` replaces the line ends of other systems by `\\n`; else they are kept."""
    rare_fields: tuple[str, ...] | UnsetType = UNSET
    """Fields named above that may be absent from the first records; any other such field is refused."""

    @property
    def uses_records(self) -> bool:
        """True if its texts are made from whole records, by a template or filters."""
        return self.template is not UNSET or self.where is not UNSET


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the bytes of a store, apart from the inputs' own bytes.

    >>> web, code = Source(inputs=("web/*.jsonl",)), Source(inputs=("code/*.parquet",), text="content")
    >>> Recipe(sources=(web, code), tokenizer="gpt2/tokenizer.json", val_fraction=0.01).seed
    0
    """

    sources: tuple[Source, ...]
    tokenizer: str
    """A tokenizer.json, a folder with one, a hub id, a `.tiktoken` file or a SentencePiece model."""
    encoding: str | None = None
    """Encoding of a `.tiktoken` file whose name does not reveal it."""
    eod: str | int | None = None
    """End-of-document token, as a string or an id; else the tokenizer's own, if it has just one."""
    bos: str | int | None = None
    """Token put before every document, if given."""
    special_tokens: SpecialTokens = "text"
    """Special-token strings inside documents: plain text, control tokens, or a reason to reject."""
    val_fraction: PartOf = 0.0
    """Fraction of documents (by hash of their text) in the validation split."""
    test_fraction: PartOf | UnsetType = UNSET
    """Fraction of documents in the test split, by the same hash."""
    val_documents: Positive | UnsetType = UNSET
    """Number of documents in the validation split, instead of val_fraction."""
    seed: Seed = 0
    """Seed for the split."""
    limit_documents: Positive | None = None
    """Keep only the first `limit_documents` documents."""
    limit_tokens: Positive | None = None
    """Keep only the first documents whose tokens, boundary tokens included, sum to at most this."""
    max_document_bytes: Positive = 256 << 20
    """Largest document, in bytes; a larger one is a bad record, since memory is bounded."""


class RecipeOfFile(Recipe, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recipe as its file has it, with the places that its relative paths mean; no store contains these."""

    folder: str
    """Folder of the file, which relative inputs are relative to; empty: the working directory."""
    tokenizer_place: str
    """The tokenizer, in the folder of the file if it is there."""


class RunOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a run; no byte of the store depends on any of them."""

    workers: Natural | None = None
    """Number of encoding processes; default as many as the machine allows. 0 runs in the calling process."""
    memory_bytes: int | None = None
    """Memory limit for all processes together; default 1 GiB per worker, within the machine's memory."""
    engine: Engine = "auto"
    strict: bool = False
    """Stop at the first bad record."""
    max_bad_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Fraction of bad records above which the run, its store complete, ends with exit code 3."""


def load_recipe(path: str | Path) -> tuple[Recipe, RunOptions]:
    """Read a recipe, and the run options from its optional `[run]` table.

    Relative inputs are relative to the recipe's folder. Settings for reading the store (`weight`, `tokens`,
    `max_epochs`; see `load_shares`) are checked but not part of the recipe: no byte depends on them.
    """
    recipe, options, _ = _load(path)
    return recipe, options


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Part of a source that a training run reads. Not recorded in the store."""

    weight: int | float | str | None = None
    """Share of the rows, relative to the other sources: `0.7`, `"1/3"`."""
    tokens: Positive | None = None
    """Number of tokens to read, instead of a weight."""
    max_epochs: Positive | Literal["unlimited"] | None = None
    """Maximum number of times a row may be read."""


ELSEWHERE = {
    "belongs to the top of a recipe, before all tables": (*Recipe.__struct_fields__, "run"),
    "belongs to [run]": (*RunOptions.__struct_fields__, "memory"),
    "belongs to [[sources]]": (*Source.__struct_fields__, *Share.__struct_fields__),
    "is chosen when the store is read": ("seq_len", "batch_size", "packing", "shuffle", "epochs"),
}
"""Settings by their place, for those in the wrong one."""


def load_shares(path: str | Path) -> list[Share]:
    """Read the shares of a recipe's sources, in their order."""
    return _load(path)[2]


def _load(path: str | Path) -> tuple[Recipe, RunOptions, list[Share]]:
    path = Path(path)
    table, read = read_toml(path, "recipe"), partial(read_table, elsewhere=ELSEWHERE)
    run = table.pop("run", {})
    if isinstance(run, dict) and "memory" in run:
        run["memory_bytes"] = run.pop("memory")
    sources = table.get("sources")
    given = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    said = [{name: one.pop(name) for name in Share.__struct_fields__ if name in one} for one in given]
    for number, source in enumerate(given):
        where = f"{path}: sources[{number}]"
        source.update(read(source, Source, where, more=Share.__struct_fields__))
        said[number] = read_quantities(said[number], Share, where)
    where = str(path)
    recipe = convert(read(table, Recipe, where, more=["run"]), Recipe, where)
    options = convert(read(run, RunOptions, f"{path}: run", more=["memory"]), RunOptions, f"{path}: run")
    shares = [convert(one, Share, f"{path}: sources[{number}]") for number, one in enumerate(said)]
    _check_shares(shares, path)
    return check_recipe(placed(recipe, path.parent)), check_options(options), shares


def _check_shares(shares: list[Share], path: Path) -> None:
    for number, share in enumerate(shares):
        where = f"{path}: sources[{number}]"
        if share.weight is not None and share.tokens is not None:
            raise RecipeError(f"{where} has a weight and a budget of tokens: expected one of them")
        if share.weight is not None:
            check_weight(share.weight, where)
        if share.max_epochs is not None and share.weight is None and share.tokens is None:
            raise RecipeError(
                f"{where} has max_epochs, but neither weight nor tokens",
                hint="a source without a share is read as often as the others",
            )
    for name in ("weight", "tokens"):
        having = sum(getattr(share, name) is not None for share in shares)
        if 0 < having < len(shares):
            raise RecipeError(
                f"{path}: {having} of {len(shares)} sources have {name!r}: expected all of them or none",
                hint="shares are relative to each other",
            )


def check_weight(weight: int | float | str, where: str) -> None:
    """Refuse the weight of a source that is no number above 0."""
    try:
        if Fraction(str(weight)) > 0:
            return
    except (ValueError, ZeroDivisionError):
        pass
    raise RecipeError(
        f'{where}: weight is {weight!r}: expected a number above 0, as 0.7 or "1/3"',
        hint="leave out a source that is not wanted",
    )


def placed(recipe: Recipe, folder: Path) -> RecipeOfFile:
    """A recipe whose relative inputs are relative to a folder."""
    beside = folder / recipe.tokenizer
    return RecipeOfFile(
        folder="" if folder == Path() else str(folder),
        tokenizer_place=str(beside) if beside.exists() else recipe.tokenizer,
        **msgspec.structs.asdict(recipe),
    )


def check_recipe(recipe: Recipe) -> Recipe:
    """Refuse values that no build can use; return the recipe, with tuples for lists and strings for paths."""
    try:  # Python does not check the types of fields
        given = msgspec.to_builtins(recipe, enc_hook=os.fspath)
    except TypeError as error:
        raise RecipeError(f"the recipe: {error}") from error
    recipe = convert(given, type(recipe))
    if not recipe.sources:
        raise RecipeError("the recipe has no sources", hint="name at least one input")
    test_fraction = recipe.test_fraction or 0.0
    if recipe.val_fraction + test_fraction > 1:
        raise RecipeError(
            f"val_fraction is {recipe.val_fraction} and test_fraction {test_fraction}: "
            "expected at most 1 together"
        )
    if recipe.val_documents is not UNSET:
        _check_val_documents(recipe)
    for number, source in enumerate(recipe.sources):
        _check_source(source, source.name or f"sources[{number}]")
    recipe = msgspec.structs.replace(recipe, sources=tuple(map(_with_canonical_where, recipe.sources)))
    names = [source.name for source in recipe.sources if source.name]
    if twice := {name for name, count in Counter(names).items() if count > 1}:
        raise RecipeError(f"two sources are called {min(twice)!r}: expected a different name for each")
    return recipe


def _check_val_documents(recipe: Recipe) -> None:
    if recipe.val_fraction:
        raise RecipeError("val_documents and val_fraction are two sizes of one split: expected one of them")
    if is_limited(recipe):
        raise RecipeError(
            "val_documents counts among all documents, and a limit leaves some out: expected one of them",
            hint="with limit_documents or limit_tokens use val_fraction",
        )
    if all(source.split for source in recipe.sources):
        raise RecipeError("val_documents: expected a source whose documents are divided, found none")


def _check_source(source: Source, where: str) -> None:
    if not source.inputs:
        raise RecipeError(f"{where} has no inputs", hint="name at least one file, folder or glob")
    for given in source.inputs:
        refuse_name(given)
    if (source.documents == "separator") != (source.separator is not None):
        raise RecipeError(
            f'{where}: documents = "separator" and separator go together',
            hint='for example documents = "separator", separator = "\\n\\n"',
        )
    if source.charset is not UNSET:
        _check_charset(source, where)
    if source.separator == "":
        raise RecipeError(f"{where}: the separator is empty")
    if source.template is not UNSET and source.text is not None:
        raise RecipeError(
            f"{where} has both a text field and a template: expected one of them",
            hint="a template names the fields itself: {{ title }}",
        )
    parse_columns(source.columns or (), where)
    if source.where is not UNSET:
        from packline.where.conditions import canonical_where

        canonical_where(source.where, where)
    if source.max_chars is not None and source.max_chars < source.min_chars:
        raise RecipeError(f"{where}: max_chars {source.max_chars} is below min_chars {source.min_chars}")


NOT_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7")
"""Codecs of Python for text within text."""


def _check_charset(source: Source, where: str) -> None:
    """Refuse an encoding that is unknown, or in which documents cannot be cut at bytes."""
    if not source.charset:
        return
    try:
        if codecs.lookup(source.charset).name.replace("_", "-") in NOT_CHARSETS:
            raise LookupError
        one_byte = len(bytes(range(256)).decode(source.charset, "replace")) == 256
    except (LookupError, UnicodeError):
        raise RecipeError(
            f"{where}: charset is {source.charset!r}: expected an encoding that Python knows",
            hint="for example latin-1, cp1252 or utf-16",
        ) from None
    if source.documents != "file" and not (one_byte and (source.separator or "").isascii()):
        raise RecipeError(
            f"{where}: charset is {source.charset!r}, and documents is {source.documents!r}, cut at bytes: "
            "expected an encoding with one byte per character, and a separator in ASCII",
            hint="convert the files: iconv -f CHARSET -t utf-8",
        )


COLUMN_TYPES: tuple[ColumnType, ...] = get_args(ColumnType)
OWN_COLUMNS = (
    "source",
    "file",
    "position",
    "id",
    "text_bytes",
    "tokens",
    "label",
    "hash",
    "split",
    "document",
)
"""Names that a carried column cannot have: the other columns of provenance, and facts shown with them."""


def parse_columns(columns: Sequence[str], where: str) -> list[tuple[str, ColumnType | None]]:
    """Name and type (None: that of the data) of each column of a source.

    Args:
        columns: as in the recipe.
        where: the source, for messages.

    >>> parse_columns(["url", "score: float"], "web")
    [('url', None), ('score', 'float')]
    """
    found: list[tuple[str, ColumnType | None]] = []
    for column in columns:
        name, colon, rest = column.rpartition(":")
        kind = next((one for one in COLUMN_TYPES if colon and one == rest.strip()), None)
        if kind is None:
            if colon and rest[:1].isspace():
                raise RecipeError(
                    f"{where}: columns: {column!r}: expected the type {', '.join(COLUMN_TYPES)}, "
                    f"found {rest.strip()!r}",
                    hint=did_you_mean(rest.strip(), COLUMN_TYPES).strip()
                    or 'for example columns = ["score: float"]',
                )
            name = column
        name = name.strip()
        if not all(name.split(".")) or any(letter in '"\\' or letter < " " for letter in name):
            raise RecipeError(
                f"{where}: columns: {column!r}: expected the name of a field, or names with dots between"
            )
        if name in OWN_COLUMNS:
            raise RecipeError(
                f"{where}: columns: {name!r} is a name of packline's own provenance",
                hint="id = FIELD names the field of the documents' ids" if name == "id" else "",
            )
        for other, _ in found:
            if name == other:
                raise RecipeError(f"{where}: columns: {name!r} is given twice")
            if name.startswith(f"{other}.") or other.startswith(f"{name}."):
                raise RecipeError(
                    f"{where}: columns: {name!r} and {other!r}: one field cannot hold the other"
                )
        found.append((name, kind))
    return found


def _with_canonical_where(source: Source) -> Source:
    if source.where is UNSET:
        return source
    from packline.where.conditions import canonical_where

    return msgspec.structs.replace(source, where=canonical_where(source.where))


def check_options(options: RunOptions) -> RunOptions:
    """Refuse run options that no build can use."""
    options = convert(msgspec.to_builtins(options), RunOptions)
    if options.memory_bytes is not None and options.memory_bytes < 256 << 20:
        given = options.memory_bytes
        raise RecipeError(
            f"memory is {f'{given:,} bytes' if given < 1 << 20 else f'{given / 2**20:.0f} MiB'}: "
            "expected at least 256 MiB",
            hint=f"write {given}GiB for gigabytes"
            if 0 < given < 4096
            else "engines with a large vocabulary need about 300 MiB before the first document",
        )
    return options


def is_limited(recipe: Recipe) -> bool:
    """True if a limit of documents or tokens applies to the whole build."""
    return recipe.limit_documents is not None or recipe.limit_tokens is not None


LONGEST_DIFFERENCE = 200
"""Characters of a line that shows two values; of longer ones only the name is shown."""


def recipe_difference(old: Any, new: Any, where: str = "") -> list[str]:
    """Differences between two recipes (as builtins), one line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            line
            for key in keys
            for line in recipe_difference(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        ]
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        if all(isinstance(one, dict) and one.get("name") for one in (*old, *new)):
            before, after = ({one["name"]: one for one in listed} for listed in (old, new))
            lines = [f"{where}: {name} is gone" for name in before if name not in after]
            lines += [f"{where}: {name} is new" for name in after if name not in before]
            for name in sorted(before.keys() & after.keys()):
                lines += recipe_difference(before[name], after[name], f"{where}[{name}]")
            return lines or ([f"{where}: another order"] if [*before] != [*after] else [])
        if len(old) == len(new):
            return [
                line
                for number, (one, other) in enumerate(zip(old, new, strict=True))
                for line in recipe_difference(one, other, f"{where}[{number}]")
            ]
    if old == new:
        return []
    line = f"{where}: {in_toml(old)} -> {in_toml(new)}"
    return [line if len(line) <= LONGEST_DIFFERENCE else f"{where}: changed"]
