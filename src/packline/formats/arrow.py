"""Documents as a data set of the `datasets` library: `load_from_disk(OUT)`.

    state.json, dataset_info.json, data-00000-of-00002.arrow, ...           for one split
    dataset_dict.json, train/..., validation/...                            for two splits

    input_ids   list<int32>     one row per document, as expected by trainers of `transformers`
    labels      list<int32>     with a loss mask only: ids, and -100 where a token is not trained on;
                                or `loss_mask`, list<int8>; not shifted, since trainers do that themselves
    source, file, position, id                                              on request

Reads data sets made by `save_to_disk`, with any other columns, and single streams. Splits are found by name:
train, and all names like validation or test, which are `val`. Boundary tokens are determined by `edges`;
padding is determined by the attention mask. The fingerprint, which names cached results in the library, is a
hash of the files' checksums here, so equal exports have equal bytes. Based on the source code of datasets
5.2.0 and tested with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from packline.errors import CorruptStore, InputError
from packline.fingerprint import hash_value
from packline.formats.columns import (
    SPLITS,
    ColumnFile,
    ColumnOptions,
    Columns,
    ColumnsReader,
    column_types,
    hf_features,
    make_schema,
    plan_columns,
    record_batches,
)
from packline.formats.document_files import folder_of
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import FileList, read_object, split_of_path
from packline.formats.format import DatasetReader, DocumentFormat
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, Facts, WrittenPart
from packline.ragged import offsets_of
from packline.store.report import Findings

BATCH_DOCUMENTS = 1000
BATCH_TOKENS = 1 << 20
FILE = "data-{number:05d}-of-{count:05d}.arrow"


class Arrow(DocumentFormat):
    name = "arrow"
    title = "datasets: a folder for load_from_disk, one document per row in input_ids"
    options = ColumnOptions

    def trainer_lines(self, out: str, record: ExportRecord, options: ColumnOptions) -> tuple[str, ...]:
        folder = record.train_folder(out)
        return (
            "from datasets import load_from_disk",
            "",
            f"dataset = load_from_disk({folder!r})",
            "# axolotl:",
            "# datasets:",
            f"#   - path: {folder}",
            "#     ds_type: arrow",
            "#     type:",
            "# sample_packing: true",
        )

    def plan(self, view: DocumentView, options: ColumnOptions) -> ExportPlan:
        return plan_columns(view, options, self.name, folder_of(view, "{split}") + FILE)

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: ColumnOptions) -> Facts:
        batches = record_batches(
            view, part, options, target, most_documents=BATCH_DOCUMENTS, most_tokens=BATCH_TOKENS
        )
        schema = make_schema(column_types(view, options))
        return {"checksum": write_stream(target, part.name, schema, batches)}

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: ColumnOptions
    ) -> None:
        schema = make_schema(column_types(view, options))
        for split in view.splits:
            ours = [one for one in written if one.part.split == split]
            write_folder(target, folder_of(view, SPLITS[split]), schema, ours, SPLITS[split])
        if len(view.splits) > 1:
            write_dict(target, [SPLITS[split] for split in view.splits])

    def recognises(self, path: Path) -> bool:
        features = features_of_saved(path)
        return bool(features) and SEQ_LENGTHS not in features

    def open(self, path: Path, options: ColumnOptions, findings: Findings) -> DatasetReader:
        saved = SavedFiles(path, findings)
        sources = saved.open(options.column, options.loss != "none", findings)
        return ColumnsReader(saved.files, sources, edges=options.edges, findings=findings)


STATE = "state.json"
INFO = "dataset_info.json"
DICT = "dataset_dict.json"
SEQ_LENGTHS = "seq_lengths"
"""Column that packed rows have and documents do not."""


def write_stream(target: Target, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
    """Write record batches as a stream; return the checksum of the file."""
    with target.create(name) as file, pa.PythonFile(file, "w") as sink:
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return target.files[-1].checksum


def write_folder(
    target: Target, folder: str, schema: pa.Schema, written: Sequence[WrittenPart], split: str
) -> None:
    """Write the metadata files that make a folder of streams a data set."""
    files = [Path(one.part.name).name for one in written]
    checksums = [one.facts["checksum"] for one in written]
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": hash_value([checksums, schema.names])[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    _write_json(target, f"{folder}{STATE}", state)
    _write_json(target, f"{folder}{INFO}", {"features": hf_features(schema)})


def write_dict(target: Target, splits: Sequence[str]) -> None:
    """Write the metadata file that makes folders of splits a dictionary of data sets."""
    _write_json(target, DICT, {"splits": list(splits)})


def _write_json(target: Target, name: str, content: Any) -> None:
    with target.create(name) as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2))


class SavedFiles(FileList):
    """Files of such a folder, of a dictionary of them, or a single stream; numbered in order."""

    def __init__(self, path: Path, findings: Findings) -> None:
        super().__init__(path if path.is_dir() else path.parent)
        self.streams: list[tuple[int, str]] = []
        """Number and split of each stream."""
        if path.is_file() and path.name not in (STATE, INFO, DICT):
            self.streams.append((self.add(path), split_of_path(path.name)))
        elif (named := self.folder / DICT).is_file():
            self.add(named)
            splits = read_object(named).get("splits")
            if not isinstance(splits, list) or any(not _is_name(name) for name in splits):
                raise InputError(f"{named}: expected names of splits, found {splits!r}")
            for name in splits:
                self._add_folder(self.folder / name, split_of_path(name), findings)
        else:
            self._add_folder(self.folder, "train", findings)

    def _add_folder(self, folder: Path, split: str, findings: Findings) -> None:
        if not (folder / STATE).is_file():
            raise InputError(
                f"{folder}: expected {STATE}, as Dataset.save_to_disk writes it, found none",
                hint="name the folder of the data set, or one .arrow file",
            )
        state = read_object(folder / STATE)
        entries = state.get("_data_files")
        if not isinstance(entries, list):
            raise InputError(f"{folder / STATE}: expected _data_files, found {', '.join(state) or 'nothing'}")
        name = self.files[self.add(folder / STATE)].name
        if state.get("_indices_data_files"):
            findings.add(name, "a selection of rows of the files", "none", "one; save it again flattened")
        if isinstance(declared := state.get("_split"), str) and split == "train":
            split = split_of_path(declared)
        self.add_if_there(folder / INFO)
        for number, entry in enumerate(entries):
            filename = entry.get("filename") if isinstance(entry, dict) else None
            if not _is_name(filename) or not (folder / str(filename)).is_file():
                findings.add(
                    name, f"entry {number} of _data_files", "the name of a file that is there", entry
                )
            else:
                self.streams.append((self.add(folder / str(filename)), split))

    def open(self, column: str, with_loss: bool, findings: Findings) -> list[ArrowFile]:
        """The readable streams, in order; problems go into `findings`."""
        opened = (
            ArrowFile.open(self.files, number, split, column, with_loss, findings)
            for number, split in self.streams
        )
        return [file for file in opened if file is not None]


def features_of_saved(path: Path) -> dict[str, Any]:
    """Columns of a folder saved by the library, or of a dictionary's first split; empty for anything else."""
    folder = path if path.is_dir() else path.parent
    try:
        if (folder / DICT).is_file():
            folder = folder / str((read_object(folder / DICT).get("splits") or [""])[0])
        features = read_object(folder / INFO).get("features") if (folder / STATE).is_file() else None
    except (InputError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name and name not in ("", ".", "..")


END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowFile(ColumnFile):
    """A stream with record batches that can be read one by one. Made by `open`.

    All message headers are read when it is opened (30 microseconds per record batch), so a truncated stream
    is detected at once. Dictionary-encoded columns, which would tie record batches together, are not read.
    """

    schema: pa.Schema

    @classmethod
    def open(
        cls,
        files: Sequence[DatasetFile],
        number: int,
        split: str,
        column: str,
        with_loss: bool,
        findings: Findings,
    ) -> ArrowFile | None:
        """Read all message headers; None if nothing can be read."""
        self, file = cls(), files[number]
        self.file, self.path, self.split, self.size = number, file.path, split, file.bytes
        found: list[tuple[int, int, int]] = []  # per record batch: first byte, rows, tokens
        at = 0
        try:
            # Mapped, so that only the accessed pages are read, not the bodies.
            with pa.memory_map(file.path) as mapped:
                self.schema = pa.ipc.read_schema(mapped)
                at = mapped.tell()
                if coded := [one.name for one in self.schema if pa.types.is_dictionary(one.type)]:
                    findings.add(file.name, "columns", "none that is dictionary-encoded", ", ".join(coded))
                    return None
                columns = Columns.of(self.schema, column, with_loss, file.name, findings)
                if columns is None:
                    return None
                self.columns = columns
                while (message := _next_message(mapped)) is not None:
                    batch = pa.ipc.read_record_batch(message, self.schema)
                    found.append((at, batch.num_rows, _values_of(batch.column(columns.tokens))))
                    at = mapped.tell()
                mapped.seek(at)
                end = mapped.read(len(END_MARK) + 1)
                if end != END_MARK:
                    rest = f"{file.bytes - at:,} other bytes" if file.bytes > at else "the end of the file"
                    findings.add(file.name, f"end mark at byte {at:,}, as the last of it", "there", rest)
        except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not text
            findings.add(file.name, f"not a whole Arrow stream: message at byte {at:,}: {error}")
            if not found:
                return None
        self.begins = np.array([begin for begin, _, _ in found], np.int64)
        self.rows = offsets_of([rows for _, rows, _ in found])
        self.tokens = np.array([tokens for _, _, tokens in found], np.int64)
        return self

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for number in range(start, stop):
            try:
                with pa.OSFile(self.path) as file:
                    file.seek(int(self.begins[number]))
                    message = pa.ipc.read_message(file)
                    batch = pa.ipc.read_record_batch(message, self.schema)
            except (OSError, EOFError, ValueError, pa.ArrowException) as error:
                raise CorruptStore(
                    f"cannot read {self.path}: record batch at byte {int(self.begins[number]):,}: {error}",
                    hint="the file is damaged, or was changed meanwhile",
                ) from error
            expected = int(self.rows[number + 1] - self.rows[number])
            if batch.num_rows != expected:
                raise CorruptStore(
                    f"{self.path}: expected a record batch of {expected:,} rows, found {batch.num_rows:,}"
                )
            yield batch


def _next_message(mapped: pa.MemoryMappedFile) -> pa.Message | None:
    try:
        return pa.ipc.read_message(mapped)
    except EOFError:
        return None


def _values_of(array: pa.Array) -> int:
    """Number of values in all lists of a column, from the start of the first and the end of the last."""
    if pa.types.is_fixed_size_list(array.type):
        return len(array) * int(array.type.list_size)
    return array.offsets[-1].as_py() - array.offsets[0].as_py() if len(array) else 0


FORMAT = Arrow()
