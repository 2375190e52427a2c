"""All errors that packline raises on purpose, in one hierarchy.

A message names, in this order: the failure; its location (file, unit, row or byte); the expected value
and the value found. `hint` suggests a remedy; Python shows it below the message. Both are one line each, and
neither repeats the credentials of an address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = "signature|sig|token|key|apikey|credential|password|secret|authorization"
CREDENTIAL = re.compile(
    rf"([?&#](?:[^\s=&]*[-_.])?(?:{_NAMES})(?:[-_.][^\s=&]*)?=)[^\s&#'\"]+", re.ASCII | re.IGNORECASE
)
"""A parameter of an address that must not be published; the first group is its name."""
USER = re.compile(r"(\b[a-z][a-z0-9+.-]*:/{1,2})([^/\s]+)@", re.ASCII | re.IGNORECASE)
"""Beginning of an address with a user; its slashes may have become one in a path."""


def hide_credentials(text: str) -> str:
    """Text without the users, passwords and keys of the addresses in it.

    >>> hide_credentials("zip://a::ftp://me:word@host/x or https://host/x?page=2&api_key=word")
    'zip://a::ftp://host/x or https://host/x?page=2&api_key=...'
    """
    return CREDENTIAL.sub(r"\1...", USER.sub(r"\1", text))


class PacklineError(Exception):
    """Base class of all packline errors.

    Args:
        message: what failed, where, expected and found.
        hint: suggested remedy.

    >>> str(PacklineError("it broke", hint="mend it"))
    'it broke'
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = hide_credentials(message)
        super().__init__(self.message)
        self.hint = hide_credentials(hint)
        if hint:
            self.add_note(f"hint: {self.hint}")

    def __str__(self) -> str:
        return self.message


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Start of a hint for an unknown name; empty if no known name is similar. Case is ignored."""
    import difflib

    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, 1)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


class RecipeError(PacklineError, ValueError):
    """A missing, unknown or contradictory setting."""


def unknown_name(message: str, word: str, known: Iterable[str]) -> RecipeError:
    """Error for a name that is not among the known ones; its hint has the most similar one, and all."""
    names = sorted(known)
    return RecipeError(message, hint=f"{did_you_mean(word, names)}expected one of: {', '.join(names)}")


def refuse_unknown_names(function: F) -> F:
    """Decorator of a public function: `unknown_name` for a keyword that is not among its parameters.

    >>> @refuse_unknown_names
    ... def rows(seq_len, *, split="all"): ...
    >>> rows(8, spilt="val")
    Traceback (most recent call last):
    packline.errors.RecipeError: rows has no setting 'spilt'
    """
    code = function.__code__
    known = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self", "cls"}
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: Any, **settings: Any) -> Any:
        for word in settings.keys() - known:
            raise unknown_name(f"{name} has no setting {word!r}", word, known)
        return function(*args, **settings)

    return cast("F", checked)


class InputError(PacklineError, OSError):
    """An input that cannot be found, listed or opened."""


def refuse_name(path: str) -> None:
    """Refuse a path that is not UTF-8, which provenance and manifest could not contain."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        try:
            name = os.fsencode(path)
        except UnicodeEncodeError:  # not from a file system
            name = path.encode("utf-8", "backslashreplace")
        raise InputError(f"a name is not UTF-8: {name!r}", hint="rename it, or leave it out") from None


class InputChanged(InputError):
    """An input whose bytes have changed since the build began."""


class NoDocuments(InputError):
    """Inputs without any document left; the store is complete, and empty."""


class TokenizerError(PacklineError, ValueError):
    """Not a tokenizer, or one without a required feature."""


class EncoderMismatch(PacklineError, RuntimeError):
    """Ids of an engine that differ from the reference tokenizer's."""


class BadRecord(PacklineError, ValueError):
    """First bad record of a strict build."""


class StoreError(PacklineError, OSError):
    """A folder that is not the expected store."""


class StoreNotFound(StoreError, FileNotFoundError):
    """No finished store in this folder."""


class StoreBusy(StoreError):
    """Another build is writing into this folder."""


class BuildStopped(StoreError):
    """A build that is followed has ended without finishing its store."""


class WaitedTooLong(StoreError, TimeoutError):
    """Units that a step needs were not built within the timeout."""


class ResumeMismatch(StoreError):
    """The folder contains a build of another recipe or of other inputs."""


class CorruptStore(StoreError):
    """Files of a store disagree with its manifest or with each other."""


class HubError(PacklineError, OSError):
    """The hub cannot be reached, or refuses."""


class MixedDocuments(PacklineError, RuntimeError):
    """A model lets the documents of a packed row attend to each other."""


class OutOfSpace(PacklineError, OSError):
    """The disk is full; committed work is safe."""


class OutOfMemory(PacklineError, MemoryError):
    """A document that does not fit into the memory of a worker; committed work is safe."""


class OutputError(PacklineError, OSError):
    """Standard output is closed or cannot be written; the results of the command are complete."""


class UnitsLeft(PacklineError):
    """A slice of a job is done, and units of other slices are not; nothing failed, nothing is published."""


class WorkerDied(PacklineError, RuntimeError):
    """A worker process ended unexpectedly, often because memory ran out."""
