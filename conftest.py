"""What pytest leaves out where an optional library is missing, and signals as at a terminal."""

from __future__ import annotations

import importlib.util
import signal

# Its examples run where torch is; importing it elsewhere is an error on purpose.
collect_ignore = [] if importlib.util.find_spec("torch") else ["src/packline/torch.py"]

# A shell starts background jobs deaf to Ctrl-C, and children inherit it: tests that interrupt would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
