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
    "pack": (
        """Show what every packing costs on the documents of a store.

For rows of --seq-len tokens: how many rows, how much of them is padding, which
tokens are lost, how many documents are split over rows, how many rows hold
several documents. Counted from lengths alone; nothing is written unless --write
is given.""",
        """Examples:

  packline pack store --seq-len 4096
  packline pack store --seq-len 4096 --seq-len 32768 --min-tokens 512
  packline pack store --seq-len 4096 --packing best_fit --write""",
    ),
    "trace": (
        """Show what is in a batch, and in which batches a document is.

TARGET is a run file (run.toml) or a store; for a store, give the settings
that the training run had. Steps are counted from 0: step N is the batch that
follows after N batches, and the one that a loader whose state says "step": N
hands out next.""",
        """Examples:

  packline trace run.toml --step 1200
  packline trace run.toml --step 1200 --world-size 8 --rank 3
  packline trace store --seq-len 4096 --batch-size 32 --seed 1 --step 0 --row 5
  packline trace run.toml --id a1b2
  packline trace run.toml --file web/a.jsonl --position 12345 --store web""",
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
