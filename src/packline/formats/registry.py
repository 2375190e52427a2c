"""Registry of formats: their names, and the module that implements each.

A format is imported on first use, so the list costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from packline.errors import InputError, RecipeError
from packline.formats.format import Format

DOCUMENT_FORMATS = (
    "megatron", "llmc", "nanogpt", "npy", "datatrove", "olmo", "forager", "arrow", "parquet",
    "stacks",
)  # fmt: skip
ROW_FORMATS = ("npz", "pt", "litdata", "mds", "trl", "baked")
NAMES = (*DOCUMENT_FORMATS, *ROW_FORMATS)


def get_format(name: str) -> Format:
    """Format of this name.

    Raises:
        RecipeError: there is no such format, or it needs a module that is not installed.

    >>> get_format("tfrecord")
    Traceback (most recent call last):
    packline.errors.RecipeError: no format 'tfrecord'
    """
    if name not in NAMES:
        raise RecipeError(f"no format {name!r}", hint=f"expected one of {', '.join(NAMES)}")
    format: Format = importlib.import_module(f"packline.formats.{name}").FORMAT
    for module in format.needs:
        if importlib.util.find_spec(module) is None:
            raise RecipeError(f"the format {name} needs {module}", hint=f"pip install 'packline[{module}]'")
    return format


def recognise(path: Path) -> Format:
    """Format of a file or folder, if unambiguous.

    Raises:
        InputError: none matches, or several do.
    """
    found = [
        name for name in NAMES if importlib.import_module(f"packline.formats.{name}").FORMAT.recognises(path)
    ]
    if len(found) == 1:
        return get_format(found[0])
    what = f"it could be {' or '.join(found)}" if found else "it looks like none that packline knows"
    raise InputError(f"{path}: expected files of one format: {what}", hint="name it with --from")
