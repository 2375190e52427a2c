"""Arrays from a pass over all lengths, kept on disk so that no process computes them again: pack plans.

    <store>/plans/3f9c21d07a54be18/        named by the fingerprint of store, selection and settings
        plan.json                          fingerprint, facts, and each array's dtype, size and checksum
        order.u4  long_rows.i8  ...        little-endian, no header, mapped when read

A plan belongs to one store and one set of settings. It is looked up by its fingerprint, which `plan.json`
records too, and refused if the two differ. `plan.json` is written last (`publication`); without it there is
no plan. Processes that make the same plan at once do the work twice, and find each other's files equal.

Checksums are compared when a plan is loaded, if it has at most 1 GB (a tenth of a second); for a larger plan
only sizes are, unless `check=True` (as in `packline info --seq-len N --write`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import Hasher, hash_value
from packline.storage.local import LocalFolder, disk_errors, user_cache
from packline.storage.publication import Publication
from packline.store.files import stat_file
from packline.store.reader import StoreReader

FORMAT_VERSION = 1
PLAN, PLANS = "plan.json", "plans"
CHECKED_BYTES = 10**9
"""Bytes of all arrays up to which checksums are compared on every load."""
BLOCK_BYTES = 16 << 20
NAME = re.compile(r"[a-z][a-z_]*")
DTYPES = ("<u2", "<u4", "<i4", "<i8")


class ArrayEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array of a plan."""

    dtype: str
    size: int
    checksum: str


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`plan.json`."""

    format_version: int
    fingerprint: str
    arrays: dict[str, ArrayEntry]
    facts: dict[str, Any]
    checksum: str = ""
    """Checksum of all other fields."""

    def sealed(self) -> PlanFile:
        """Copy with the checksum of the other fields."""
        empty = msgspec.structs.replace(self, checksum="")
        return msgspec.structs.replace(self, checksum=hash_value(empty))


@dataclass(frozen=True, slots=True)
class CachedArrays:
    """Arrays by name, and the facts that were kept with them."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    folder: Path | None = None
    """Folder that the arrays are mapped from; None: in memory only."""


def plan_folder(store: StoreReader, fingerprint: str, plans: str | Path | None = None) -> Path:
    """Folder of a plan, existing or to be written.

    Args:
        store: store that the plan belongs to.
        fingerprint: fingerprint of the plan.
        plans: folder of plans; default `plans` in the store, or packline's folder below `$XDG_CACHE_HOME` if
            the store is not writable.
    """
    name = fingerprint[:16]
    if plans is not None:
        return Path(plans) / name
    cache = user_cache() / PLANS
    if not isinstance(store.place, Path):
        return cache / name
    beside = store.place / PLANS
    for folder in (beside, cache):
        if (folder / name).exists():
            return folder / name
    writable = os.access(beside if beside.exists() else store.place, os.W_OK | os.X_OK)
    return (beside if writable else cache) / name


def cached_arrays(
    folder: Path,
    fingerprint: str,
    make: Callable[[], CachedArrays],
    *,
    save: bool = True,
    check: bool | None = None,
) -> CachedArrays:
    """Map the existing plan, or make it and keep it for the next time.

    Args:
        folder: folder of this plan.
        fingerprint: fingerprint of everything that the plan depends on.
        make: makes the plan in memory; called only if there is none.
        save: write a plan that was made; False if making it again is cheaper than a file.
        check: compare checksums of an existing plan, as in `load_arrays`.

    Raises:
        CorruptStore: the folder holds another plan, or is damaged.
        StoreError: the plan cannot be written.
        OutOfSpace: the disk is full.

    >>> made = CachedArrays({"order": np.array([1, 0], np.uint32)}, {"rows": 2})
    >>> cached_arrays(Path("nowhere"), "3f9c21d07a54be18", lambda: made, save=False) is made
    True
    """
    plan = load_arrays(folder, fingerprint, check=check)
    if plan is None:
        plan = make()
        if save:
            plan = save_arrays(folder, fingerprint, plan.arrays, plan.facts)
    return plan


def save_arrays(
    folder: Path, fingerprint: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]
) -> CachedArrays:
    """Write a plan and map it. If another process was faster, its plan is mapped.

    Args:
        folder: folder of this plan; its parents are created.
        fingerprint: fingerprint of everything that the plan depends on.
        arrays: arrays by name (lowercase letters and underscores), of uint16, uint32, int32 or int64.
        facts: values that JSON can hold.

    Raises:
        StoreError: the folder cannot be written to.
        OutOfSpace: the disk is full.
        CorruptStore: something that is not this plan is in the folder.
    """
    if (found := load_arrays(folder, fingerprint)) is not None:
        return found
    storage, waiting = LocalFolder(folder), folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    try:
        with disk_errors(folder.parent):
            waiting.mkdir(parents=True)
            entries = {name: _write_array(waiting, name, array) for name, array in arrays.items()}
            contents = PlanFile(
                format_version=FORMAT_VERSION, fingerprint=fingerprint, arrays=entries, facts=dict(facts)
            )
            storage.put_files({path.name: path for path in waiting.iterdir()})
            Publication(storage, PLAN).publish({PLAN: _json_form(contents.sealed())})
    except OSError as error:
        if isinstance(error, StoreError) or error.strerror is None:
            raise
        raise StoreError(
            f"cannot write the plan {folder}: {error.strerror}", hint="plans= names another folder for plans"
        ) from error
    finally:
        shutil.rmtree(waiting, ignore_errors=True)
    plan = load_arrays(folder, fingerprint)
    if plan is None:
        raise CorruptStore(f"the plan {folder} was removed while it was written", hint="run it again")
    return plan


def load_arrays(folder: Path, fingerprint: str, *, check: bool | None = None) -> CachedArrays | None:
    """Map a plan.

    Args:
        folder: folder of this plan.
        fingerprint: fingerprint of the expected plan.
        check: compare checksums; by default if all arrays have at most 1 GB.

    Returns:
        None if there is no such plan.

    Raises:
        CorruptStore: the plan belongs to another store or other settings, has another version, or is damaged.

    >>> load_arrays(Path("nowhere"), "3f9c21d07a54be18") is None
    True
    """
    if not os.path.lexists(folder / PLAN):
        return None
    contents = _read_contents(folder)
    if contents.fingerprint != fingerprint:
        raise _refused(
            folder,
            "is a plan of another store or of other settings: "
            f"expected fingerprint {fingerprint}, found {contents.fingerprint}",
        )
    total = sum(np.dtype(entry.dtype).itemsize * entry.size for entry in contents.arrays.values())
    check = total <= CHECKED_BYTES if check is None else check
    arrays = {name: _map_array(folder, name, entry, check) for name, entry in contents.arrays.items()}
    return CachedArrays(arrays, contents.facts, folder)


def _read_contents(folder: Path) -> PlanFile:
    try:
        stat_file(folder / PLAN, folder)
        data = (folder / PLAN).read_bytes()
    except CorruptStore as error:
        raise _refused(folder, f"has no {PLAN} that can be read: {error}") from error
    except OSError as error:
        raise _refused(folder, f"has no {PLAN} that can be read: {error.strerror}") from error
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format_version")
        if version != FORMAT_VERSION:
            raise _refused(folder, f"has format version {version!r}: expected {FORMAT_VERSION}")
        contents = msgspec.json.decode(data, type=PlanFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(folder, f"has a damaged {PLAN}: {error}") from error
    if contents.sealed().checksum != contents.checksum or data != _json_form(contents):
        raise _refused(folder, f"has a damaged {PLAN}: its checksum differs from its contents")
    for name, entry in contents.arrays.items():
        if not NAME.fullmatch(name) or entry.dtype not in DTYPES or entry.size < 0:
            raise _refused(folder, f"has a {PLAN} that names an array {name!r} of {entry.dtype!r}")
    return contents


def _json_form(contents: PlanFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(contents))


def _array_path(folder: Path, name: str, dtype: str) -> Path:
    return folder / f"{name}.{dtype[1:]}"


def _write_array(folder: Path, name: str, array: np.ndarray) -> ArrayEntry:
    dtype = array.dtype.newbyteorder("<").str
    if not NAME.fullmatch(name) or dtype not in DTYPES or array.ndim != 1:
        raise ValueError(f"{name}: a plan holds no array of {array.dtype} and {array.ndim} dimensions")
    hasher = Hasher()
    with _array_path(folder, name, dtype).open("wb") as file:
        for block in _blocks(array, dtype):
            hasher.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return ArrayEntry(dtype, len(array), hasher.hexdigest())


def _blocks(array: np.ndarray, dtype: str) -> Iterator[memoryview]:
    step = BLOCK_BYTES // array.dtype.itemsize
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step], dtype).data


def _map_array(folder: Path, name: str, entry: ArrayEntry, check: bool) -> np.ndarray:
    path, dtype = _array_path(folder, name, entry.dtype), np.dtype(entry.dtype)
    expected = dtype.itemsize * entry.size
    try:
        found = stat_file(path, folder).st_size
        array = np.memmap(path, dtype, "r").view(np.ndarray) if found == expected > 0 else np.empty(0, dtype)
    except CorruptStore as error:
        raise _refused(folder, f"has no {path.name} that can be read: {error}") from error
    except OSError as error:
        raise _refused(folder, f"has no {path.name} that can be read: {error.strerror}") from error
    if found != expected:
        raise _refused(folder, f"has a {path.name} of {found:,} bytes: expected {expected:,}")
    if check:
        hasher = Hasher()
        for block in _blocks(array, dtype.str):
            hasher.update(block)
        if hasher.hexdigest() != entry.checksum:
            raise _refused(
                folder,
                f"has a damaged {path.name}: expected checksum {entry.checksum}, found {hasher.hexdigest()}",
            )
    return array


def _refused(folder: Path, what: str) -> CorruptStore:
    return CorruptStore(f"the plan {folder} {what}", hint="delete that folder: the plan is made again")


class PlanMemory:
    """Plans of a store that is still being built: kept in memory, since each is for a moment's state.

    Plans of windows are kept up to `MEMORY_DOCUMENTS` documents, the newest first; numbers of rows always.
    """

    def __init__(self) -> None:
        self.filtered: dict[str, tuple[int, int, np.ndarray, dict[str, Any]]] = {}
        """Results of filters for the first shards, by settings: shards, documents, places left, facts."""
        self._plans: dict[Hashable, CachedArrays] = {}
        self._rows: dict[Hashable, int] = {}

    def plan(self, key: Hashable, make: Callable[[], CachedArrays]) -> CachedArrays:
        """Plan of a window, made if it is not kept."""
        plan = self._plans.pop(key, None) or make()
        self._plans[key] = plan  # the newest is last
        held = sum(len(one.arrays["order"]) for one in self._plans.values())
        while held > MEMORY_DOCUMENTS and len(self._plans) > 1:
            held -= len(self._plans.pop(next(iter(self._plans))).arrays["order"])
        return plan

    def rows(
        self, key: Hashable, make: Callable[[], CachedArrays], count: Callable[[CachedArrays], int]
    ) -> int:
        """Number of rows of a window."""
        if key not in self._rows:
            self._rows[key] = count(self.plan(key, make))
        return self._rows[key]


MEMORY_DOCUMENTS = 1 << 22
"""Documents of the plans that a `PlanMemory` keeps: 16 MB, or 32 for very long rows."""
LARGE = 8 << 20
"""Bytes above which a table goes to disk, where all processes share it and no restart repeats its pass, which
takes seconds."""


def cached_table(
    store: StoreReader,
    plans: str | Path | PlanMemory | None,
    settings: dict[str, Any],
    make: Callable[[], tuple[np.ndarray, dict[str, Any]]],
    *,
    large: int,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Make a table, or map an existing one.

    Args:
        store: store whose lengths the table is computed from.
        plans: folder of plans; default below the store.
        settings: everything the table depends on in addition to the store.
        make: runs the pass and returns the table, and facts about it as JSON values.
        large: bytes that the table may take; determines where it is kept.

    Returns:
        The table and its facts.

    Raises:
        CorruptStore: the plan on disk is damaged, or belongs to another store.
    """
    if large <= LARGE or isinstance(plans, PlanMemory):
        return make()
    fingerprint = hash_value({"store": store.manifest.checksum, "table": settings})

    def make_plan() -> CachedArrays:
        table, facts = make()
        return CachedArrays({"table": table}, facts)

    plan = cached_arrays(plan_folder(store, fingerprint, plans), fingerprint, make_plan)
    return plan.arrays["table"], plan.facts
