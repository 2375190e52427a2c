"""packline: raw text to training-ready tokens.

    import packline

    store = packline.build("corpus/*.jsonl.zst", tokenizer="gpt2/tokenizer.json", out="store")
    store.documents[0]        # tokens of a document, a read-only array
    store.provenance(0)       # where it came from
    store.verify()            # checksums, indexes, ledger

Importing this loads nothing heavy; each function loads what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packline.version import __version__ as __version__

if TYPE_CHECKING:
    from packline.api import build, open, plan

__all__ = ["build", "open", "plan"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from packline import api

        return getattr(api, name)
    raise AttributeError(f"module 'packline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
