"""`packline analyze`: the contents of a store, another project's data set or a batch, from every token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from packline.cli.arguments import Length, OnName, Reading, option, place_of
from packline.cli.info import price_facts
from packline.cli.output import output
from packline.cli.verify import show_list
from packline.conversion import is_toml
from packline.errors import RecipeError
from packline.formats.choice import is_store
from packline.packing.exclusions import check_list_path, write_duplicates
from packline.packing.options import Packing
from packline.store.reader import StoreReader
from packline.viewing.analysis import Analysis, analyze_foreign
from packline.viewing.analysis import analyze as analyze_store
from packline.viewing.batch_files import SUFFIXES, read_batch, summarize, summary_table
from packline.viewing.describe import analysis_page, analysis_warnings
from packline.viewing.page import Note
from packline.viewing.tally import OnProgress
from packline.viewing.text import plural

STORE = Group("For a store", sort_key=10)
BATCH = Group("For a batch", sort_key=20)
SHOWN = Group("Amount", sort_key=30)
TOP = 10
_READING = Reading()


def analyze(
    target: Annotated[
        str, Parameter(help="Folder of a store; a dataset of another project; a batch (.npz, .pt).")
    ],
    /,
    *,
    seq_len: Annotated[
        list[Length] | None, option("Tokens per row, for the costs of packings. May be repeated.", STORE)
    ] = None,
    packing: Annotated[Packing | None, option("Only this packing. Default: all.", STORE)] = None,
    workers: Annotated[
        int | None, option("Number of processes. Default: one per usable core.", STORE)
    ] = None,
    tensor_type: Annotated[
        Literal["input", "target", "attention_mask", "both"] | None,
        option("Tensor to count. Default: input and target, and the mask if there is one.", BATCH),
    ] = None,
    pad_id: Annotated[
        int | None,
        option("Padding id, if the file has no lengths or mask. Default: the tokenizer's.", BATCH),
    ] = None,
    write: Annotated[
        str | None,
        option("Write the list of documents with an earlier one's text, LIST.parquet, for --exclude.", STORE),
    ] = None,
    top: Annotated[int, option(f"Items of each kind to list. Default: {TOP}.", SHOWN)] = TOP,
    reading: Reading = _READING,
    on: OnName = None,
) -> int:
    r"""Count the tokens of a store, a dataset or a batch, and find bad documents.

    Reads every token: totals, lengths of documents, padding in rows of --seq-len,
    special tokens, the most used and the unused tokens, documents that repeat
    themselves, have few or many bytes per token, or are duplicates (--write makes
    a list of those that --exclude leaves out). For a batch (.npz, .pt) it counts
    tokens and padding.

    Examples:

      packline analyze store
      packline analyze store --seq-len 2048 --top 20
      packline analyze store --write duplicates.parquet
      packline analyze fineweb.bin --from llmc --tokenizer gpt2/tokenizer.json \
          --set edges=bos
      packline analyze out/tokenized_batch_0001.npz --tokenizer gpt2/tokenizer.json
      packline analyze out/tokenized_batch_0001.npz --tensor-type target
    """
    if top < 0:
        raise RecipeError(f"--top is {top}: expected 0 or more")
    if packing is not None and not seq_len:
        raise RecipeError("--packing belongs to --seq-len, the length of its rows")
    path = Path(target)
    stored = is_store(target, None)
    if write is not None:
        check_list_path(write)
        if not stored and path.exists():
            raise RecipeError(f"--write is for a store; {target} is not a store")
    if path.is_file() and path.suffix in SUFFIXES and reading.from_ is None:
        return show_batch(target, reading.tokenizer, tensor_type, pad_id)
    if tensor_type is not None or pad_id is not None:
        raise RecipeError(f"--tensor-type and --pad-id are for batches, .npz or .pt; {target} is not a batch")
    with watching() as on_progress:
        if stored or not foreign(path, reading):
            found = analyze_store(
                target,
                seq_len=seq_len or (),
                packing=packing,
                top=top,
                workers=workers,
                on=place_of(on),
                on_event=on_progress,
            )
        else:
            found = read_foreign(target, reading, bool(seq_len), top, on_progress)
    output.page(analysis_page(found))
    facts: dict[str, Any] = {
        "bytes_per_token": found.bytes_per_token,
        "prices": [price_facts(price) for price in found.prices],
        "warnings": list(analysis_warnings(found)),
    }
    if write is not None:
        documents, tokens = write_duplicates(write, StoreReader(target))
        show_list(target, write, documents)
        facts["written"] = {"path": write, "documents": documents, "tokens": tokens}
    return output.result("analyze", found, facts, target=target)


def foreign(path: Path, reading: Reading) -> bool:
    """True if the path is to be read as a data set of another project."""
    if is_toml(path):
        return False
    return path.is_file() or (path.exists() and (reading.from_ is not None or reading.tokenizer is not None))


def read_foreign(target: str, reading: Reading, priced: bool, top: int, on_progress: OnProgress) -> Analysis:
    """Analyze a data set of another project."""
    if priced:
        raise RecipeError(
            f"--seq-len is for a store; {target} is not a store", hint="packline import turns it into one"
        )
    if reading.tokenizer is None:
        raise RecipeError(
            f"{target} is not a store, and no tokenizer was named for its ids",
            hint="name the one that made the ids with --tokenizer, and the layout with --from",
        )
    return analyze_foreign(
        target,
        tokenizer=reading.tokenizer,
        format=reading.from_,
        eod=reading.eod,
        bos=reading.bos,
        options=reading.options(),
        top=top,
        on_progress=on_progress,
    )


def show_batch(target: str, tokenizer: str | None, tensor_type: str | None, pad_id: int | None) -> int:
    """Print a table for each tensor."""
    from packline.encoders.tokenizer import load_tokenizer

    batch = read_batch(target, None if tokenizer is None else load_tokenizer(tokenizer), pad_id)
    wanted = ["input", "target"] if tensor_type in (None, "both") else [str(tensor_type)]
    if tensor_type is None and "attention_mask" in batch.tensors:
        wanted.append("attention_mask")
    missing = [tensor for tensor in wanted if tensor not in batch.tensors]
    found = [summarize(batch, tensor) for tensor in wanted if tensor in batch.tensors]
    notes = [Note(f"No {tensor} tensor found in {target}", "warning") for tensor in missing]
    output.blocks(*([summary_table(target, found)] if found else []), *notes)
    output.note((f"padding is determined by {batch.padding_source}", "quiet"))
    if tokenizer is None:
        output.note(("ids were not checked: --tokenizer names their vocabulary", "quiet"))
    return output.result(
        "analyze",
        target=target,
        padding_told_by=batch.padding_source,
        pad_id=batch.pad_id,
        tensors=found,
        missing=missing,
    )


@contextmanager
def watching() -> Iterator[OnProgress]:
    """Show the progress of an analysis in a terminal."""
    done = 0
    with output.progress() as show:

        def hear(tokens: int) -> None:
            nonlocal done
            done += tokens
            show(0.0, f"counting {plural(done, 'token')}")

        yield hear
