"""Arrays from a pass over all documents, kept on disk so that no process computes them again: plans.

    <store>/plans/3f9c21d07a54be18/plan.bin      named by the fingerprint of store, selection and settings

    checksum of the header   32 digits
    length of the header     8 bytes, little-endian
    header                   JSON: fingerprint, facts, place and type of each array, checksum of all of them
    arrays                   little-endian, each from a multiple of 64 bytes on, mapped when read

The file gets its name when it is complete; processes that make the same plan at once do the work twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import Hasher, hash_bytes, hash_value
from packline.storage.local import LocalFolder, disk_errors, user_cache
from packline.store.files import stat_file
from packline.store.reader import StoreReader

FORMAT_VERSION = 2
"""Part of every fingerprint: another version makes plans anew."""
PLAN, PLANS = "plan.bin", "plans"
CHECKED_BYTES = 10**9
"""Bytes of all arrays up to which checksums are compared on every load."""
LARGE = 8 << 20
"""Bytes above which a plan goes to disk, where all processes share it and no restart repeats its pass, which
takes seconds."""
BLOCK_BYTES = 16 << 20
ALIGNED = 64
HEAD = 40

Plans: TypeAlias = str | Path | dict[Any, Any] | None
"""Folder of plans; None: below the store. A dict keeps them in memory, and nothing is written: for a store
that is still being built, whose plans are for a moment's state."""


class Plan(NamedTuple):
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    folder: Path | None = None
    """Folder that the arrays are mapped from; None: in memory only."""


class PlanHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: str
    facts: dict[str, Any]
    arrays: dict[str, tuple[str, int, int]]
    """dtype, first byte behind the header, and size of each."""
    bytes: int
    checksum: str


def place_type(documents: int) -> np.dtype:
    """Dtype of places of documents in a plan, from their number."""
    return np.dtype("<u4" if documents < 2**32 else "<i8")


def plan_fingerprint(store: StoreReader, settings: dict[str, Any]) -> str:
    return hash_value({"store": store.manifest.checksum, "version": FORMAT_VERSION, **settings})


def plan_folder(store: StoreReader, fingerprint: str, plans: str | Path | None = None) -> Path:
    """Folder of a plan, existing or to be written: in `plans`, next to the store, or in the user's cache."""
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


def find_plan(
    store: StoreReader,
    plans: Plans,
    settings: dict[str, Any],
    make: Callable[[], Plan],
    *,
    size: int,
    save: bool = False,
    check: bool | None = None,
) -> Plan:
    """Map the existing plan, or make it.

    Args:
        settings: everything that the plan depends on in addition to the store.
        size: bytes that the plan takes; a large one is kept on disk.
        save: keep a small one too.
        check: compare checksums of an existing plan, as in `load_plan`.
    """
    if isinstance(plans, dict):
        return make()
    fingerprint = plan_fingerprint(store, settings)
    folder = plan_folder(store, fingerprint, plans)
    plan = load_plan(folder, fingerprint, check=check)
    if plan is None:
        plan = make()
        if save or size > LARGE:
            plan = save_plan(folder, fingerprint, plan)
    return plan


def save_plan(folder: Path, fingerprint: str, plan: Plan) -> Plan:
    """Write a plan of uint16, uint32, int32 or int64 arrays and map it, or the one of a faster process."""
    if (found := load_plan(folder, fingerprint)) is not None:
        return found
    listed: dict[str, tuple[str, int, int]] = {}
    end, hasher = 0, Hasher()
    for name, array in plan.arrays.items():
        dtype = array.dtype.newbyteorder("<").str
        listed[name] = (dtype, end, len(array))
        end += array.nbytes + -array.nbytes % ALIGNED
    for block in _blocks(plan.arrays):
        hasher.update(block)
    header = msgspec.json.encode(PlanHeader(fingerprint, plan.facts, listed, end, hasher.hexdigest()))
    header += b" " * (-(HEAD + len(header)) % ALIGNED)
    waiting = folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.tmp")
    try:
        with disk_errors(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with waiting.open("wb") as file:
                file.write(hash_bytes(header).encode() + len(header).to_bytes(8, "little") + header)
                file.writelines(_blocks(plan.arrays))
            LocalFolder(folder).put_files({PLAN: waiting})
    except OSError as error:
        if isinstance(error, StoreError) or error.strerror is None:
            raise
        raise StoreError(
            f"cannot write the plan {folder}: {error.strerror}", hint="plans= names another folder for plans"
        ) from error
    finally:
        if waiting.parent.is_dir():
            waiting.unlink(missing_ok=True)
    saved = load_plan(folder, fingerprint)
    if saved is None:
        raise CorruptStore(f"the plan {folder} was removed while it was written", hint="run it again")
    return saved


def load_plan(folder: Path, fingerprint: str, *, check: bool | None = None) -> Plan | None:
    """Map a plan; None if there is none.

    Args:
        check: compare the checksum of the arrays; by default if they have at most 1 GB (a tenth of a second).

    >>> load_plan(Path("nowhere"), "3f9c21d07a54be18") is None
    True
    """
    path = folder / PLAN
    if not os.path.lexists(path):
        return None
    try:
        size = stat_file(path, folder).st_size
        data = np.memmap(path, np.uint8, "r").view(np.ndarray) if size else np.empty(0, np.uint8)
    except OSError as error:
        raise _refused(folder, f"cannot be read: {error.strerror or error}") from error
    end = HEAD + int.from_bytes(data[32:HEAD].tobytes(), "little")
    head = data[HEAD:end].tobytes()
    if size < end or data[:32].tobytes() != hash_bytes(head).encode():
        raise _refused(folder, "is damaged: the checksum of its header differs")
    header = msgspec.json.decode(head, type=PlanHeader)
    if header.fingerprint != fingerprint:
        raise _refused(
            folder,
            "is a plan of another store or of other settings: "
            f"expected fingerprint {fingerprint}, found {header.fingerprint}",
        )
    if size != header.bytes + end:
        raise _refused(folder, f"has {size:,} bytes: expected {header.bytes + end:,}")
    if size <= CHECKED_BYTES if check is None else check:
        hasher = Hasher()
        for block in range(end, size, BLOCK_BYTES):
            hasher.update(data[block : block + BLOCK_BYTES].data)
        if hasher.hexdigest() != header.checksum:
            raise _refused(
                folder, f"is damaged: expected checksum {header.checksum}, found {hasher.hexdigest()}"
            )
    arrays = {
        name: data[end + start :][: np.dtype(dtype).itemsize * count].view(dtype)
        for name, (dtype, start, count) in header.arrays.items()
    }
    return Plan(arrays, header.facts, folder)


def _blocks(arrays: dict[str, np.ndarray]) -> Iterator[memoryview | bytes]:
    for array in arrays.values():
        step = BLOCK_BYTES // array.dtype.itemsize
        for start in range(0, len(array), step):
            block = np.ascontiguousarray(array[start : start + step], array.dtype.newbyteorder("<"))
            yield block.view(np.uint8).data
        yield bytes(-array.nbytes % ALIGNED)


def _refused(folder: Path, what: str) -> CorruptStore:
    return CorruptStore(f"the plan {folder} {what}", hint="delete that folder: the plan is made again")
