"""build-nanogpt: shards of tokens as one-dimensional NumPy arrays.

    edufineweb_val_000000.npy      \x93NUMPY 1.0, {'descr': '<u2', 'fortran_order': False, 'shape': (n,)}
    edufineweb_train_000001.npy    and then n tokens, beginning at a multiple of 64 bytes

The dtype is uint16 where the vocabulary fits (65,536), as in the project's own data, else uint32, which its
loader also reads: it converts any dtype to int64. Names contain `train` or `val`, by which the loader finds a
split; it reads the files in the order of names. The first shard is val; shards have 100 million tokens. One
token precedes each document (the end of document, moved to the front, as GPT-2 has no other); a document may
continue in the next file. A shard needs more tokens than a batch, which a short last shard may not have.

There is no loss mask and no index: documents are delimited by markers alone. Not to be confused with the
headerless `.npy` of OLMo (`olmo`). Packline reads NumPy's format versions 1 and 2 with little-endian
integers; arrays of Python objects are refused. Based on `fineweb.py` and `train_gpt2.py` of build-nanogpt,
and tested with NumPy.
"""

from __future__ import annotations

import io
import tokenize
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from packline.formats.format import DatasetReader, DocumentFormat
from packline.formats.layouts.header_shards import (
    ShardOptions,
    first_bytes,
    missing_shards,
    open_shards,
    plan_shards,
    split_of_name,
    write_tokens,
)
from packline.formats.layouts.token_files import TokenFile
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, fitting_dtype
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentView
    from packline.formats.export_record import ExportRecord, Target

MAGIC = b"\x93NUMPY"
LIMITS = {"uint16": 65_536, "uint32": 2**31}
"""Largest vocabulary for each dtype; ids in a store are int32."""


class NpyOptions(ShardOptions, frozen=True):
    """Options for build-nanogpt's shards."""

    prefix: str = "edufineweb"
    """Prefix of file names, before `_train_000001`; may be empty."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """auto: the first dtype that fits the vocabulary."""


class Npy(DocumentFormat):
    """build-nanogpt's shards."""

    name = "npy"
    title = "build-nanogpt: edufineweb_train_000001.npy, NumPy arrays"
    options = NpyOptions
    opened = missing_shards(".npy", "build-nanogpt")

    def recognises(self, path: Path) -> bool:
        return any(head == MAGIC for _, head in first_bytes(path, (".npy",), len(MAGIC)))

    def trainer_lines(self, out: str, record: ExportRecord, options: NpyOptions) -> tuple[str, ...]:
        return (f"data_root = {out!r}  # in DataLoaderLite",)

    def plan(self, view: DocumentView, options: NpyOptions) -> ExportPlan:
        dtype = _dtype(view, options)
        return plan_shards(
            view, options, self.name, lambda tokens: len(npy_header(tokens, dtype)) + tokens * dtype.itemsize
        )

    def write(
        self, view: DocumentView, part: ExportPart, target: Target, options: NpyOptions
    ) -> dict[str, Any]:
        dtype = _dtype(view, options)
        with target.create(f"{part.name}.npy") as file:
            file.write(npy_header(part.stop - part.start, dtype))
            write_tokens(file, view.stream(part.split), part.start, part.stop, dtype, target)
        return {}

    def open(self, path: Path, options: NpyOptions, findings: Findings) -> DatasetReader:
        return open_shards(path, ".npy", "NumPy arrays of tokens, *.npy", _open_file, options, findings)


def npy_header(tokens: int, dtype: np.dtype) -> bytes:
    """Header of a file, before its tokens.

    >>> npy_header(5, np.dtype("<u2"))[10:60]
    b"{'descr': '<u2', 'fortran_order': False, 'shape': "
    """
    head = io.BytesIO()
    about = {"descr": dtype.str, "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def _dtype(view: DocumentView, options: NpyOptions) -> np.dtype:
    return fitting_dtype("npy", view.vocab_size, LIMITS, options.dtype)


def _open_file(files: list[DatasetFile], number: int, findings: Findings) -> TokenFile | None:
    file = files[number]
    try:
        # If a header is damaged, NumPy checks whether an old Python wrote it: it warns and parses its tokens.
        with open(file.path, "rb") as opened, warnings.catch_warnings(action="ignore"):
            version = np.lib.format.read_magic(opened)
            if version not in ((1, 0), (2, 0)):
                findings.add(
                    file.name, "version of NumPy's format", "1.0 or 2.0", ".".join(map(str, version))
                )
                return None
            reader = np.lib.format.read_array_header_1_0
            shape, _, dtype = (reader if version == (1, 0) else np.lib.format.read_array_header_2_0)(opened)
            begin = opened.tell()
    except (ValueError, SyntaxError, tokenize.TokenError) as error:
        findings.add(file.name, f"not a NumPy array: {error}")
        return None
    whole_numbers = dtype.kind in "iu" and dtype == dtype.newbyteorder("<")
    if len(shape) != 1 or shape[0] < 0 or not whole_numbers:
        findings.add(file.name, "array", "one dimension of little-endian integers", f"{shape} of {dtype.str}")
        return None
    count = shape[0]
    findings.compare(file.name, "size in bytes", begin + count * dtype.itemsize, file.bytes)
    room = max(file.bytes - begin, 0) // dtype.itemsize
    return TokenFile(
        files, number, dtype, split=split_of_name(file.name), header=begin, tokens=min(count, room)
    )


FORMAT = Npy()
