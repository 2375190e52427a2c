"""build-nanogpt: shards of tokens as one-dimensional NumPy arrays.

    edufineweb_val_000000.npy      \x93NUMPY 1.0, {'descr': '<u2', 'fortran_order': False, 'shape': (n,)}
    edufineweb_train_000001.npy    and then n tokens, beginning at a multiple of 64 bytes

The dtype is uint16 where the vocabulary fits (65,536), as in the project's own data, else uint32, which its
loader also reads: it converts any dtype to int64. Names contain `train` or `val`, by which the loader finds a
split; it reads the files in the order of names. The first shard is val; shards have 100 million tokens. One
token precedes each document (the end of document, moved to the front, as GPT-2 has no other); a document may
continue in the next file. A shard needs more tokens than a batch, which a short last shard may not have.

Not to be confused with the headerless `.npy` of OLMo (`olmo`). Packline reads NumPy's format versions 1 and 2
with little-endian integers; arrays of Python objects are refused. Based on `fineweb.py` and `train_gpt2.py`
of build-nanogpt, and tested with NumPy.
"""

from __future__ import annotations

import io
import tokenize
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from packline.formats.export_folder import ExportRecord
from packline.formats.files import first_bytes, split_of_name
from packline.formats.llmc import ShardFormat, ShardOptions, missing_shards
from packline.formats.token_files import TokenFile
from packline.formats.types import DatasetFile
from packline.store.report import Findings

MAGIC = b"\x93NUMPY"


class NpyOptions(ShardOptions, frozen=True):
    prefix: str = "edufineweb"
    """Prefix of file names, before `_train_000001`; may be empty."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """auto: the first dtype that fits the vocabulary."""


class Npy(ShardFormat):
    name = "npy"
    title = "build-nanogpt: edufineweb_train_000001.npy, NumPy arrays"
    options = NpyOptions
    opened = missing_shards(".npy", "build-nanogpt")
    limits: ClassVar = {"uint16": 65_536, "uint32": 2**31}  # ids in a store are int32
    ending, what = ".npy", "NumPy arrays of tokens, *.npy"

    def recognises(self, path: Path) -> bool:
        return any(head == MAGIC for _, head in first_bytes(path, (".npy",), len(MAGIC)))

    def trainer_lines(self, out: str, record: ExportRecord, options: NpyOptions) -> tuple[str, ...]:
        return (f"data_root = {out!r}  # in DataLoaderLite",)

    def header(self, tokens: int, dtype: np.dtype) -> bytes:
        head = io.BytesIO()
        about = {"descr": dtype.str, "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(head, about)
        return head.getvalue()

    def open_file(self, files: list[DatasetFile], number: int, findings: Findings) -> TokenFile | None:
        file = files[number]
        try:
            # NumPy checks whether an old Python wrote a damaged header: it warns, and parses its tokens.
            with open(file.path, "rb") as opened, warnings.catch_warnings(action="ignore"):
                shape, dtype = read_array_header(opened)
                begin = opened.tell()
        except (ValueError, SyntaxError, tokenize.TokenError) as error:
            findings.add(file.name, f"not a NumPy array: {error}")
            return None
        whole_numbers = dtype.kind in "iu" and dtype == dtype.newbyteorder("<")
        if len(shape) != 1 or shape[0] < 0 or not whole_numbers:
            wanted = "one dimension of little-endian integers"
            findings.add(file.name, "array", wanted, f"{shape} of {dtype.str}")
            return None
        findings.compare(file.name, "size in bytes", begin + shape[0] * dtype.itemsize, file.bytes)
        split = split_of_name(file.name)
        return TokenFile(files, number, dtype, split=split, header=begin, tokens=shape[0])


def read_array_header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the NumPy array at the beginning of a file, which is read up to the data."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"expected version 1.0 or 2.0 of its format, found {version[0]}.{version[1]}")
    formats = np.lib.format
    reader = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    shape, _, dtype = reader(file)
    return shape, dtype


FORMAT = Npy()
