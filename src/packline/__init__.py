"""packline: raw text to training-ready tokens.

    import packline

    store = packline.build("corpus/*.jsonl.zst", tokenizer="gpt2/tokenizer.json", out="store")
    store.documents[0]        # tokens of a document, a read-only array
    store.provenance(0)       # where it came from
    store.verify()            # checksums, indexes, ledger

    rows = store.rows(seq_len=4096, packing="best_fit")
    for batch in packline.Loader(rows, batch_size=32, seed=1):
        ...                   # tokens, targets, position_ids, segment_ids: arrays [32, 4096]

Importing this loads nothing heavy; each function loads what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packline.version import __version__ as __version__

if TYPE_CHECKING:
    from packline.api import bake, build, build_chat, estimate, export, import_dataset, open
    from packline.facade import Store
    from packline.formats.convert import convert
    from packline.loading.loader import Loader
    from packline.loading.mixture import Mixture, Stage
    from packline.viewing.analysis import analyze
    from packline.viewing.report import report

__all__ = [
    "Loader",
    "Mixture",
    "Stage",
    "Store",
    "analyze",
    "bake",
    "build",
    "build_chat",
    "convert",
    "estimate",
    "export",
    "import_dataset",
    "open",
    "report",
]

_HOMES = {
    "analyze": "packline.viewing.analysis",
    "bake": "packline.api",
    "convert": "packline.formats.convert",
    "export": "packline.api",
    "import_dataset": "packline.api",
    "build": "packline.api",
    "open": "packline.api",
    "estimate": "packline.api",
    "report": "packline.viewing.report",
    "Loader": "packline.loading.loader",
    "Mixture": "packline.loading.mixture",
    "Stage": "packline.loading.mixture",
    "Store": "packline.facade",
    "build_chat": "packline.api",
}
"""Modules that define the exports, each loaded on first access."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'packline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
