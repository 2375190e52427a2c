"""Check of an export's files against `packline.json`: sizes and paths at once, checksums in one pass.

    listed      exists, a regular file, in the folder itself, of its size         `check_places`
    stray       in the folder but not listed: a trainer's glob would match it     `check_strays`
    checksums   every byte                                                        `check_export`

Cache files that readers leave in the folders they read are not strays, nor are hidden files and a README.

Cost: `check_places` and `check_strays` do not read contents; `check_export` reads everything once, 1 GB/s or
more. Does not check tokens.
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
            check_file(folder, entry, findings)
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
