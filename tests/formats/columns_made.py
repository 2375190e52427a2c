"""Data sets of columns made with pyarrow alone, for the tests of arrow, parquet and trl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

END = 0
"""Of the documents here; ids are below 300."""


def table(columns: dict[str, Any], kinds: dict[str, pa.DataType] | None = None) -> pa.Table:
    """Lists of integers are int32 unless said otherwise."""
    made = {}
    for name, values in columns.items():
        kind = (kinds or {}).get(name, pa.list_(pa.int32()) if isinstance(values[0], list) else None)
        made[name] = pa.array(values, kind)
    return pa.table(made)


def save(folder: Path, *tables: pa.Table, batch_rows: int = 2) -> Path:
    """A folder as `save_to_disk` makes it, a stream a table."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(tables):05d}.arrow" for number in range(len(tables))]
    for name, content in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
            writer.write_table(content, max_chunksize=batch_rows)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    features: dict[str, Any] = {name: {} for name in tables[0].schema.names} if tables else {}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def messages(path: Path) -> list[int]:
    """Where each message of a stream begins, and where the last one ends."""
    found = []
    with pa.memory_map(str(path)) as mapped:
        pa.ipc.read_schema(mapped)
        found.append(mapped.tell())
        while True:
            try:
                pa.ipc.read_message(mapped)
            except EOFError:
                return found
            found.append(mapped.tell())
