"""`packline diff`: what differs between two stores."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE, FAILED
from packline.cli.output import output
from packline.store.difference import compare_stores
from packline.viewing.difference import difference_blocks

_FLAGS = Flags()


def diff(
    one: Annotated[str, Parameter(help="Folder of a finished store.")],
    other: Annotated[str, Parameter(help="Folder of the store to compare with it.")],
    /,
    *,
    flags: Flags = _FLAGS,
) -> int:
    """Compare two stores; see `help_texts`."""
    found = compare_stores(one, other)
    code = DONE if found.equal else FAILED
    output.blocks(*difference_blocks(found))
    output.result({"command": "diff", "exit_code": code, **msgspec.to_builtins(found)})
    return code
