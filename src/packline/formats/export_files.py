"""The files of an export held against `packline.json`: sizes and places at once, checksums in one pass.

    listed      there, a regular file, in the folder itself, of its size          `check_places`
    stray       in the folder and not listed: a trainer's glob would take it      `check_strays`
    checksums   every byte                                                        `check_export`

Some files belong to readers, which leave them in the folders that they read: those are no strays, nor are
hidden files and a README.

Cost: `check_places` and `check_strays` look at no contents; `check_export` reads everything once, 1 GB/s or
more. What it does not do: look at tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from packline.errors import CorruptStore
from packline.formats.export_record import RECORD, ExportRecord
from packline.store.files import stat_file
from packline.store.report import Findings
from packline.store.shard_check import check_file

LEFT_BY_READERS = re.compile(
    r"(.*/)?cache-[^/]*\.arrow"  # datasets: the results of map and filter, beside the data
    r"|(.*/)?cache/.*"  # Megatron-LM: PREFIX/cache/GPTDataset_indices/...
    r"|(.*/)?\.[^/]*(/.*)?"  # hidden: no glob finds it
    r"|README[^/]*"
)


def check_places(folder: Path, record: ExportRecord, findings: Findings) -> set[str]:
    """Note listed files that are missing, lead out of the folder, are no regular files, or of another size.

    Returns:
        Their names.
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
    """Note files in an export's folder that it does not list, and folders that are links."""
    listed = {entry.name for entry in record.files}
    for name in files_below(folder):
        if name not in listed and name != RECORD and not LEFT_BY_READERS.fullmatch(name):
            findings.add(name, "a stray file", "nothing", f"a file that {RECORD} does not list")


def check_export(folder: Path, record: ExportRecord, findings: Findings) -> bool:
    """Check all files of an export, checksums included; return whether they are as they were written."""
    before = len(findings.problems) + findings.not_listed
    wrong = check_places(folder, record, findings)
    for entry in record.files:
        if entry.name in wrong:
            findings.files += 1
        else:
            check_file(folder, entry, findings)
    whole = len(findings.problems) + findings.not_listed == before
    check_strays(folder, record, findings)
    return whole


def files_below(folder: Path) -> Iterator[str]:
    """Names of all that is in a folder and those below it but folders, sorted; links are not followed."""
    for base, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in sorted([*files, *links]):
            yield Path(base, name).relative_to(folder).as_posix()
