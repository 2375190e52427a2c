"""How values show themselves in a notebook, without a dependency on the code that draws them.

`viewing.notebook` draws; it is loaded when a notebook requests the first value.
"""

from __future__ import annotations

import importlib


class Notebook:
    """Base class of values that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        """HTML of this value, see `packline.viewing.notebook`."""
        return str(importlib.import_module("packline.viewing.notebook").to_html(self))
