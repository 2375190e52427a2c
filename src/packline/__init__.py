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

_NAMES = {
    "packline.api": "build estimate export import_ merge open sft write_rows",
    "packline.chat.sources": "ConversationSource",
    "packline.errors": "PacklineError",
    "packline.facade": "Store",
    "packline.formats.copying": "copy",
    "packline.hub.pull": "pull pulled_from",
    "packline.hub.push": "push",
    "packline.jobs.machines": "Ray Slice",
    "packline.loading.follow": "follow",
    "packline.loading.loader": "Loader",
    "packline.loading.mixture": "Mixture Stage",
    "packline.loading.trace": "trace",
    "packline.packing.layout": "attention_mask cu_seqlens",
    "packline.packing.rows": "Rows",
    "packline.recipe": "Recipe Source",
    "packline.store.difference": "diff",
    "packline.store.verify": "verify",
    "packline.viewing.analysis": "analyze",
    "packline.viewing.info": "info",
    "packline.viewing.report": "report",
    "packline.viewing.view": "view",
    "packline.vocabulary.training": "train_bpe",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
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
