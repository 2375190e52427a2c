"""Every error that packline raises on purpose, in one tree.

    PacklineError
    ├── RecipeError        (ValueError)         a setting that makes no sense
    ├── InputError         (OSError)            an input that cannot be found or opened
    │   ├── NoDocuments                         inputs of which no document is left
    │   └── InputChanged                        an input that is not what it was when the build began
    ├── TokenizerError     (ValueError)         not a tokenizer, or not one that can do what was asked
    ├── EncoderMismatch    (RuntimeError)       an engine's ids differ from the reference's
    ├── BadRecord          (ValueError)         a bad record under `strict`
    ├── StoreError         (OSError)            a folder that is not the store it should be
    │   ├── StoreNotFound  (FileNotFoundError)  nothing there, or a build that has not finished
    │   ├── StoreBusy                           another build holds the folder
    │   ├── ResumeMismatch                      the folder holds a build of something else
    │   └── CorruptStore                        files that disagree with the manifest
    ├── MixedDocuments     (RuntimeError)       a model lets documents of a packed row see each other
    ├── OutOfMemory        (MemoryError)        a document that does not fit into the memory of a worker
    ├── OutputError        (OSError)            standard output is closed or full
    ├── OutOfSpace         (OSError)            the disk is full
    └── WorkerDied         (RuntimeError)       a worker process ended by itself

A message says, in this order: what failed; where (file, unit, row or byte); what was expected and
what was found. `hint` says what to do about it. Both are one line each.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PacklineError(Exception):
    """Root of all packline errors.

    Args:
        message: what failed, where, expected and found.
        hint: what to do about it.

    >>> str(PacklineError("it broke", hint="mend it"))
    'it broke'
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint for a name that is not known; empty where no known one is like it.

    >>> did_you_mean("boddy", ["title", "body"]), did_you_mean("x", ["title", "body"])
    ("did you mean 'body'? ", '')
    """
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {near[0]!r}? " if near else ""


class RecipeError(PacklineError, ValueError):
    """A setting that is missing, unknown or contradicts another."""


class InputError(PacklineError, OSError):
    """An input that cannot be found, listed or opened."""


class InputChanged(InputError):
    """An input whose bytes are not those that the build began with."""


class NoDocuments(InputError):
    """Inputs of which no document is left; the store is complete, and empty."""


class TokenizerError(PacklineError, ValueError):
    """Not a tokenizer, or one that cannot do what was asked."""


class EncoderMismatch(PacklineError, RuntimeError):
    """An engine gave other ids than the reference tokenizer for a document."""


class BadRecord(PacklineError, ValueError):
    """The first bad record of a build that was told to be strict."""


class StoreError(PacklineError, OSError):
    """A folder that is not the store it should be."""


class StoreNotFound(StoreError, FileNotFoundError):
    """No finished store in this folder."""


class StoreBusy(StoreError):
    """Another build is writing into this folder."""


class ResumeMismatch(StoreError):
    """The folder holds a build of another recipe or of other inputs."""


class CorruptStore(StoreError):
    """Files of a store disagree with its manifest or with each other."""


class MixedDocuments(PacklineError, RuntimeError):
    """A model lets the documents of a packed row see each other."""


class OutOfSpace(PacklineError, OSError):
    """The disk is full; what was committed is safe."""


class OutOfMemory(PacklineError, MemoryError):
    """A document that does not fit into the memory of a worker; what was committed is safe."""


class OutputError(PacklineError, OSError):
    """Standard output is closed or cannot be written; what a command has made is complete."""


class WorkerDied(PacklineError, RuntimeError):
    """A worker process ended by itself, often because memory ran out."""


ERRORS: dict[str, type[PacklineError]] = {
    error.__name__: error
    for error in (
        PacklineError,
        RecipeError,
        InputError,
        InputChanged,
        NoDocuments,
        TokenizerError,
        EncoderMismatch,
        BadRecord,
        StoreError,
        StoreNotFound,
        StoreBusy,
        ResumeMismatch,
        CorruptStore,
        MixedDocuments,
        OutOfMemory,
        OutOfSpace,
        OutputError,
        WorkerDied,
    )
}
"""By name, so that an error can cross from one process to another."""
