"""Help pages: what each command is for, and command lines that are true.

They stand apart from the commands so that `packline --help` imports none of them. Lines stay below 78
columns, because a help page is not rewrapped.
"""

from __future__ import annotations

SUMMARY = """Raw text to training-ready tokens: fast, exact, crash-proof and
traceable to the source."""

SUMMARY_END = """Examples:

  packline demo
  packline build corpus/ --tokenizer gpt2/tokenizer.json --out store
  packline info store

More of each command: packline COMMAND --help"""

PAGES: dict[str, tuple[str, str]] = {
    "build": (
        """Turn text into a token store.

INPUTS are files of text and --tokenizer names the tokenizer, or the one
input is a recipe that names both. Interrupt it at any time: the same command
goes on where it stopped, and the bytes come out the same.""",
        """Examples:

  packline build corpus/ --tokenizer gpt2/tokenizer.json --out store
  packline build 'web/*.jsonl.zst' --tokenizer Qwen/Qwen3-8B \\
      --eod '<|endoftext|>' --out store
  packline build books.parquet --text body --tokenizer gpt2 \\
      --val-fraction 0.01 --out store
  packline build recipe.toml --out store --workers 8 --memory 12GiB

Exit codes: 0 done, 1 error, 2 wrong usage, 3 done but with more bad
records than --max-bad-fraction, 130 interrupted.""",
    ),
    "plan": (
        """Predict what a build would take, and write nothing.

Takes the same arguments as build, --out aside: looks at the inputs, encodes
a little of them, and says how many units, tokens, bytes and minutes it makes.""",
        """Examples:

  packline plan 'web/*.jsonl.zst' --tokenizer gpt2/tokenizer.json
  packline plan recipe.toml --json""",
    ),
    "status": (
        """Say how far a build is.

Reads what is committed and touches nothing, so it may be asked while the
build runs and after it was interrupted.""",
        """Examples:

  packline status store
  packline status store --json""",
    ),
    "verify": (
        """Check a store from its files alone.

Sizes, checksums, indexes, provenance, end-of-document tokens, and a ledger
counted anew. With --deep the inputs are read again and a sample of documents
is encoded by the reference tokenizer and compared.""",
        """Examples:

  packline verify store
  packline verify store --deep

Exit codes: 0 all is well, 1 problems were found.""",
    ),
    "info": (
        """Show what is in a store.

Documents and tokens by split, source and label, how long documents are, and
the beginnings of the first documents, token by token.""",
        """Examples:

  packline info store
  packline info store --documents 10
  packline info store --json""",
    ),
    "demo": (
        """Build, verify and show a store of Python's own library. No network.

The corpus is the source code and the documentation that come with every
Python. A tokenizer is trained on it, a store is built, verified and shown.""",
        """Examples:

  packline demo
  packline demo --out somewhere""",
    ),
}
"""Commands in the order of the list: what it says above its options, and below."""
