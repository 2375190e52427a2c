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

from typing import TYPE_CHECKING

from packline.version import __version__ as __version__

_HOMES = {
    "ConversationSource": "packline.chat.sources",
    "Loader": "packline.loading.loader",
    "Mixture": "packline.loading.mixture",
    "PacklineError": "packline.errors",
    "Ray": "packline.jobs.machines",
    "Recipe": "packline.recipe",
    "Rows": "packline.packing.rows",
    "Slice": "packline.jobs.machines",
    "Source": "packline.recipe",
    "Stage": "packline.loading.mixture",
    "Store": "packline.facade",
    "analyze": "packline.viewing.analysis",
    "attention_mask": "packline.packing.layout",
    "build": "packline.api",
    "copy": "packline.formats.copying",
    "cu_seqlens": "packline.packing.layout",
    "diff": "packline.store.difference",
    "estimate": "packline.api",
    "export": "packline.api",
    "follow": "packline.loading.follow",
    "import_": "packline.api",
    "info": "packline.viewing.info",
    "merge": "packline.api",
    "open": "packline.api",
    "pull": "packline.hub.pull",
    "pulled_from": "packline.hub.pull",
    "push": "packline.hub.push",
    "report": "packline.viewing.report",
    "sft": "packline.api",
    "trace": "packline.loading.trace",
    "train_bpe": "packline.vocabulary.training",
    "verify": "packline.store.verify",
    "view": "packline.viewing.view",
    "write_rows": "packline.api",
}
"""Public names and the modules that define them, each loaded on first access."""

__all__ = [name for name in _HOMES if name != "open"]  # `from packline import *` keeps Python's open

if TYPE_CHECKING:  # the same table for type checkers; a test keeps both equal
    from packline.api import build as build
    from packline.api import estimate as estimate
    from packline.api import export as export
    from packline.api import import_ as import_
    from packline.api import merge as merge
    from packline.api import open as open
    from packline.api import sft as sft
    from packline.api import write_rows as write_rows
    from packline.chat.sources import ConversationSource as ConversationSource
    from packline.errors import PacklineError as PacklineError
    from packline.facade import Store as Store
    from packline.formats.copying import copy as copy
    from packline.hub.pull import pull as pull
    from packline.hub.pull import pulled_from as pulled_from
    from packline.hub.push import push as push
    from packline.jobs.machines import Ray as Ray
    from packline.jobs.machines import Slice as Slice
    from packline.loading.follow import follow as follow
    from packline.loading.loader import Loader as Loader
    from packline.loading.mixture import Mixture as Mixture
    from packline.loading.mixture import Stage as Stage
    from packline.loading.trace import trace as trace
    from packline.packing.layout import attention_mask as attention_mask
    from packline.packing.layout import cu_seqlens as cu_seqlens
    from packline.packing.rows import Rows as Rows
    from packline.recipe import Recipe as Recipe
    from packline.recipe import Source as Source
    from packline.store.difference import diff as diff
    from packline.store.verify import verify as verify
    from packline.viewing.analysis import analyze as analyze
    from packline.viewing.info import info as info
    from packline.viewing.report import report as report
    from packline.viewing.view import view as view
    from packline.vocabulary.training import train_bpe as train_bpe

else:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "errors":
            return importlib.import_module("packline.errors")
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'packline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
