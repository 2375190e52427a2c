"""Identity of a build: what must be equal to resume it, and how two builds differ.

An object with an equal strong ETag has equal content, and is not downloaded to compare it. Nothing depends on
the file with the ETags of a store: without it, objects are read again.

Two units of equal settings (`settings_checksum`) that read the same pieces of the same files, with equal
checksums, have the same files. Limits of the build are left out, since a unit that was read to its end does
not depend on them, and so are settings that only refuse (`strict`, `rare_fields`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow

from packline.encoders.special_tokens import Boundary
from packline.errors import ResumeMismatch
from packline.fingerprint import Hasher, hash_value
from packline.recipe import Recipe, recipe_difference
from packline.sources.files import InputFile
from packline.storage.inputs import is_compared, is_strong
from packline.storage.local import publish_bytes, user_cache
from packline.store.manifest import FORMAT_VERSION, Manifest, to_json
from packline.version import __version__

KEPT = 64
"""Number of stores whose ETags are kept."""


def versions() -> dict[str, str]:
    return {"packline": __version__, "store format": str(FORMAT_VERSION), "pyarrow": pyarrow.__version__}


class InputsDigest(msgspec.Struct, frozen=True):
    names: str
    """Checksum of the names and sizes."""
    states: str
    """Checksum of the times of modification."""


def digest_inputs(files: Iterable[InputFile]) -> InputsDigest:
    names, states = Hasher(), Hasher()
    for file in files:
        names.update(msgspec.msgpack.encode((file.source, file.name, file.size)))
        states.update(msgspec.msgpack.encode(file.modified))
    return InputsDigest(names.hexdigest(), states.hexdigest())


class BuildIdentity(msgspec.Struct, frozen=True):
    """Values that must be equal for a build to be resumed."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    boundary: dict[str, Any]
    inputs: InputsDigest
    versions: dict[str, str] = msgspec.field(default_factory=versions)


def etag_of(file: InputFile) -> str:
    """Strong ETag that an object had when it was planned; empty for a local file, and for one without it."""
    return file.modified if is_compared(file.path) and is_strong(file.modified) else ""


def etags_path(checksum: str) -> Path:
    return user_cache() / "etags" / f"{checksum}.json"


def record_etags(manifest: Manifest, names: Sequence[str], files: Iterable[InputFile]) -> None:
    """Record the ETags of the inputs that a store was built from, as planned; failures are ignored."""
    etags = [(names[file.source], file.name, etag) for file in files if (etag := etag_of(file))]
    if not etags:
        return
    with suppress(OSError, RuntimeError):  # no home, no room, not writable
        path = etags_path(msgspec.json.decode(to_json(manifest))["checksum"])
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(path, msgspec.json.encode(etags))
        for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)


def read_etags(checksum: str) -> dict[tuple[str, str], str]:
    """ETags of the inputs of a store when it was built, by source and name; empty if not recorded."""
    try:
        etags = msgspec.json.decode(etags_path(checksum).read_bytes(), type=list[tuple[str, str, str]])
    except (OSError, RuntimeError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {(source, name): etag for source, name, etag in etags}


def input_differences(old: list[tuple[str, int]], new: list[tuple[str, int]]) -> list[str]:
    """Differences between two lists of inputs (name and size), one line each."""
    before, after = dict(old), dict(new)
    lines = [f"input {name} is gone" for name in before if name not in after]
    lines += [f"input {name} is new" for name in after if name not in before]
    lines += [
        f"input {name}: {size:,} bytes -> {after[name]:,} bytes"
        for name, size in before.items()
        if name in after and after[name] != size
    ]
    if not lines and old != new:
        lines.append("the order of the inputs")
    return lines


class Asked(NamedTuple):
    """Content of a result: of a finished store, of an unfinished build, or of the requested one."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    others: dict[str, Any]
    inputs: list[tuple[str, int]]
    """Names and sizes."""


def differences(old: Asked, new: Asked) -> list[str]:
    """Differences between two results, one line each."""
    lines = recipe_difference(msgspec.to_builtins(old.recipe), msgspec.to_builtins(new.recipe))
    lines += recipe_difference(old.others, new.others)
    if old.tokenizer != new.tokenizer:
        lines.append(f"the tokenizer's content: {old.tokenizer[:12]} -> {new.tokenizer[:12]}")
    return lines + input_differences(old.inputs, new.inputs)


def refuse_differences(
    place: Path | str,
    differences: list[str],
    kind: str = "a build",
    hint: str = "repeat the earlier command to resume it, or choose another --out",
) -> None:
    """Raise `ResumeMismatch` if there are any differences; `kind` of job is what the folder contains."""
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ResumeMismatch(
            f"{place} holds {kind} of something else: {'; '.join(differences[:5])}{more}", hint=hint
        )


OF_BUILD = ("packline", "pyarrow", "tokenizer", "boundary", "special_tokens", "max_document_bytes")
OF_SPLITS = ("val_fraction", "test_fraction", "seed")
OF_FILES = ("format", "text", "id", "columns")
"""Settings of a source that act through its files alone."""
OF_NO_BYTE = ("inputs", "name", "rare_fields")
"""Settings of a source that no file of a unit depends on, apart from the names in its receipt."""


def unit_settings(
    recipe: Recipe, source: int, tokenizer: str, boundary: Boundary | None, packline: str = __version__
) -> dict[str, Any]:
    """Settings of the units of a source, by name; `tokenizer` is a fingerprint."""
    own: dict[str, Any] = msgspec.to_builtins(recipe.sources[source])
    return {
        "tokenizer": tokenizer,
        "boundary": msgspec.to_builtins(boundary),
        "special_tokens": recipe.special_tokens,
        "max_document_bytes": recipe.max_document_bytes,
        "val_fraction": recipe.val_fraction,
        "test_fraction": recipe.test_fraction or 0.0,
        "seed": recipe.seed,
        **{name: value for name, value in own.items() if name not in OF_NO_BYTE},
        "packline": packline,
        "pyarrow": pyarrow.__version__,
    }


def settings_checksum(settings: dict[str, Any], files: Iterable[InputFile], slice_bytes: int = 0) -> str:
    """Checksum of all that decides the files of a unit, but for the bytes that it reads."""
    build = {name: settings[name] for name in OF_BUILD}
    shares = [settings[name] for name in OF_SPLITS]
    others = {*OF_BUILD, *OF_SPLITS, *OF_FILES}
    own = {name: value for name, value in settings.items() if name not in others}
    splits = None if settings.get("split") or not any(shares[:2]) else shares
    facts = [
        (file.format, file.compression, file.text, file.id, file.columns or (), file.carried or ())
        for file in files
    ]
    return hash_value([build, own, splits, facts if len(set(facts)) > 1 else facts[:1], slice_bytes])


def setting_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Differences between the settings of two units, one line each."""
    if old["tokenizer"] != new["tokenizer"]:
        return ["another tokenizer"]
    before, after = (
        {"eod": one["boundary"]["eod_id"], "bos": one["boundary"]["bos_id"], **one, "boundary": None}
        for one in (old, new)
    )
    return recipe_difference(before, after)
