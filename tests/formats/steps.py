"""A format's own functions, one after another in this process: what the engines around it do, without them.

plan = write_all(store, "llmc", folder, {"shard_tokens": 100})      plan, write every part, finish
found = read_all("llmc", folder, {"marker": 0})                     open, read every unit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from tests.formats.stores import Case

from packline.facade import Store
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import Target
from packline.formats.format import DatasetReader, DocumentFormat, Format, RowFormat, get_format
from packline.formats.row_view import RowView
from packline.formats.types import Edges, ExportPlan, WrittenPart
from packline.storage.local import Link
from packline.store.report import Findings


def write_all(
    store: Store,
    name: str,
    folder: Path,
    options: dict[str, Any] | None = None,
    *,
    link: Link = "auto",
    **selection: Any,
) -> ExportPlan:
    """Export the documents of a store; the plan has to have said how much is written."""
    format = get_format(name)
    assert isinstance(format, DocumentFormat) and format.name == name
    chosen = msgspec.convert(options or {}, format.options)
    view = DocumentView(store, edges=format.edges_of(chosen), **selection)
    plan = format.plan(view, chosen)
    written, shared = _write(format, view, plan, folder, chosen, link)
    assert shared == plan.shared_bytes and written == plan.bytes + plan.shared_bytes
    return plan


def write_rows(view: RowView, name: str, folder: Path, options: dict[str, Any] | None = None) -> ExportPlan:
    """Export rows; parts are written last to first, since each is to need nothing but itself."""
    format = get_format(name)
    assert isinstance(format, RowFormat)
    chosen = msgspec.convert(options or {}, format.options)
    plan = format.plan(view, chosen)
    _write(format, view, plan, folder, chosen, "auto")
    return plan


def _write(
    format: Format, view: DocumentView | RowView, plan: ExportPlan, folder: Path, options: Any, link: Link
) -> tuple[int, int]:
    """Write and finish; bytes of the parts, and how many of them are shared."""
    assert len({part.name for part in plan.parts}) == len(plan.parts)
    folder.mkdir(parents=True)
    counted: list[int] = []
    target = Target(folder, link=link, on_progress=counted.append)
    facts = {part.name: format.write(view, part, target, options) for part in reversed(plan.parts)}
    written = [
        WrittenPart(part, msgspec.json.decode(msgspec.json.encode(facts[part.name]))) for part in plan.parts
    ]
    sizes = sum(entry.bytes for entry in target.files), target.shared.total()
    lost = {one.what: one.count for one in plan.lost}
    whole = view.tokens - lost.get("tail", 0)
    if isinstance(view, DocumentView):
        whole -= lost.get("truncated tokens", 0)
    elif format.name != "pt":
        whole = view.rows * view.seq_len
    assert sum(counted) == whole
    format.finish(view, written, target, options)
    on_disk = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.*")}
    assert on_disk == {entry.name: entry.bytes for entry in target.files}
    return sizes


@dataclass
class Found:
    """What reading a data set gave."""

    reader: DatasetReader
    problems: list[str]
    documents: dict[str, list[list[int]]] = field(default_factory=dict)
    """By split, in order."""
    places: list[tuple[str, int]] = field(default_factory=list)
    """File and position of each document, over all splits."""
    unfinished: int = 0


def read_all(name: str, path: Path, options: dict[str, Any] | None = None) -> Found:
    """Open a data set and read it, unless something was wrong with it already."""
    format = get_format(name)
    assert isinstance(format, DocumentFormat)
    findings = Findings()
    reader = format.open(path, msgspec.convert(options or {}, format.options), findings)
    found = Found(reader, [str(problem) for problem in findings.problems])
    if found.problems:
        return found
    ends = [0] * len(reader.files)
    for unit in reader.units:
        for file, start, stop in unit.pieces:  # together, every byte of every file, once and in order
            assert start == ends[file] <= stop
            ends[file] = stop
        documents = found.documents.setdefault(unit.split, [])
        for block in reader.blocks(unit):
            assert block.positions is not None
            for number in range(len(block)):
                tokens = block.tokens[block.offsets[number] : block.offsets[number + 1]]
                documents.append(tokens.tolist())
                found.places.append((reader.files[unit.file].name, int(block.positions[number])))
            if block.truncated is not None:
                found.unfinished += int(block.truncated.sum())
    assert ends == [file.bytes for file in reader.files]
    return found


def expected(case: Case, edges: Edges) -> dict[str, list[list[int]]]:
    """The documents of a case by split, with boundary tokens put on by hand."""
    marker = case.eod_id if case.bos_id is None else case.bos_id
    before = [marker] if edges in ("bos", "both") else []
    behind = [case.eod_id] if edges in ("eod", "both") else []
    documents: dict[str, list[list[int]]] = {}
    for number, body in enumerate(case.documents):
        split = "val" if number in case.val else "train"
        documents.setdefault(split, []).append([*before, *body, *behind])
    return documents


def flat(documents: Sequence[Sequence[int]]) -> list[int]:
    """All tokens of documents, one after another."""
    return [token for document in documents for token in document]


class Drawn(NamedTuple):
    """A store of any documents, and a way to export it."""

    case: Case
    edges: Edges
    shard_tokens: int
    shuffle: int | None


@st.composite
def stores_to_export(draw: st.DrawFn, with_loss: st.SearchStrategy[bool] | None = None) -> Drawn:
    """A few short documents, with BOS or a loss mask or without, and any edges and size of shards."""
    bodies = draw(st.lists(st.lists(st.integers(2, 299), max_size=12), min_size=1, max_size=12))
    with_bos = draw(st.booleans())
    edges: list[Edges] = ["eod", "bos", "none", "both"]
    loss = tuple(tuple(token % 2 for token in range(len(body) + 1 + with_bos)) for body in bodies)
    masked = draw(st.booleans() if with_loss is None else with_loss)
    case = Case("law", tuple(map(tuple, bodies)), 300, 0, 1 if with_bos else None, loss if masked else None)
    chosen = draw(st.sampled_from(edges if with_bos else edges[:3]))
    return Drawn(case, chosen, draw(st.integers(1, 30)), draw(st.none() | st.integers(0, 5)))


IGNORED = -100


def rows_by_hand(
    documents: Sequence[Sequence[int]],
    seq_len: int,
    pad_id: int,
    masks: Sequence[Sequence[int]] | None = None,
) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Tokens, targets and lengths of rows that are cut from documents back to back."""
    stream, targets = [], []
    for number, document in enumerate(documents):
        for place, token in enumerate(document):
            stream.append(token)
            after = place + 1
            known = after < len(document) and (masks is None or masks[number][after])
            targets.append(document[after] if known else IGNORED)
    tokens, wanted, lengths = [], [], []
    for begin in range(0, len(stream), seq_len):
        row = stream[begin : begin + seq_len]
        empty = seq_len - len(row)
        tokens.append(row + [pad_id] * empty)
        wanted.append(targets[begin : begin + seq_len] + [IGNORED] * empty)
        lengths.append(len(row))
    return tokens, wanted, lengths
