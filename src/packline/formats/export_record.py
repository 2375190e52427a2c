"""packline.json: the metadata of an export, next to its files.

Contains format and options, source, tokenizer, every file with its size and checksum, losses, files that the
trainer will miss, and which bytes are shared with the store. It has no time and no path: equal exports have
equal records. Its own checksum protects it, as for a store's manifest (`store.sealed`).
`packline verify OUT --from FORMAT` and every import check the files and the tokenizer against it:

    listed      exists, a regular file, in the folder itself, of its size         `check_places`
    stray       in the folder but not listed: a trainer's glob would match it     `check_strays`
    checksums   every byte                                                        `check_export`

Cache files that readers leave in the folders they read are not strays, nor are hidden files and a README.
Cost: `check_places` and `check_strays` do not read contents; `check_export` reads everything once, 1 GB/s or
more.

The folder of an export in progress, where a format writes its files.

    with target.create("train/part-00000.bin") as file:
        file.write(tokens)                                  # checksum on the way
    target.share_stored(shard.files, entry, "train.bin")    # hard link, else reflink, else copy

The export consists of the files that were entered: name, size and checksum of each.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import msgspec

from packline.errors import CorruptStore, PacklineError, RecipeError
from packline.fingerprint import Hasher, NotWhole, seal, unseal
from packline.formats.types import NotPreserved
from packline.storage.local import COPY_BYTES, Link, disk_errors, share_file
from packline.storage.publication import EXPORT_BEGUN, unfinished_export
from packline.store.files import FileEntry, StoreFiles, reading, stat_file
from packline.store.manifest import TokenizerEntry
from packline.store.report import Findings
from packline.store.shard_check import check_file
from packline.store.writer import HashedFile
from packline.version import __version__

RECORD = "packline.json"
RECORD_VERSION = 1
TOKENIZER_FILE = "tokenizer.json"

FOLDERS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""Names of folders of splits in an export, and their splits."""


class ExportIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the bytes of an export: equal identities, equal files."""

    format: str
    options: dict[str, Any]
    """Options of the format, including those with default values."""
    settings: dict[str, Any]
    """Selection and order of documents or rows: fields that differ from their defaults (`source.Choice`)."""
    source: dict[str, str]
    """Checksums: `store` of the store's manifest, plus `rows` of the content of rows; for a run, `run`."""
    link: str


class ExportRecord(ExportIdentity, frozen=True, kw_only=True):
    """Content of packline.json."""

    version: int = RECORD_VERSION
    packline: str = __version__
    tokenizer: TokenizerEntry
    """Tokenizer that made the ids."""
    documents: int
    tokens: int
    """Number of tokens as in the output, after changes of boundary tokens; for rows, without padding."""
    rows: int | None = None
    seq_len: int | None = None
    lost: tuple[NotPreserved, ...] = ()
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer may stop, such as a file that it opens and that is missing."""
    shared: dict[str, int]
    """Number of bytes shared with the store: `linked`, `reflinked` or `copied`."""
    files: tuple[FileEntry, ...]
    """All files except this one, by name."""
    checksum: str = ""
    """xxh3-128 of this record's JSON form with this field empty: 32 hexadecimal digits."""

    @property
    def folders(self) -> dict[str, str]:
        """Folder of each split, such as `{"train": "train", "val": "val"}`; empty if splits have none."""
        there = {entry.name.partition("/")[0] for entry in self.files if "/" in entry.name}
        return {split: name for name, split in FOLDERS.items() if name in there}

    def train_folder(self, out: str) -> str:
        """Folder in which a trainer finds the training split of the export at `out`."""
        return "/".join([out, *list(self.folders.values())[:1]])

    @property
    def identity(self) -> ExportIdentity:
        """Identity of the export."""
        return ExportIdentity(**{name: getattr(self, name) for name in ExportIdentity.__struct_fields__})


def read_record(folder: Path) -> ExportRecord | None:
    """The record of an export; None for a folder without one.

    Raises:
        CorruptStore: it is damaged, not a regular file, or of a newer version.
        StoreNotFound: the export has not finished.
    """
    path = folder / RECORD
    if not os.path.lexists(path):
        if (folder / EXPORT_BEGUN).exists():
            raise unfinished_export(folder)
        return None
    stat_file(path, folder)
    with reading(path):
        return parse_record(path, path.read_bytes())


def parse_record(path: str | Path, data: bytes) -> ExportRecord:
    """Content of a record.

    Raises:
        CorruptStore: it is damaged, or of a newer version.
    """
    try:
        record = unseal(data, ExportRecord)
    except NotWhole as error:
        _check_version(path, data)
        raise CorruptStore(
            f"{path} is damaged: {error}", hint="export again, or delete it if the files are to be trusted"
        ) from error
    _check_version(path, data)
    return record


class _Version(msgspec.Struct):
    """Field that every version has."""

    version: int


def _check_version(path: str | Path, data: bytes) -> None:
    """Refuse a record of a newer version, even if its other fields cannot be read."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if version > RECORD_VERSION:
        raise CorruptStore(
            f"{path} has version {version}, newer than {RECORD_VERSION}", hint="update packline to read it"
        )


def record_bytes(record: ExportRecord) -> bytes:
    """JSON form of a record, with its checksum."""
    return seal(record)


LEFT_BY_READERS = re.compile(
    r"(.*/)?cache-[^/]*\.arrow"  # datasets: the results of map and filter, next to the data
    r"|(.*/)?cache/.*"  # Megatron-LM: PREFIX/cache/GPTDataset_indices/...
    r"|(.*/)?\.[^/]*(/.*)?"  # hidden: no glob matches it
    r"|README[^/]*"
)


def check_places(folder: Path, record: ExportRecord, findings: Findings) -> set[str]:
    """Note listed files that are missing, outside the folder, not regular files, or of another size.

    Returns:
        Names of the listed files.
    """
    wrong = set()
    for entry in record.files:
        path = folder / entry.name
        if not os.path.lexists(path):
            findings.add(entry.name, "the file is missing", f"{entry.bytes:,} bytes", "nothing")
            wrong.add(entry.name)
            continue
        try:
            size = stat_file(path, folder).st_size
        except CorruptStore as error:
            findings.add(entry.name, error.message.removeprefix("cannot read ").removeprefix(f"{path}: "))
            wrong.add(entry.name)
            continue
        if not findings.compare(entry.name, "size in bytes", entry.bytes, size):
            wrong.add(entry.name)
    return wrong


def check_strays(folder: Path, record: ExportRecord, findings: Findings) -> None:
    """Note files in an export's folder that the record does not list, and folders that are links."""
    listed = {entry.name for entry in record.files}
    for name in files_below(folder):
        if name not in listed and name != RECORD and not LEFT_BY_READERS.fullmatch(name):
            findings.add(name, "a stray file", "nothing", f"a file that {RECORD} does not list")


def check_export(folder: Path, record: ExportRecord, findings: Findings) -> bool:
    """Check all files of an export, checksums included; return True if they are unchanged."""
    before = len(findings.problems) + findings.not_listed
    wrong = check_places(folder, record, findings)
    for entry in record.files:
        if entry.name in wrong:
            findings.files += 1
        else:
            check_file(StoreFiles(folder), entry, findings)
    whole = len(findings.problems) + findings.not_listed == before
    check_strays(folder, record, findings)
    return whole


def files_below(folder: Path) -> Iterator[str]:
    """Names of everything in a folder and its subfolders except folders, sorted; links are not followed."""
    for base, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in sorted([*files, *links]):
            yield Path(base, name).relative_to(folder).as_posix()


class Target:
    """A folder to write files to, with a record of them.

    Args:
        folder: an existing folder.
        link: how `share` shares bytes.
        on_progress: called with the number of tokens written since the last call.
    """

    def __init__(
        self, folder: Path, *, link: Link = "auto", on_progress: Callable[[int], None] | None = None
    ) -> None:
        if link not in get_args(Link):
            raise RecipeError(f"link is {link!r}: expected one of {', '.join(get_args(Link))}")
        self.folder, self.link = folder, link
        self.files: list[FileEntry] = []
        """Files that were entered, in that order."""
        self.shared: Counter[str] = Counter()
        """Number of bytes that were `linked`, `reflinked` or `copied`."""
        self._on_progress, self._prefix = on_progress, ""

    def within(self, prefix: str) -> Target:
        """The same target for files whose names are given without this prefix, such as `train/`."""
        inner = Target(self.folder, link=self.link, on_progress=self._on_progress)
        inner.files, inner.shared, inner._prefix = self.files, self.shared, self._prefix + prefix
        return inner

    @contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """Create a file to write to; it is entered when closed.

        Args:
            name: path below the folder, with `/` between folders, which are created.
        """
        name = self._prefix + name
        path = self._place(name)
        with disk_errors(self.folder):
            file = HashedFile(path)
            try:
                yield file
            except BaseException:
                file.abandon()
                raise
            self.files.append(file.entry(name))

    def share_stored(self, files: StoreFiles, entry: FileEntry, name: str) -> None:
        """Add a file with the bytes of a file of a store; see `share`."""
        link = self.link if files.is_local else "copy"  # else it would be to a file of the cache
        self.share(files.local(entry), name, entry, link=link)

    def share(
        self, path: Path, name: str, entry: FileEntry | None = None, *, link: Link | None = None
    ) -> None:
        """Add a file with the bytes of another.

        Args:
            name: name of the new file.
            entry: its size and checksum, if known: a link then costs nothing.
            link: how it is shared; by default as for all files.

        Raises:
            PacklineError: the file cannot be shared in the requested way.
        """
        name = self._prefix + name
        target = self._place(name)
        with disk_errors(self.folder):
            how = share_file(path, target, link or self.link)
        known = FileEntry(name, entry.bytes, entry.checksum) if entry else _entry_of(target, name)
        self.shared[how] += known.bytes
        self.files.append(known)

    def progress(self, tokens: int) -> None:
        """Report the number of tokens written since the last call."""
        if self._on_progress is not None:
            self._on_progress(tokens)

    def _place(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise PacklineError(f"a file of an export cannot be called {name!r}")
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # from an interrupted run; never write through a link
        return path


def _entry_of(path: Path, name: str) -> FileEntry:
    hasher, size = Hasher(), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(COPY_BYTES):
            hasher.update(data)
            size += len(data)
    return FileEntry(name, size, str(hasher.hexdigest()))
