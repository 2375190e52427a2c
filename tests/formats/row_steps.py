"""A row format's own functions, one after another in this process: plan, write every part, finish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from packline.formats.export_record import Target
from packline.formats.format import RowFormat, get_format
from packline.formats.row_view import RowView
from packline.formats.types import ExportPlan, WrittenPart


def write_rows(view: RowView, name: str, folder: Path, options: dict[str, Any] | None = None) -> ExportPlan:
    """Export rows; parts are written last to first, since each is to need nothing but itself."""
    format = get_format(name)
    assert isinstance(format, RowFormat)
    chosen = msgspec.convert(options or {}, format.options)
    plan = format.plan(view, chosen)
    assert len({part.name for part in plan.parts}) == len(plan.parts)
    folder.mkdir(parents=True)
    counted: list[int] = []
    target = Target(folder, on_progress=counted.append)
    facts = {part.name: format.write(view, part, target, chosen) for part in reversed(plan.parts)}
    written = [
        WrittenPart(part, msgspec.json.decode(msgspec.json.encode(facts[part.name]))) for part in plan.parts
    ]
    tail = sum(lost.count for lost in plan.lost if lost.what == "tail")
    assert sum(counted) == (view.tokens - tail if name == "pt" else view.rows * view.seq_len)
    format.finish(view, written, target, chosen)
    on_disk = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.*")}
    assert on_disk == {entry.name: entry.bytes for entry in target.files}
    return plan
