"""Options for the choice of documents and rows, for `export`, `bake`, `convert` and `pack`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from packline.cli.arguments import option

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

    seq_len: Annotated[int | None, option("Tokens per row.", ROWS)] = None
    packing: Annotated[Literal["concat", "best_fit", "pad"] | None, option("Default: concat.", ROWS)] = None
    batch_size: Annotated[int | None, option("Rows per global batch.", ROWS)] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RowArguments(RowShape):
    """Shape of rows, and their choice and order."""

    seed: Annotated[int | None, option("Seed for the order of rows. Default: as packed.", ROWS)] = None
    epochs: Annotated[int | None, option("Number of epochs. Default: 1.", ROWS)] = None
    stage: Annotated[int | None, option("Stage of a run file. Default: all.", ROWS)] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DocumentArguments(_Given):
    """Choice and order of documents."""

    split: Annotated[str | None, option("train, val, test or all. Default: all; rows: train.", CHOICE)] = None
    labels: Annotated[
        list[str] | None, option("Only documents with this label. May be repeated.", CHOICE, name="--label")
    ] = None
    sources: Annotated[
        list[str] | None, option("Only documents of this source. May be repeated.", CHOICE, name="--source")
    ] = None
    min_tokens: Annotated[int | None, option("Only documents with at least N tokens.", CHOICE)] = None
    max_tokens: Annotated[int | None, option("Only documents with at most N tokens.", CHOICE)] = None
    shuffle_documents: Annotated[
        int | None, option("Seed of a shuffle of documents. Default: as stored.", CHOICE)
    ] = None
