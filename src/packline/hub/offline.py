"""A repository in the cache of the hub's client, for `HF_HUB_OFFLINE`: no request is sent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from packline.hub.client import HubFile, translate
from packline.hub.places import HubPlace
from packline.hub.publication import RECORDS


class CachedSnapshot:
    """Files of a revision in the cache.

    Raises:
        HubError: nothing of it; the message names the first file that is missing.
    """

    def __init__(self, place: HubPlace) -> None:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import IncompleteSnapshotError

        record = RECORDS["tokenizer" if place.kind == "model" else "store"]
        try:
            found = snapshot_download(
                place.repository, repo_type=place.kind, revision=place.revision, local_files_only=True
            )
        except IncompleteSnapshotError as error:
            found = error.snapshot_path
        except Exception as error:
            raise translate(error, place, record) from error
        self.folder = Path(found)
        self.commit = self.folder.name
        """Commit that the revision pointed at when it was last seen."""

    def tree(self) -> dict[str, HubFile]:
        """Files that are there; the cache names each by its checksum on the hub."""
        files = {}
        for base, _, names in os.walk(self.folder):
            for name in names:
                path = Path(base, name)
                blob = os.path.realpath(path)
                checksum = os.path.basename(blob)
                file = HubFile(os.path.getsize(blob), checksum, len(checksum) == 64)
                files[path.relative_to(self.folder).as_posix()] = file
        return files

    def fetch(self, path: str, into: Path) -> Path:
        """Copy one file into a folder, under its path."""
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.folder / path, target)
        return target
