"""Display of values in a notebook, without a dependency on the code that renders them.

`viewing.view` renders; it is loaded when a notebook displays the first value.
"""

from __future__ import annotations

import importlib


class Notebook:
    """Base class of values that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        """HTML of this value, see `packline.viewing.view`."""
        return str(importlib.import_module("packline.viewing.view").to_html(self))
