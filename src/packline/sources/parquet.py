"""Documents of Parquet columns, by row group; positions are row numbers in the file.

Parquet does not check UTF-8, and checks pages only if they have checksums: a bad string loses its row; a row
group that cannot be decoded yields the rows before the damage, and the rest is counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packline.errors import InputError
from packline.sources.batch import CUT_BYTES, Batch, RecordProblem, Reject, Texts, without_documents
from packline.sources.carried import FAILURES, Odd, carry, column_values, parquet_type
from packline.sources.files import InputFile
from packline.sources.lines import TOO_LARGE, not_utf8
from packline.storage.ranged_file import RangedFile

if TYPE_CHECKING:
    from packline.sources.record_text import RecordText


def open_parquet(file: BinaryIO | str, name: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, memory_map=False, pre_buffer=False, page_checksum_verification=True)
    except InputError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{name} is not a readable Parquet file: {error}",
            hint="its footer is missing or damaged: write the file again, or leave it out",
        ) from error


def read_schema(file: InputFile) -> pa.Schema:
    with file.open() as raw:
        return open_parquet(raw, file.path).schema_arrow


def group_count(file: InputFile) -> int:
    with file.open() as raw:
        return int(open_parquet(raw, file.path).metadata.num_row_groups)


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
    return kind is not None and parquet_type(kind) == "string"


MAX_ROWS = 16_384
"""Maximum rows per batch, for columns of very short strings."""


def rows_a_batch(metadata: pq.FileMetaData, group: int) -> int:
    """Number of rows of a row group for about one batch: a function of the file alone."""
    facts = metadata.row_group(group)
    return int(np.clip(facts.num_rows * CUT_BYTES // max(facts.total_byte_size, 1), 1, MAX_ROWS))


def wanted_columns(file: InputFile, schema: pa.Schema) -> list[str]:
    """Columns of a file that are read: those of its records, or text and id; and those carried along."""
    carried = [column.name for column in file.carried or () if column_type(schema, column.name) is not None]
    if file.columns:
        heads = [name if name in schema.names else name.partition(".")[0] for name in carried]
        return list(dict.fromkeys([*file.columns, *heads]))
    return list(dict.fromkeys([file.text, *([] if file.id is None else [file.id]), *carried]))


def expect_columns(
    raw: BinaryIO, parquet: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str]
) -> None:
    """Announce the column chunks of row groups to a remote file, which reads them ahead; nothing if local."""
    if not isinstance(raw, RangedFile):
        return
    ranges = []
    for group in groups:
        facts = parquet.metadata.row_group(group)
        for place in range(facts.num_columns):
            chunk = facts.column(place)
            path = chunk.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in columns):
                pages = [chunk.data_page_offset]
                pages += [chunk.dictionary_page_offset] if chunk.has_dictionary_page else []
                ranges.append((min(pages), min(pages) + chunk.total_compressed_size))
    raw.expect(ranges)


def carried_arrays(file: InputFile, rows: pa.RecordBatch) -> list[pa.Array | None]:
    """Carried columns of rows; None for one that the file lacks."""
    return [
        None if column_type(rows.schema, column.name) is None else _column(rows, column.name)
        for column in file.carried or ()
    ]


def read_row_groups(
    file: InputFile,
    parquet: pq.ParquetFile,
    groups: range,
    hasher: Any,
    max_bytes: int,
    transform: RecordText | None = None,
) -> Iterator[Batch]:
    """Read batches of whole row groups; what is read is added to `hasher`."""
    from packline.sources.record_text import row_batch

    columns, facts = wanted_columns(file, parquet.schema_arrow), parquet.metadata
    row = sum(facts.row_group(group).num_rows for group in range(groups.start))
    for group in groups:
        size, end = rows_a_batch(facts, group), row + facts.row_group(group).num_rows
        held: list[list[pa.Array]] = []  # so that the checksum does not depend on batches
        try:
            for rows in parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
                if transform is not None:
                    yield row_batch(file, rows, row, transform, hasher)
                else:
                    texts = _as_large_string(_column(rows, file.text))
                    ids = None if file.id is None else _column(rows, file.id)
                    carried = carried_arrays(file, rows)
                    hasher.update(Texts(texts).data)
                    more = [_decoded(one) for one in (ids, *carried) if one is not None]
                    held.append([pa.array(Texts(texts).sizes), texts.is_valid().cast(pa.uint8()), *more])
                    yield arrow_batch(file, texts, ids, carried, row, max_bytes)
                row += len(rows)
        except InputError:  # the file cannot be read, which says nothing of its rows
            raise
        except (pa.ArrowException, OSError) as error:
            yield lost_rows(file.index, group, row, end, error)
        for arrays in zip(*held, strict=True):
            hash_array(hasher, pa.concat_arrays(arrays))
        row = end


def lost_rows(file: int, group: int, row: int, end: int, error: Exception) -> Batch:
    """A batch without documents, for the rows of a damaged row group."""
    detail = f"row group {group}, rows {row:,} to {end - 1:,}: {str(error).splitlines()[0]}"
    reject = Reject(file, row, "corrupt_parquet", detail, b"", records=end - row)
    return without_documents(file, reject)


def arrow_batch(
    input: InputFile,
    column: pa.Array,
    ids: pa.Array | None,
    carried: list[pa.Array | None],
    row: int,
    max_bytes: int,
) -> Batch:
    """Some rows as documents, from their texts, ids (of any type) and carried columns."""
    file, texts, names = input.index, Texts(column), None if ids is None else id_texts(ids)
    consumed = len(texts.data)
    positions = np.arange(row, row + len(column), dtype=np.int64)
    whole = Batch(file, texts, positions, names, consumed_bytes=consumed)
    if names is not None and ids is not None and names.count(None) > ids.null_count:
        there = ids.is_valid().to_pylist()
        whole.lost_ids = [row + at for at, one in enumerate(names) if one is None and there[at]]
    too_large = consumed > max_bytes and int(texts.sizes.max()) > max_bytes
    if not column.null_count and not too_large and _is_utf8(column):
        return _carried(whole, input, carried)
    kept, rejects = [], []
    for index, value in enumerate(column):
        raw = value.as_buffer()
        data = b"null" if raw is None else raw.to_pybytes()
        try:
            if raw is None:
                raise RecordProblem("not_a_string", "the text is null")
            if len(data) > max_bytes:
                raise RecordProblem("too_large", TOO_LARGE)
            data.decode("utf-8")
            kept.append(index)
        except UnicodeDecodeError as error:
            rejects.append(Reject(file, row + index, "invalid_utf8", not_utf8(error), data))
        except RecordProblem as problem:
            rejects.append(problem.reject(file, row + index, data))
    good = whole.keep(np.array(kept, np.int64))
    good.rejects, good.consumed_bytes = rejects, consumed
    there = pa.array(kept, pa.int64())
    return _carried(good, input, [None if one is None else one.take(there) for one in carried])


def _carried(batch: Batch, file: InputFile, arrays: Sequence[pa.Array | None]) -> Batch:
    texts = batch.texts
    return carry(batch, file.carried or (), arrays, lambda row: texts[row].encode("utf-8"))


def _decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def hash_array(hasher: Any, array: pa.Array) -> None:
    """Feed the values of an array to a hasher, independent of the layout of its buffers."""
    array = _decoded(array)
    kind = array.type
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if valid is not None:
        hasher.update(np.packbits(valid))
    if is_text(kind):
        texts = Texts(_as_large_string(array).fill_null("") if array.null_count else _as_large_string(array))
        hasher.update(texts.sizes)
        hasher.update(texts.data)
    elif pa.types.is_primitive(kind) and kind.bit_width >= 8:
        width = kind.bit_width // 8
        values = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        if valid is not None:
            values = values.reshape(-1, width) * valid[:, None]  # a null may have any bytes
        hasher.update(np.ascontiguousarray(values))
    else:
        hasher.update(repr(column_values(array)).encode("utf-8", "surrogatepass"))


def _is_utf8(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    if path in batch.schema.names:
        return batch.column(path)
    head, *rest = path.split(".")
    return pc.struct_field(batch.column(head), rest)


def _as_large_string(column: pa.Array) -> pa.Array:
    column = _decoded(column)
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())


def row_values(rows: pa.RecordBatch) -> tuple[list[dict[str, Any]], set[str]]:
    """Rows as dicts, and the names of columns in which some values are `Odd`."""
    try:
        return list(rows.to_pylist()), set()
    except FAILURES:
        names = rows.schema.names
        columns = [column_values(column) for column in rows.columns]
        odd = {
            name
            for name, values in zip(names, columns, strict=True)
            if any(isinstance(value, Odd) for value in values)
        }
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)], odd


def id_texts(ids: pa.Array) -> list[str | None]:
    values = column_values(ids)
    return [
        value if value is None or type(value) is str else value.text if isinstance(value, Odd) else str(value)
        for value in values
    ]
