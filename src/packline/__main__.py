"""`python -m packline`: the same as the `packline` command."""

from __future__ import annotations

import sys

from packline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
