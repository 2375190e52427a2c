"""Metadata of a foreign data set, and whether a tokenizer can be the one that made it.

    packline.json   of an export: format, options, tokenizer with its fingerprint
    Foreign.facts   from headers and metadata: vocab_size, eod_id, tokenizer (its name)

Ids of one tokenizer are valid ids of another, so a mistake here would show only in a model that was
trained on them. A contradiction is refused before work starts; an oddity is noted. A vocabulary that was
rounded up, or that lacks added tokens, as some projects write it, is no contradiction.

Does not look at tokens. Data sets without tokenizer metadata are accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.tokenizer import Tokenizer
from packline.errors import TokenizerError
from packline.formats.export_record import ExportRecord, read_record
from packline.formats.exporting.parts import convert_options
from packline.formats.format import Format
from packline.formats.types import Options

MOST_ROUNDED = 1024
"""Most ids by which a vocabulary may be rounded up."""


def find_record(path: Path) -> ExportRecord | None:
    """The `packline.json` of an export, if there is one.

    Args:
        path: a data set's folder, or a file in it.

    Raises:
        CorruptStore: it is damaged, or of a newer version.
    """
    return read_record(path if path.is_dir() else path.parent)


def make_options(format: Format, options: dict[str, Any], record: ExportRecord | None) -> Any:
    """Options of a format: the given ones, else those of the export, else the format's defaults.

    Args:
        options: given options; numbers and booleans may be strings.

    Raises:
        RecipeError: an unknown option, or an invalid value.
    """
    if record is not None and record.format == format.name:
        options = record.options | options
    return convert_options(format, options)


def with_marker(options: Options, marker: int | None) -> Any:
    """Options with the token between documents set, if they have a field for it that is unset."""
    if getattr(options, "marker", 0) is not None or marker is None:
        return options
    return msgspec.structs.replace(options, marker=marker)


def with_vocabulary(options: Options, size: int) -> Any:
    """Options with the vocabulary size set, if unset; it decides the dtype where no file declares it."""
    if getattr(options, "vocab_size", 0) is not None:
        return options
    return msgspec.structs.replace(options, vocab_size=size)


def said_boundary(
    record: ExportRecord | None, facts: dict[str, Any]
) -> tuple[str | int | None, str | int | None]:
    """End and beginning of documents, as far as the data set declares them."""
    if record is not None:
        return record.tokenizer.eod_id, record.tokenizer.bos_id
    eod, bos = facts.get("eod_id"), facts.get("bos_id")
    return (eod if isinstance(eod, int) else None), (bos if isinstance(bos, int) else None)


def check_tokenizer(
    where: str, tokenizer: Tokenizer, eod_id: int, record: ExportRecord | None, facts: dict[str, Any]
) -> list[str]:
    """Check a tokenizer against the metadata of a data set.

    Returns:
        Notes on oddities.

    Raises:
        TokenizerError: the data set cannot come from this tokenizer.
    """
    hint = "name the tokenizer that made these ids"
    if record is not None and record.tokenizer.fingerprint != tokenizer.fingerprint:
        said = record.tokenizer
        raise TokenizerError(
            f"{where} was made with another tokenizer: expected {said.name} ({said.fingerprint[:12]}), "
            f"found {tokenizer.name} ({tokenizer.fingerprint[:12]})",
            hint=hint,
        )
    size = facts.get("vocab_size")
    if isinstance(size, int) and not _same_vocabulary(size, tokenizer):
        raise TokenizerError(
            f"{where} was made with another tokenizer: expected a vocabulary of {size:,}, "
            f"found {tokenizer.vocab_size:,} of {tokenizer.name}",
            hint=hint,
        )
    said_eod = facts.get("eod_id")
    if isinstance(said_eod, int) and said_eod != eod_id:
        raise TokenizerError(
            f"{where}: expected {said_eod} at the end of documents, as it says itself, found {eod_id}",
            hint="name the right tokenizer, or that token with --eod",
        )
    name = facts.get("tokenizer")
    if isinstance(name, str) and name and not _may_be_called(name, tokenizer):
        return [f"{where} says that its tokenizer is {name}, and not {tokenizer.name}"]
    return []


def _same_vocabulary(size: int, tokenizer: Tokenizer) -> bool:
    whole = tokenizer.vocab_size
    without_added = len(msgspec.json.decode(tokenizer.json)["model"]["vocab"])
    rounded = size % 8 == 0 and whole <= size <= whole + MOST_ROUNDED
    return without_added <= size <= whole or rounded


def _may_be_called(name: str, tokenizer: Tokenizer) -> bool:
    """True if two names share a part; paths and hub ids of the same tokenizer may differ in the rest."""
    return bool(_parts(name) & (_parts(tokenizer.name) | {tokenizer.kind}))


def _parts(name: str) -> set[str]:
    parts = {part.partition("@")[0].partition(".")[0].lower() for part in name.replace("\\", "/").split("/")}
    return parts - {"", "tokenizer", "tokenizers"}
