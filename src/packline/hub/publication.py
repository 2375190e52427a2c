"""Folders that can be pushed: finished stores, exports, tokenizers, evaluation sets.

    folder ── recognised by one file, its record ──> files, and the record that makes a revision whole

    store        manifest.json
    export       packline.json
    evaluation   config.json, with questions.jsonl next to it
    tokenizer    tokenizer.json

The record is published last. A revision that has it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from packline.encoders.tokenizer import JSON as TOKENIZER_JSON
from packline.errors import StoreError, StoreNotFound
from packline.evals.task import CONFIG, QUESTIONS
from packline.formats.export_record import RECORD, ExportRecord, files_below, read_record
from packline.hub.layout import refuse_many, repository_paths
from packline.hub.places import RepositoryKind
from packline.storage.places import without_secrets
from packline.store.files import FileEntry, stat_file
from packline.store.manifest import MANIFEST, Manifest
from packline.store.manifest_reader import read_manifest

Kind = Literal["store", "export", "evaluation", "tokenizer"]
RECORDS: dict[Kind, str] = {
    "store": MANIFEST,
    "export": RECORD,
    "evaluation": CONFIG,
    "tokenizer": TOKENIZER_JSON,
}
"""File that makes a revision complete, by kind; the first one present decides the kind."""
CARD = "README.md"
PULLED = ".packline-hub.json"
"""File in a pulled folder that names the repository and the commit; it is not pushed."""
_NOT_PUSHED = re.compile(r"(.*/)?(\..*|__pycache__/.*)|README\.md")
_SECRET = re.compile(r"(token|key|secret|signature|password|credential|sig)[^=]*=", re.IGNORECASE)


class Publication(msgspec.Struct, frozen=True):
    """A local folder that is ready to be pushed."""

    kind: Kind
    folder: Path
    files: tuple[FileEntry, ...]
    """All files but the record; the checksum is empty where nothing lists one."""
    manifest: Manifest | None = None
    export: ExportRecord | None = None

    @property
    def record(self) -> str:
        """Name of the file that is published last."""
        return RECORDS[self.kind]

    @property
    def repository_kind(self) -> RepositoryKind:
        """`model` for a tokenizer, since transformers looks for one there; `dataset` for all else."""
        return "model" if self.kind == "tokenizer" else "dataset"

    def paths(self) -> dict[str, str]:
        """Path in the repository of each file but the record, by its local name."""
        names = [entry.name for entry in self.files]
        return repository_paths(names) if self.kind == "store" else dict(zip(names, names, strict=True))


def publication_kind(names: Iterable[str]) -> Kind | None:
    """Kind of a folder or repository with files of these names; None for none of packline's.

    >>> publication_kind(["a.bin", "manifest.json"]), publication_kind(["tokenizer.json"])
    ('store', 'tokenizer')
    >>> publication_kind(["model.safetensors"])
    """
    there = set(names)
    if MANIFEST in there:
        return "store"
    if RECORD in there:
        return "export"
    if {CONFIG, QUESTIONS} <= there:
        return "evaluation"
    return "tokenizer" if TOKENIZER_JSON in there else None


def read_publication(folder: str | Path) -> Publication:
    """Recognise a folder and list its files; sizes are compared with its manifest or record.

    Raises:
        StoreNotFound: nothing that can be pushed, or an unfinished store.
        CorruptStore: a file is missing or has another size.
        StoreError: an input of the recipe contains a credential, or there are too many files.

    >>> import tempfile
    >>> read_publication(tempfile.mkdtemp())
    Traceback (most recent call last):
    packline.errors.StoreNotFound: ... has no store, export, tokenizer or evaluation sets
    """
    folder = Path(folder)
    kind = publication_kind(path.name for path in folder.iterdir()) if folder.is_dir() else None
    if kind == "store" or (folder / ".packline").exists() or not folder.is_dir():
        manifest = read_manifest(folder)  # or the error that an unfinished store deserves
        _refuse_credentials(manifest)
        made = Publication("store", folder, tuple(manifest.files()), manifest)
    elif kind == "export" and (record := read_record(folder)) is not None:
        made = Publication("export", folder, record.files, None, record)
    elif kind is not None:
        made = Publication(kind, folder, tuple(_listed(folder, RECORDS[kind])))
    else:
        raise StoreNotFound(
            f"{folder} has no store, export, tokenizer or evaluation sets",
            hint="give the output folder of build, export, tokenizer train or evals",
        )
    refuse_many(len(made.files), str(folder))
    for entry in made.files:
        found = stat_file(folder / entry.name, folder).st_size
        if found != entry.bytes:
            raise StoreError(
                f"{folder / entry.name}: expected {entry.bytes:,} bytes, found {found:,}",
                hint="packline verify shows what else is damaged",
            )
    return made


def _listed(folder: Path, record: str) -> list[FileEntry]:
    """Files of a folder that lists none itself, without the record and hidden ones."""
    names = [name for name in files_below(folder) if name != record and not _NOT_PUSHED.fullmatch(name)]
    return [FileEntry(name, stat_file(folder / name, folder).st_size, "") for name in sorted(names)]


# ------------------------------------------------------------------------ what must not be published


def without_credentials(place: str) -> str:
    """A URI without user, password and query; of a path elsewhere its last component alone.

    >>> without_credentials("https://me:secret@host/a.jsonl?token=x"), without_credentials("/corpora/a.jsonl")
    ('https://host/a.jsonl', 'a.jsonl')
    >>> without_credentials("/data/gpt2/tokenizer.json")
    'gpt2/tokenizer.json'
    """
    if "://" not in place:
        if not place.startswith(("/", "~", "../")):
            return place
        names = place.rstrip("/").split("/")
        return "/".join(names[-2:] if names[-1] == TOKENIZER_JSON else names[-1:])
    return without_secrets(place)


def machine_paths(manifest: Manifest) -> list[str]:
    """Absolute paths in the recipe of a manifest: true of one machine, and published with the manifest."""
    return sorted({place for place in _places(manifest) if place.startswith(("/", "~"))})


def _refuse_credentials(manifest: Manifest) -> None:
    for place in _places(manifest):
        if "://" in place and ("@" in urlsplit(place).netloc or _SECRET.search(urlsplit(place).query)):
            raise StoreError(
                f"the recipe of the store has an input with credentials: {without_credentials(place)}?...",
                hint="build again with the credentials in the environment: the manifest would publish them",
            )


def _places(manifest: Manifest) -> Sequence[str]:
    places = [place for source in manifest.recipe.sources for place in source.inputs]
    return [*places, manifest.recipe.tokenizer, manifest.tokenizer.name]
