"""What pytest leaves out where an optional library is missing."""

from __future__ import annotations

import importlib.util

# Its examples run where torch is; importing it elsewhere is an error on purpose.
collect_ignore = [] if importlib.util.find_spec("torch") else ["src/packline/torch.py"]
