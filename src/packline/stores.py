"""Functions of several stores.

merge    stores of one tokenizer -> one store, by links
diff     two stores -> what differs
copy     a store, an export or a folder -> the same in another place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packline.errors import refuse_unknown_names

if TYPE_CHECKING:
    from packline.facade import Store
    from packline.formats.copying import Copied
    from packline.jobs.events import Event
    from packline.storage.local import Link
    from packline.store.difference import StoreDifference


@refuse_unknown_names
def merge(
    stores: Sequence[str | Path],
    *,
    out: str | Path,
    verify: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> Store:
    """Merge finished stores into one, or resume an interrupted merge.

    The files of the stores are linked, or copied to another file system; no token is read. The result is,
    byte for byte, what building the merged recipe anew gives: the sources of the first store, then of the
    second, and so on. Provenance, ledgers and bad records stay per source.

    Args:
        stores: folders of two or more stores with different sources, and with the same tokenizer, boundary
            tokens, special_tokens, seed, fractions of splits, and max_document_bytes.
        out: folder of the merged store: new, empty, or containing the same merge.
        verify: compare the checksum of every file, which reads all of them; otherwise only the sizes of files
            and the checksums of manifests and tables.
        on_event: called with every event of `packline.jobs.events`.

    Raises:
        StoreError: the stores do not fit together, or one of them changed meanwhile.
        CorruptStore: a file of a store is missing or damaged.
        ResumeMismatch: `out` contains something else.
        OutOfSpace: the disk is full; the same call resumes.

    >>> import tempfile
    >>> from packline.testing import make_store
    >>> folder = Path(tempfile.mkdtemp())
    >>> one = make_store(folder / "one", [[5, 2]], sources=["books"])
    >>> two = make_store(folder / "two", [[4]], sources=["web"])
    >>> merged = merge([one.path, two.path], out=folder / "both")
    >>> [len(document) for document in merged.documents], list(merged.manifest.sources)
    ([5, 2, 4], ['books', 'web'])
    """
    from packline.facade import Store
    from packline.jobs.merging import run_merge

    run_merge(stores, out, verify=verify, on_event=on_event)
    return Store(out)


def diff(one: str | Path, other: str | Path) -> StoreDifference:
    """Compare two finished stores: settings, tokenizer, inputs, tokens by source, and documents.

    Documents are matched by source, file and position, and compared by the hash of their text. Shards with
    equal checksums are not read, so the cost is proportional to what differs; memory is bounded. Imported
    documents have no text: in shards that differ they are matched, but counted as not compared.

    Args:
        one: folder of the first store.
        other: folder of the second.

    Returns:
        The differences; `equal` is True if there are none and everything was compared.

    Raises:
        StoreNotFound: there is no finished store.
        CorruptStore: one is damaged.

    >>> import tempfile
    >>> from packline.testing import make_store
    >>> folder = Path(tempfile.mkdtemp())
    >>> one = make_store(folder / "one", [[5, 2]], sources=["books"])
    >>> two = make_store(folder / "two", [[5, 2, 3]], sources=["books"])
    >>> found = diff(one.path, two.path)
    >>> found.equal, found.sources[0].counts.added, found.sources[0].counts.same
    (False, 1, 2)
    """
    from packline.store.difference import compare_stores

    return compare_stores(one, other)


@refuse_unknown_names
def copy(
    source: str | Path,
    target: str | Path,
    *,
    verify: bool = False,
    link: Link = "auto",
    one_writer: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Copy a store, an export or any folder into another place, or resume an interrupted copy.

    Files are created, never overwritten; the manifest of a store is last, so a copy that has one is whole.
    What is read is compared with the checksums of the manifest. Hidden files are left out.

    Args:
        source: folder, or URI of an object store: s3://bucket/key, gs://bucket/key or az://container/key.
        target: the same; new, empty, or with a part of this copy.
        verify: read the target back and compare it, too.
        link: how to share bytes between two folders: links where possible (`auto`), or `copy`.
        one_writer: accept an object store that ignores conditions, because nothing else writes there.
        on_progress: called with the bytes done and the bytes of all files.

    Raises:
        StoreNotFound: there is nothing, or a build that has not finished.
        CorruptStore: a file of the source is missing or damaged.
        StoreError: the target contains something else, or a storage cannot be reached.
        OutOfSpace: the disk is full; the same call resumes.

    >>> import tempfile
    >>> from packline.testing import make_store
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = make_store(folder / "one", [[5, 2]])
    >>> copied = copy(store.path, folder / "two")
    >>> copied.kind, copied.files > 5, copy(store.path, folder / "two").found_files == copied.files
    ('store', True, True)
    """
    from packline.formats.copying import run_copy

    return run_copy(source, target, verify=verify, link=link, one_writer=one_writer, on_progress=on_progress)
