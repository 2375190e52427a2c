"""Opening of a Parquet file, and the types of its columns."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from packline.errors import InputError


def open_parquet(file: BinaryIO | str, name: str) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        InputError: the footer is damaged or truncated, so the file cannot be read.
    """
    try:
        return pq.ParquetFile(file, memory_map=False, pre_buffer=False, page_checksum_verification=True)
    except InputError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{name} is not a readable Parquet file: {error}",
            hint="its footer is missing or damaged: write the file again, or leave it out",
        ) from error


def column_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Type at a dotted path, None if there is none; for duplicate columns the type of the first."""
    if path in schema.names:
        return schema.field(schema.names.index(path)).type
    head, *rest = path.split(".")
    if head not in schema.names:
        return None
    kind = schema.field(schema.names.index(head)).type
    for name in rest:
        index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if index < 0:
            return None
        kind = kind.field(index).type
    return kind


def is_text(kind: pa.DataType | None) -> bool:
    """True if a column of this type contains text."""
    if kind is None:
        return False
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
