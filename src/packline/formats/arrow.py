"""Documents as a data set of the `datasets` library: `load_from_disk(OUT)`.

    state.json, dataset_info.json, data-00000-of-00002.arrow, ...           for one split
    dataset_dict.json, train/..., validation/...                            for two splits

    input_ids   list<int32>     one row per document, as expected by trainers of `transformers`
    labels      list<int32>     with a loss mask only: ids, and -100 where a token is not trained on;
                                or `loss_mask`, list<int8>; not shifted, since trainers do that themselves
    source, file, position, id                                              on request

Reads data sets made by `save_to_disk`, with any other columns, and single streams. Splits are found by name:
train, and all names like validation or test, which are `val`. Boundary tokens are determined by `edges`;
padding is determined by the attention mask.
"""

from __future__ import annotations

from pathlib import Path

from packline.formats.document_view import DocumentView
from packline.formats.export_record import ExportRecord, Target
from packline.formats.format import DatasetReader, DocumentFormat
from packline.formats.layouts.column_reader import ColumnsReader
from packline.formats.layouts.columns import (
    SPLITS,
    ColumnOptions,
    column_types,
    make_schema,
    plan_columns,
    record_batches,
)
from packline.formats.layouts.document_files import folder_of
from packline.formats.layouts.hf_disk import (
    SEQ_LENGTHS,
    SavedFiles,
    features_of_saved,
    write_dict,
    write_folder,
    write_stream,
)
from packline.formats.types import ExportPart, ExportPlan, Facts, WrittenPart
from packline.store.report import Findings

BATCH_DOCUMENTS = 1000
BATCH_TOKENS = 1 << 20
FILE = "data-{number:05d}-of-{count:05d}.arrow"


class ArrowOptions(ColumnOptions, frozen=True):
    """Options of a saved data set."""


class Arrow(DocumentFormat):
    name = "arrow"
    title = "datasets: a folder for load_from_disk, one document per row in input_ids"
    options = ArrowOptions

    def trainer_lines(self, out: str, record: ExportRecord, options: ArrowOptions) -> tuple[str, ...]:
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

    def plan(self, view: DocumentView, options: ArrowOptions) -> ExportPlan:
        return plan_columns(view, options, self.name, folder_of(view, "{split}") + FILE)

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: ArrowOptions) -> Facts:
        batches = record_batches(
            view, part, options, target, most_documents=BATCH_DOCUMENTS, most_tokens=BATCH_TOKENS
        )
        schema = make_schema(column_types(view, options))
        return {"checksum": write_stream(target, part.name, schema, batches)}

    def finish(
        self, view: DocumentView, written: list[WrittenPart], target: Target, options: ArrowOptions
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

    def open(self, path: Path, options: ArrowOptions, findings: Findings) -> DatasetReader:
        saved = SavedFiles(path, findings)
        sources = saved.open(options.column, options.loss != "none", findings)
        return ColumnsReader(saved.files, sources, edges=options.edges, findings=findings)


FORMAT = Arrow()
