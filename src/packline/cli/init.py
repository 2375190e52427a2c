"""`packline init`: a first recipe or run file, derived from the given files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group

from packline.cli.arguments import MAIN, Count, Inputs, Length, option
from packline.cli.output import output
from packline.conversion import refuse_toml
from packline.errors import PacklineError, RecipeError, StoreError, TokenizerError, hide_credentials
from packline.viewing.text import plural

RUN = Group("Run files", sort_key=10)
SEQ_LEN, BATCH_SIZE = 4096, 32
DEFAULT_TOKENIZER = "openai-community/gpt2"
SEPARATORS = ("<|bos|>", "[SEP]")
"""Tokens that separate documents in vocabularies without an end of text."""


def init(
    *inputs: Inputs,
    preset: Annotated[str | None, option("Well-known dataset, instead of INPUTS.", MAIN)] = None,
    tokenizer: Annotated[
        str | None, option(f"Tokenizer of the recipe. Default: {DEFAULT_TOKENIZER}.", MAIN)
    ] = None,
    eod: Annotated[str | None, option("End-of-document token. Default: the tokenizer's own.", MAIN)] = None,
    out: Annotated[
        str | None, option("File to write. Default: recipe.toml, or run.toml.", MAIN, alias="-o")
    ] = None,
    force: Annotated[bool, option("Replace an existing file.", MAIN)] = False,
    run: Annotated[str | None, option("Store for which to write a run file.", RUN)] = None,
    recipe: Annotated[str | None, option("Recipe of the store, for weights and budgets.", RUN)] = None,
    seq_len: Annotated[Length | None, option(f"Tokens per row. Default: {SEQ_LEN}.", RUN)] = None,
    batch_size: Annotated[Count | None, option(f"Rows per global batch. Default: {BATCH_SIZE}.", RUN)] = None,
    tokens: Annotated[Count | None, option("Tokens of the stage. Default: the sum of budgets.", RUN)] = None,
) -> int:
    r"""Write a first recipe, or a run file.

    Reads the first records of INPUTS to find their fields and which of them hold
    the text; a folder of mixed files becomes a source for each kind of them. The
    recipe can be built unchanged; its comments show other choices.
    --preset writes the recipe of a well-known dataset. --run writes a run file
    for a store, with the weights or budgets of --recipe.

    Examples:

      packline init 'web/*.jsonl.zst' books/ --tokenizer gpt2/tokenizer.json
      packline init --preset wikitext-103 --tokenizer gpt2 --out wiki.toml
      packline init --run store --recipe recipe.toml --seq-len 4096 \
          --out run.toml

    Presets: fineweb-edu, wikitext-103, tinystories, openwebtext, climbmix.
    """
    if sum([bool(inputs), preset is not None, run is not None]) != 1:
        raise RecipeError("init takes INPUTS, --preset or --run", hint="packline init --help")
    of_runs = {"--recipe": recipe, "--seq-len": seq_len, "--batch-size": batch_size, "--tokens": tokens}
    of_recipes = {"--tokenizer": tokenizer, "--eod": eod}
    for name, value in (of_recipes if run is not None else of_runs).items():
        if value is not None:
            raise RecipeError(f"{name} is for a {'recipe' if run is not None else 'run file: --run STORE'}")
    for name in inputs:
        refuse_toml(name, "files of text")
    path = Path(out or ("recipe.toml" if run is None else "run.toml"))
    if path.exists() and not force:
        raise StoreError(f"{path} is there already", hint="--force replaces it; --out chooses another name")
    if run is not None:
        text = _run_file(run, recipe, path, seq_len, batch_size, tokens)
    else:
        text = _recipe(inputs, preset, tokenizer, eod, path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint="choose another --out") from error
    next_step = f"packline trace {path} --step 0" if run is not None else f"packline build {path} --out store"
    output.facts({"wrote": (str(path), "good"), "next": next_step})
    return output.result("init", path=str(path), next=next_step)


def _run_file(
    store: str,
    recipe: str | None,
    path: Path,
    seq_len: int | None,
    batch_size: int | None,
    tokens: int | None,
) -> str:
    from packline.loading.run_file import draft_run
    from packline.recipe import load_shares
    from packline.store.reader import StoreReader

    shares = load_shares(recipe) if recipe is not None else []
    return draft_run(
        StoreReader(store),
        shares,
        seq_len=SEQ_LEN if seq_len is None else seq_len,
        batch_size=BATCH_SIZE if batch_size is None else batch_size,
        folder=path.parent,
        tokens=tokens,
    )


def _recipe(
    inputs: tuple[str, ...], preset: str | None, tokenizer: str | None, eod: str | None, path: Path
) -> str:
    from packline.sources.drafting import draft_recipe, find_preset, survey

    found = find_preset(preset) if preset is not None else None
    surveys = []
    for given in inputs:
        output.note(f"looking at the first records of {hide_credentials(given)}")
        found_here = survey(given)
        surveys += found_here
        if count := len(found_here[0].left_out):
            which = f"{plural(count, 'file')} of {given} {'is' if count == 1 else 'are'} left out"
            output.warning(which, "the recipe has the reasons")
    notes = [] if tokenizer else ["No tokenizer was named: this is only the best known one."]
    name = tokenizer or DEFAULT_TOKENIZER
    if tokenizer is not None and eod is None:
        eod, note = guess_eod(tokenizer)
        notes += [note] if note else []
    return draft_recipe(surveys, tokenizer=name, eod=eod, folder=path.parent, notes=notes, preset=found)


def guess_eod(tokenizer: str) -> tuple[str | None, str]:
    """End of document: the tokenizer's only candidate or the likeliest one, and a note on the choice."""
    from packline.encoders.special_tokens import END_OF_TEXT, resolve_boundary
    from packline.encoders.tokenizer import load_tokenizer

    try:
        loaded = load_tokenizer(tokenizer, None)
    except PacklineError as error:
        return None, f"The tokenizer could not be looked at: {error}".replace("\n", " ")
    try:
        return resolve_boundary(loaded, None, None).eod, ""
    except TokenizerError:
        likely = next((end for end in (*END_OF_TEXT, *SEPARATORS) if end in loaded.special_tokens), None)
        if likely is None:
            return None, "This tokenizer does not declare what ends a document: eod has to be given."
        return likely, "This tokenizer leaves a choice of what ends a document; this is a guess."
