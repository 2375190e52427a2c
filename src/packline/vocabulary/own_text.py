"""A sample of the user's own text, for comparing tokenizers on it.

    a plain file                                     its beginning, unchanged
    JSON lines, Parquet, compressed files, folders   the first documents, as a build reads them

Raw JSON lines would measure quotes and escapes instead of text.

Cost: reading 4 MiB. Only the beginning is read, and records that cannot be read are not counted; a build
counts them.
"""

from __future__ import annotations

from pathlib import Path

from packline.errors import InputError
from packline.recipe import Recipe, Source
from packline.sources.files import TEXT_FIELDS
from packline.vocabulary.training_texts import TrainingTexts

TEXT_BYTES = 4 << 20
"""Size of the sample, in bytes."""


def read_text(path: str) -> str:
    """Read the beginning of a plain file, or of the documents of other files, joined by line ends.

    Args:
        path: a file or a folder.

    Returns:
        Text of at most `TEXT_BYTES` in UTF-8, cut between characters.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or has no text.
    """
    if Path(path).exists():
        texts = _documents(path)
        if Path(path).is_dir() or any(file.format != "text" or file.compression for file in texts.files):
            whole = "\n".join(text for batch in texts.batches() for text in batch)
            if not whole:
                raise InputError(f"{path} has no text: expected documents to compare on")
            return whole.encode("utf-8")[:TEXT_BYTES].decode("utf-8", "ignore")
    try:
        with Path(path).open("rb") as file:
            data = file.read(TEXT_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(data) < TEXT_BYTES or error.start < len(data) - 3:
            raise InputError(f"{path} is not UTF-8 at byte {error.start}") from error
        text = data[: error.start].decode("utf-8")
    if not text:
        raise InputError(f"{path} is empty: expected text to compare on")
    return text


def _documents(path: str) -> TrainingTexts:
    try:
        return TrainingTexts(Recipe(sources=(Source(inputs=(path,)),), tokenizer=""), max_chars=TEXT_BYTES)
    except InputError as error:  # its hint names an option of `build`
        fields = ", ".join(TEXT_FIELDS)
        raise InputError(str(error), hint=f"of records, text is the first field of {fields}") from error
