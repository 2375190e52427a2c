"""Help pages: the purpose of each command, and example command lines that work.

They are separate from the commands so that `packline --help` imports none of them. Lines are below 78
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
records than --max-bad-fraction, 129, 130 or 143 interrupted by a signal.""",
    ),
    "sft": (
        """Turn conversations into a token store with a loss mask.

INPUTS are JSONL or Parquet: OpenAI's messages, ShareGPT, bare lists of
messages, prompt and response. They are written by the tokenizer's own chat
template, by one that is chosen by name or by nanochat's scheme. Trained on is
what the assistant said and nothing else. A conversation that is malformed, too
long or not told by its template is kept in rejects/, and counted.""",
        """Examples:

  packline sft chat.jsonl --tokenizer Qwen/Qwen3-8B --chat-template qwen3 \\
      --eod '<|endoftext|>' --out store
  packline sft chat/ --tokenizer qwen --chat-template chat.jinja \\
      --eod '<|endoftext|>' --max-tokens 4096 --out store
  packline sft chat.jsonl --tokenizer mine --scheme nanochat \\
      --max-tokens 2048 --overflow truncate --out store
  packline sft --preset nanochat-sft --data data --hub --tokenizer mine \\
      --scheme nanochat --max-tokens 2049 --overflow truncate --out store
  packline view store --document 0

Exit codes: 0 done, 1 error, 2 wrong usage, 3 done but with more bad
records than --max-bad-fraction, 129, 130 or 143 interrupted by a signal.""",
    ),
    "init": (
        """Write a recipe, or a run file, to begin with.

Looks at the first records of INPUTS: which fields there are, which is the text
or which make it together, what it is about. The recipe that comes out builds
as it stands; its comments are what else could be chosen. --preset writes that
of a well-known data set, --run a run file for a store, with the weights or
budgets of --recipe.""",
        """Examples:

  packline init 'web/*.jsonl.zst' books/ --tokenizer gpt2/tokenizer.json
  packline init --preset wikitext-103 --tokenizer gpt2 --out wiki.toml
  packline init --run store --recipe recipe.toml --seq-len 4096 \\
      --out run.toml

Presets: fineweb-edu, wikitext-103, tinystories, openwebtext, climbmix.""",
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
        """Show the progress of a build.

Reads what is committed and touches nothing, so it may be asked while the
build runs and after it was interrupted.""",
        """Examples:

  packline status store
  packline status store --json""",
    ),
    "verify": (
        """Check a store, or another project's data set, from its files alone.

Sizes, checksums, indexes, provenance, end-of-document tokens, and a ledger
counted anew. With --deep the inputs are read again and a sample of documents
is encoded by the reference tokenizer and compared. With --from the data set of
another project is checked: sizes, indexes, ids, boundaries. With --against
the documents that have 13 words in a row in common with a question of an
evaluation set are listed, and what could not be checked is counted.""",
        """Examples:

  packline verify store
  packline verify store --deep
  packline verify store --against eval_bundle --against gsm8k/test.jsonl
  packline verify data --from megatron --tokenizer gpt2/tokenizer.json

Exit codes: 0 all is well, 1 problems or questions were found, 4 no question
was found but some could not be checked.""",
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
    "analyze": (
        """Count what is in a store, a data set or a batch, and what looks wrong.

Every token is read: how many, how long documents are, padding for rows of
--seq-len, special tokens, the most used and the never used, documents that
repeat themselves or take few or many bytes per token, documents that are there
twice. Of a batch (.npz, .pt), chuk-mlx's table of tokens and padding.""",
        """Examples:

  packline analyze store
  packline analyze store --seq-len 2048 --top 20
  packline analyze fineweb.bin --from llmc --tokenizer gpt2/tokenizer.json \\
      --set edges=bos
  packline analyze out/tokenized_batch_0001.npz --tokenizer gpt2/tokenizer.json
  packline analyze out/tokenized_batch_0001.npz --tensor-type target""",
    ),
    "view": (
        """Show the tokens of a document, a row or a batch.

As the tokenizer cut them: special tokens marked, the edges of documents with
where each is from, padding, and which tokens are learned. What would act on a
terminal is shown, not obeyed. Scrolls in a terminal, prints plainly in a pipe.""",
        """Examples:

  packline view store --document 7
  packline view store --row 12 --seq-len 2048 --packing best_fit
  packline view run.toml --step 1200 --world-size 8 --rank 3
  packline view store --step 0 --seq-len 2048 --batch-size 32 --out batch.html
  packline view a_batch_0001.npz --tokenizer gpt2/tokenizer.json --grid --rows 4""",
    ),
    "report": (
        """Write a self-contained HTML summary of a store.

Warnings first; then the ledger as a flow from records in to tokens in rows,
tokens by source and label, how long documents are, what every packing costs,
rows token by token, the most used tokens, documents that look wrong or are
there twice. Below 1 MB, without a script; nothing is fetched when it opens.""",
        """Examples:

  packline report store -o report.html
  packline report store --seq-len 4096 --packing best_fit
  packline report store --against Qwen/Qwen3-8B --against gpt2""",
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
    "export": (
        """Write a store, a run or text in the layout of another project.

SOURCE is the folder of a store; or a run file (run.toml), for formats of rows;
or text with --tokenizer, which becomes a store at OUT.store on the way. What
the format cannot carry is said before anything is written. Files whose bytes
are the store's own are linked to it where that can be: do not write into them.
Interrupt it at any time: the same command goes on where it stopped.""",
        """Examples:

  packline export store --to megatron --out data
  packline export store --to llmc --out data --set shard_tokens=50000000
  packline export store --to mds --out rows --seq-len 2048 --packing best_fit \\
      --seed 1
  packline export run.toml --to npz --out batches --stage 0
  packline export 'web/*.jsonl.zst' --tokenizer gpt2/tokenizer.json \\
      --to nanogpt --out data""",
    ),
    "bake": (
        """Write rows in training order as native shards.

What a loader would give batch by batch, in one run of rows on the disk: for
trainers that read from end to end, and for machines that have nothing but the
files. packline.formats.baked.BakedRows reads them back.""",
        """Examples:

  packline bake run.toml --out rows
  packline bake store --seq-len 4096 --packing best_fit --seed 1 --out rows""",
    ),
    "import": (
        """Turn another project's data set into a store.

PATH is its file or folder, and --tokenizer the one that made its ids. Every
id and every document's boundary tokens are checked; any damage is an error
with its place, and no store appears. Interrupt it at any time: the same
command goes on where it stopped.""",
        """Examples:

  packline import data --from megatron --tokenizer gpt2/tokenizer.json \\
      --out store
  packline import shards --from llmc --tokenizer gpt2/tokenizer.json \\
      --set edges=bos --out store
  packline import data.ds --from datatrove --tokenizer Qwen/Qwen3-8B \\
      --eod '<|endoftext|>' --out store""",
    ),
    "convert": (
        """Convert a dataset to another format (keeps the intermediate store).

SOURCE is a store, or a data set that --from names and whose ids --tokenizer
made; it becomes a store at OUT.store, which is then exported to OUT.""",
        """Examples:

  packline convert data out --from megatron --to llmc \\
      --tokenizer gpt2/tokenizer.json
  packline convert shards rows --from llmc --to mds --seq-len 2048 \\
      --tokenizer gpt2/tokenizer.json""",
    ),
    "formats": (
        """List the formats that can be written and read, or explain one.

With a NAME: its layout byte by byte, and its options with their defaults.""",
        """Examples:

  packline formats
  packline formats megatron""",
    ),
    "evals": (
        """Tokenize evaluation sets and mark the scored tokens.

KIND is core (PATH: a bundle of the CORE benchmark), chat (MMLU and ARC as
questions to an assistant, in nanochat's tokens or by the chat template; files
by --mmlu, --arc-easy, --arc-challenge) or hellaswag (PATH: its JSON lines).
Few-shot prompts, seeds, truncation, start and end are those of nanochat and
stacks. Writes a file a task, and config.json.""",
        """Examples:

  packline evals core eval_bundle --tokenizer my/tokenizer.json --out core
  packline evals core eval_bundle --tokenizer gpt2/tokenizer.json \\
      --bos '<|endoftext|>' --max-seq-len 1024 --task copa --out core
  packline evals chat --mmlu mmlu/test --arc-easy arc/easy \\
      --tokenizer my/tokenizer.json --out chat
  packline evals chat --mmlu mmlu/test --tokenizer qwen3 \\
      --chat-template chatml.jinja --out chat
  packline evals hellaswag hellaswag_val.jsonl --format llmc \\
      --tokenizer gpt2/tokenizer.json --out hellaswag""",
    ),
    "serve": (
        """Show stores in a browser.

Pages about sources, documents, rows and batches, with every token where the
tokenizer cut it; search, and comparison of tokenizers and of two stores. Only
this machine can open them, unless --host says otherwise; then they ask for a
token. Nothing is written. Needs packline[web].""",
        """Examples:

  packline serve store
  packline serve store --tokenizer Qwen/Qwen3-8B
  packline serve old new --port 0
  packline serve store --host 0.0.0.0""",
    ),
    "tokenizer": (
        """Train a vocabulary, compare it with others, check it against a model.

train learns a byte-level BPE from text of any size; its merges are those of
HF's trainer. eval measures bytes per token next to baselines, by
kind of text and by language. check holds a tokenizer against a model's
embedding, its own declarations, hard text and every engine.""",
        """Examples:

  packline tokenizer train 'web/*.jsonl.zst' --vocab-size 32768 --out tok
  packline tokenizer train corpus/ --vocab-size 32768 --pattern nanochat \\
      --specials nanochat --max-chars 2000000000 --doc-chars 10000 --out tok
  packline tokenizer train recipe.toml --vocab-size 32768 --out tok
  packline tokenizer eval tok --against gpt2 --against cl100k_base \\
      --text mine=notes.txt --html tok.html
  packline tokenizer check tok --model config.json""",
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
"""Commands in the order of the list, with the texts above and below their options."""

GROUPS = ("tokenizer",)
"""Commands with subcommands, such as `packline tokenizer train`."""
