"""Refusal of stores that ignore conditions, by trial: a key is created twice.

Some stores and gateways accept a put with `If-None-Match: *` and overwrite all the same. Two processes that
create one name would both succeed, so nothing that packline promises would hold.
"""

from __future__ import annotations

import secrets

from packline.errors import StoreError
from packline.storage.objects import ObjectFolder
from packline.storage.protocol import Storage
from packline.storage.store_errors import status_of

FOLDER = ".packline"
HINT = (
    "use a store that knows conditional puts, or set PACKLINE_ONE_WRITER=1 "
    "if no other process will write there"
)


def probe(storage: Storage) -> None:
    """Refuse a storage that does not keep to conditions; four small requests to an object store.

    Local folders do, and one with `one_writer` does without.

    Raises:
        StoreError: it ignores or does not know them, or it cannot be written.
    """
    if not isinstance(storage, ObjectFolder) or storage.one_writer:
        return
    name = f"{FOLDER}/probe-{secrets.token_hex(8)}"
    try:
        storage.put_new(name, b"first")
    except StoreError as error:
        if status_of(error) in (400, 405, 501):
            raise StoreError(f"{error.message}; it may not know conditional puts", hint=HINT) from None
        raise
    try:
        try:
            second = storage.put_new(name, b"second")
        except StoreError:
            second = False
        if second or storage.read(name) != b"first":
            raise StoreError(
                f"{storage.place} ignores conditions: expected a second put of one name to be refused, "
                "found it accepted",
                hint=HINT,
            )
    finally:
        storage.delete([name])
