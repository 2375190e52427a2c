"""`packline export`: a store, a run or text in the layout of another project."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

from cyclopts import Group, Parameter

from packline.cli.arguments import (
    MAIN,
    ROWS,
    RUNNING,
    DocumentArguments,
    PlaceArguments,
    RowArguments,
    TokenName,
    option,
    options_of,
)
from packline.cli.output import Line, output
from packline.cli.progress import watch
from packline.errors import InputError, RecipeError
from packline.formats.choice import make_choice, with_weights
from packline.formats.export import Exported, ExportPlanned, make_export, run_export
from packline.formats.format import get_format
from packline.jobs.engine import plan_job
from packline.jobs.events import Planned
from packline.jobs.machines import On
from packline.settings import is_recipe, make_recipe
from packline.storage.local import Link
from packline.storage.places import is_remote, store_beside
from packline.viewing.text import duration, plural, size

TEXT = Group("Text", sort_key=10)
_PLACE, _ROWS, _DOCUMENTS = PlaceArguments(), RowArguments(), DocumentArguments()


def export(
    *source: Annotated[
        str,
        Parameter(help="Folder of a store, a run file (.toml), or text: files, folders, globs, a recipe."),
    ],
    to: Annotated[str, Parameter(help="Output format; `packline formats` lists them.")],
    out: Annotated[
        str, Parameter(help="Output folder, or URI: new, empty, or with this export.", alias="-o")
    ],
    set: Annotated[
        list[str] | None,
        option("Option of the format: NAME=VALUE, a list as NAME=A,B. May be repeated.", MAIN),
    ] = None,
    dry_run: Annotated[bool, option("Show what would be written; write nothing.", MAIN)] = False,
    link: Annotated[Link, option("How to share files with the store. Default: auto.", RUNNING)] = "auto",
    workers: Annotated[
        int | None, option("Number of threads. Default: one per usable core.", RUNNING)
    ] = None,
    tokenizer: Annotated[
        str | None, option("Tokenizer for text, which is first built into a store at OUT.store.", TEXT)
    ] = None,
    eod: Annotated[TokenName | None, option("End-of-document token: its string or id.", TEXT)] = None,
    val_fraction: Annotated[float | None, option("Fraction of documents for validation.", TEXT)] = None,
    stage: Annotated[int | None, option("Stage of a run file. Default: all.", ROWS)] = None,
    keep_untrained: Annotated[bool | None, option("Also rows without a trained token.", ROWS)] = None,
    rows: RowArguments = _ROWS,
    documents: DocumentArguments = _DOCUMENTS,
    place: PlaceArguments = _PLACE,
) -> int:
    r"""Write a store, a run or text in the layout of another project.

    SOURCE is the folder of a store; or a run file (run.toml), for formats of rows;
    or text with --tokenizer, which first becomes a store at OUT.store. Anything
    that the format cannot represent is reported before the export begins. Files
    with the same bytes as the store's are hard links if possible: do not change
    them. After an interruption the same command resumes the export. Without
    --split rows of several splits are written to OUT/train, OUT/val, ...

    Examples:

      packline export store --to megatron --out data
      packline export store --to llmc --out data --set shard_tokens=50000000
      packline export store --to mds --out rows --seq-len 2048 --seed 1
      packline export run.toml --to baked --out rows
      packline export run.toml --to npz --out batches --stage 0
      packline export 'web/*.jsonl.zst' --tokenizer gpt2/tokenizer.json \
          --to nanogpt --out data
    """
    of_text = {"eod": eod, "val_fraction": val_fraction}
    on = place.place()
    chosen = documents.settings(" ".join(source), rows=get_format(to).kind == "rows") | rows.given()
    choice, _ = make_choice({**chosen, "stage": stage, "keep_untrained": keep_untrained})
    given: dict[str, Any] = {"to": to, "out": out, "options": options_of(set), "choice": choice}
    given |= {"link": link, "workers": workers, "on": on}
    if dry_run:
        return _dry_run(list(source), given)
    store = _store_of(list(source), tokenizer, out, workers, on, of_text)
    if len(source) == 1 and is_recipe(source[0]):
        given["options"] = with_weights(to, given["options"], source[0])
    with watch(export_lines) as (_, hear):
        exported = run_export(store, on_event=hear, **given)
    show_exported(exported)
    return output.result("export", exported)


def _dry_run(sources: list[str], given: dict[str, Any]) -> int:
    if len(sources) != 1 or is_recipe(sources[0]):
        raise RecipeError(
            "--dry-run of an export needs the store, and this is text",
            hint="packline build INPUTS --dry-run estimates the store",
        )
    job = make_export(sources[0], **given)
    if isinstance(job, Exported):
        show_exported(job)
        return output.result("export", dry_run=True, nothing_to_do=True)
    planned: list[Any] = []
    plan_job(job, planned.append)
    output.lines(export_lines(planned[0]))
    return output.result("export", planned[0], dry_run=True)


def _store_of(
    sources: list[str],
    tokenizer: str | None,
    out: str,
    workers: int | None,
    on: On,
    of_text: dict[str, Any],
) -> str:
    """Store or run to export; for text, a store that is built next to the output."""
    if tokenizer is None and len(sources) == 1 and not is_recipe(sources[0]):
        return sources[0]
    if not sources:
        raise InputError("nothing to export", hint="name the folder of a store, a run file, or text")
    if tokenizer is None and not is_recipe(sources[0]):
        raise InputError(
            f"cannot export {len(sources)} things at once: expected one store or one run file",
            hint="files of text are tokenized on the way with --tokenizer T",
        )
    store = store_beside(out)
    recipe, running = make_recipe(sources, tokenizer, {**of_text, "workers": workers})
    from packline.jobs.build_job import run_build
    from packline.jobs.resources import process_age

    with watch() as (_, hear):
        finished = run_build(recipe, store, running, hear, time.monotonic() - process_age(), on=on)
    if not finished.nothing_to_do:
        output.note(f"built {store}; it is kept: it can be exported again, read and traced")
    return store


HOW = {"linked": "hard links", "reflinked": "reflinks", "copied": "copies"}


def export_lines(planned: Planned) -> list[Line]:
    """Lines on the planned output: its files, those shared with the store, and what it cannot represent."""
    assert isinstance(planned, ExportPlanned)
    tokens = planned.tokens or 0
    if planned.rows:
        what = f"{plural(planned.rows, 'row')} of {plural(tokens // planned.rows, 'token')}"
    else:
        what = f"{plural(planned.documents or 0, 'document')}, {plural(tokens, 'token')}"
    work = f"{what}, {plural(planned.units, 'part')}"
    if planned.units_done:
        work += f", {planned.units_done:,} of them done by an earlier run"
    new = planned.bytes + (planned.shared_bytes if planned.sharing == "copied" else 0)
    shared = f"{size(planned.shared_bytes)} as {HOW[planned.sharing]}" if planned.shared_bytes else ""
    return output.fact_lines(
        {
            "writes": f"{planned.format}: {work}",
            "order": planned.order,
            "new on disk": f"about {size(new)}",
            "the store's own": shared,
            "not preserved": list(map(str, planned.lost)),
            "warning": list(planned.warnings),
        }
    )


def show_exported(exported: Exported) -> None:
    if exported.nothing_to_do:
        output.line(f"  {exported.out} holds this export: nothing to do")
        output.facts({"warning": list(exported.warnings)})
        _show_trainer_lines(exported)
        return
    shared = ", ".join(f"{size(count)} of it {HOW[how]}" for how, count in exported.shared.items() if count)
    what = (
        plural(exported.rows, "row") if exported.rows is not None else plural(exported.documents, "document")
    )
    within = f" in {' and '.join(f'{name}/' for name in exported.folders)}" if exported.folders else ""
    where = f"{near(exported.out)}: {plural(exported.files, 'file')}{within}, {size(exported.bytes)}"
    output.line()
    output.facts(
        {
            "exported": f"{what}, {plural(exported.tokens, 'token')} in {duration(exported.seconds)}",
            exported.format: ", ".join([where, shared] if shared else [where]),
            "warning": list(exported.warnings),
        }
    )
    output.line()
    if not is_remote(exported.out):  # another project's dataset is checked on a disk
        command = f"packline verify {near(exported.out)} --from {exported.format}"
        output.line("  check it  ", (command, "hint"))
    _show_trainer_lines(exported)


def _show_trainer_lines(exported: Exported) -> None:
    """Print the lines to paste into the trainer verbatim, without wrapping or markup."""
    if exported.trainer_lines:
        output.line()
        output.line("  for the trainer")
        for line in exported.trainer_lines:
            output.line(f"    {line}")


def near(path: str) -> str:
    """A path relative to the current folder, if it is below it.

    >>> near(os.path.abspath("data")), near("/elsewhere/data"), near("s3://bucket/data")
    ('data', '/elsewhere/data', 's3://bucket/data')
    """
    if is_remote(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
