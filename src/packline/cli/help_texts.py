"""Help pages: the purpose of each command, and example command lines that work.

They are separate from the commands so that `packline --help` imports none of them. Lines are below 78
columns, because a help page is not rewrapped.
"""

from __future__ import annotations

SUMMARY = """Raw text to training-ready tokens: fast, exact, crash-proof and
traceable to the source."""

SUMMARY_END = """Examples:

  packline demo
  packline build corpus/ --tokenizer gpt2 --out store
  packline info store

Help on a command: packline COMMAND --help"""

PAGES: dict[str, tuple[str, str]] = {
    "build": (
        """Turn text into a token store.

INPUTS are files of text, and --tokenizer names the tokenizer; or the one
input is a recipe that names both. A build may be interrupted at any time:
the same command resumes it, and the result is the same, byte for byte.""",
        """Examples:

  packline build corpus/ --tokenizer gpt2 --out store
  packline build recipe.toml --dry-run
  packline build 'web/*.jsonl.zst' --tokenizer Qwen/Qwen3-8B \\
      --eod '<|endoftext|>' --out store
  packline build books.parquet --text body --tokenizer gpt2 \\
      --val-fraction 0.01 --out store
  packline build 's3://bucket/web/*.parquet' --tokenizer gpt2 --out store
  packline build web.parquet --tokenizer gpt2 --out store \\
      --columns 'url,score: float' --where "score >= 3"
  packline build recipe.toml --out store --workers 8 --memory 12GiB
  packline build recipe.toml --out tuesday --reuse monday
  packline build recipe.toml --out store --on ray --address auto
  packline build recipe.toml --out store --slice 3/8
  packline build recipe.toml --out s3://bucket/store --scratch scratch
  packline build recipe.toml --out s3://bucket/store --join

Exit codes: 0 done, 1 error, 2 wrong usage, 3 done with more bad records than
--max-bad-fraction, 129, 130 or 143 interrupted by a signal.""",
    ),
    "sft": (
        """Turn conversations into a token store with a loss mask.

INPUTS are JSONL or Parquet: OpenAI's messages, ShareGPT, plain lists of
messages, or prompt and response. They are formatted by the tokenizer's own
chat template, by another template or by nanochat's scheme. Only the replies
of the assistant are trained on. What is malformed, too long or refused by the
template is kept in rejects/, and so are data for DPO, KTO, GRPO or reward
models, which TRL's trainers read as they are.""",
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

Exit codes: 0 done, 1 error, 2 wrong usage, 3 done with more bad records than
--max-bad-fraction, 129, 130 or 143 interrupted by a signal.""",
    ),
    "init": (
        """Write a first recipe, or a run file.

Reads the first records of INPUTS to find their fields and which of them hold
the text; a folder of mixed files becomes a source for each kind of them. The
recipe can be built unchanged; its comments show other choices.
--preset writes the recipe of a well-known dataset. --run writes a run file
for a store, with the weights or budgets of --recipe.""",
        """Examples:

  packline init 'web/*.jsonl.zst' books/ --tokenizer gpt2/tokenizer.json
  packline init --preset wikitext-103 --tokenizer gpt2 --out wiki.toml
  packline init --run store --recipe recipe.toml --seq-len 4096 \\
      --out run.toml

Presets: fineweb-edu, wikitext-103, tinystories, openwebtext, climbmix.""",
    ),
    "status": (
        """Show the progress of a job.

Reads committed work only and changes nothing, so it may run during a job
and after an interruption.""",
        """Examples:

  packline status store
  packline status s3://bucket/store
  packline status store --json""",
    ),
    "verify": (
        """Check a store, or another project's dataset, from its files alone.

Checks sizes, checksums, indexes, provenance and end-of-document tokens, and
counts the ledger again. --deep also reads the inputs again and compares a
sample of documents with the reference tokenizer. --from checks the dataset of
another project: sizes, indexes, ids, boundaries. --against lists the documents
that share 13 words in a row with a question of an evaluation set, and counts
the questions that could not be checked; --write makes a list of the documents
that --exclude leaves out.""",
        """Examples:

  packline verify store
  packline verify store --deep
  packline verify store --against eval_bundle --against gsm8k/test.jsonl
  packline verify store --against gsm8k/test.jsonl --write leaked.parquet
  packline verify data --from megatron --tokenizer gpt2/tokenizer.json

Exit codes: 0 no problem, 1 problems or questions found, 4 no question found
but some could not be checked.""",
    ),
    "merge": (
        """Combine several stores into one, by hard links.

STORES have different sources, and the same tokenizer and common settings. Files
are hard links, or copies on another disk; no token is read. The result is what
one build of all the sources gives, byte for byte, with the sources of the first
store first. Checked are all settings, the sizes of all files and the checksums
of manifests and tables; with --verify the checksums of all files, which reads
them. After an interruption the same command resumes.""",
        """Examples:

  packline merge books web --out both
  packline merge monday tuesday wednesday --out week --verify

Exit codes: 0 done, 1 error, 2 wrong usage, 129, 130 or 143 interrupted.""",
    ),
    "diff": (
        """Show what differs between two stores, or between two run files.

Settings, tokenizer, inputs, tokens by source and split, and the documents that
were added, removed or changed: matched by source, file and position, compared
by the hash of their text. Of run files: the settings that differ.""",
        """Examples:

  packline diff monday friday
  packline diff run.toml changed.toml

Exit codes: 0 equal, 1 different, partly compared or an error, 2 wrong usage.""",
    ),
    "info": (
        """Show the contents of a store, or what a run reads.

Of a store: tokens by split, source and label, ledger, lengths and the first
documents. Of a run: stages, shares, epochs at their ends, missing rows.

With --seq-len the cost of every packing in rows of N tokens: rows, padding,
lost tokens, documents that are split, rows with several. It is counted from
lengths alone, for documents chosen by --where, a condition on their columns,
--unique and --exclude; what each leaves out is counted.

With --html one file that any browser opens without a network: the same, the
ledger, costs of packings, rows with their tokens, odd documents, and other
tokenizers to compare with.""",
        """Examples:

  packline info store --documents 10
  packline info run.toml
  packline info store --html report.html --against Qwen/Qwen3-8B
  packline info store --seq-len 4096 --seq-len 32768 --min-tokens 512
  packline info store --seq-len 4096 --unique --exclude leaked.parquet \\
      --where "score >= 3 and language in ['de', 'en']"
  packline info store --seq-len 4096 --packing best_fit --write""",
    ),
    "analyze": (
        """Count the tokens of a store, a dataset or a batch, and find bad documents.

Reads every token: totals, lengths of documents, padding in rows of --seq-len,
special tokens, the most used and the unused tokens, documents that repeat
themselves, have few or many bytes per token, or are duplicates (--write makes
a list of those that --exclude leaves out). For a batch (.npz, .pt) it prints
chuk-mlx's table of tokens and padding.""",
        """Examples:

  packline analyze store
  packline analyze store --seq-len 2048 --top 20
  packline analyze store --write duplicates.parquet
  packline analyze fineweb.bin --from llmc --tokenizer gpt2/tokenizer.json \\
      --set edges=bos
  packline analyze out/tokenized_batch_0001.npz --tokenizer gpt2/tokenizer.json
  packline analyze out/tokenized_batch_0001.npz --tensor-type target""",
    ),
    "view": (
        """Show the tokens of a document, a row or a batch, or list documents.

With a choice of documents (--where, --split, --source, ...) and no --row, the
documents chosen are listed with their carried columns. Otherwise each token
is shown as the tokenizer split it: special tokens, the origin and edges of
documents, padding, and which tokens are learned. Control characters are
visible and have no effect. Uses a pager in a terminal, plain text in a pipe.""",
        """Examples:

  packline view store --document 7
  packline view store --where "score >= 3 and url.startswith('https://a')"
  packline view store --row 12 --seq-len 2048 --packing best_fit
  packline view run.toml --step 1200 --world-size 8 --rank 3
  packline view store --step 0 --seq-len 2048 --batch-size 32 --out batch.html
  packline view a_batch_0001.npz --tokenizer gpt2/tokenizer.json --grid --rows 4""",
    ),
    "trace": (
        """Show the documents of a batch, or the batches of a document.

TARGET is a run file (run.toml) or a store; for a store, give the settings of
the training run. Steps are counted from 0: step N is the batch after N
batches, the next one of a loader whose state has "step": N. --steps A:B --write
makes a list of what steps A to B - 1 read, for `exclude` in a later stage.""",
        """Examples:

  packline trace run.toml --step 1200
  packline trace run.toml --step 1200 --world-size 8 --rank 3
  packline trace store --seq-len 4096 --batch-size 32 --seed 1 --step 0 --row 5
  packline trace run.toml --steps 0:400 --write seen.parquet
  packline trace run.toml --id a1b2
  packline trace run.toml --file web/a.jsonl --position 12345 --store web""",
    ),
    "export": (
        """Write a store, a run or text in the layout of another project.

SOURCE is the folder of a store; or a run file (run.toml), for formats of rows;
or text with --tokenizer, which first becomes a store at OUT.store. Anything
that the format cannot represent is reported before the export begins. Files
with the same bytes as the store's are hard links if possible: do not change
them. After an interruption the same command resumes the export. Without
--split rows of several splits are written to OUT/train, OUT/val, ...""",
        """Examples:

  packline export store --to megatron --out data
  packline export store --to llmc --out data --set shard_tokens=50000000
  packline export store --to mds --out rows --seq-len 2048 --seed 1
  packline export run.toml --to baked --out rows
  packline export run.toml --to npz --out batches --stage 0
  packline export 'web/*.jsonl.zst' --tokenizer gpt2/tokenizer.json \\
      --to nanogpt --out data""",
    ),
    "import": (
        """Turn another project's dataset into a store.

PATH is its file or folder, and --tokenizer the tokenizer that made its ids.
Every id and the boundary tokens of every document are checked; damage is an
error that names the place, and no store is written. After an interruption the
same command resumes the import.""",
        """Examples:

  packline import data --from megatron --tokenizer gpt2/tokenizer.json \\
      --out store
  packline import shards --from llmc --tokenizer gpt2/tokenizer.json \\
      --set edges=bos --out store
  packline import data.ds --from datatrove --tokenizer Qwen/Qwen3-8B \\
      --eod '<|endoftext|>' --out store""",
    ),
    "formats": (
        """List the supported formats, or describe one.

With a NAME: its byte layout, and its options with their defaults.""",
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
stacks. Writes one file per task, and config.json.""",
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
        """Show stores and runs in a browser.

Pages of sources, documents, rows, batches and runs with every token as the
tokenizer split it; search; comparison of tokenizers and of two stores. Only this machine
can open them by default; with --host, pages require a token. Writes nothing.
Needs packline[web].""",
        """Examples:

  packline serve store
  packline serve run.toml
  packline serve store --tokenizer Qwen/Qwen3-8B
  packline serve old new --port 0
  packline serve store --host 0.0.0.0""",
    ),
    "push": (
        """Send a store, an export or a folder to the hub or an object store.

TO is hf://, s3://, gs:// or az://. Files are compared with the
checksums of the manifest, which comes last: what has one is complete. The same
command continues an interrupted push.

In an object store files are created, never overwritten. FOLDER may be a URI,
too. Hidden files are left out. packline pull copies into a folder.

To the hub go stores, exports, tokenizers and evaluation sets, with a card
(README.md) that is made from the manifest; what you write around its marked
part is kept. A new repository is private. Needs a token that may write:
`hf auth login` or HF_TOKEN.""",
        """Examples:

  packline push store hf://datasets/org/tokens
  packline push store hf://datasets/org/tokens@v2 --public --license odc-by
  packline push mytok hf://org/tokenizer
  packline push store s3://bucket/stores/web
  packline push s3://bucket/stores/web gs://other/stores/web --verify

Exit codes: 0 done, 1 error, 2 wrong usage, 129, 130 or 143 interrupted.""",
    ),
    "pull": (
        """Fetch a store, an export or a folder from the hub or an object store.

Compares every file with the checksums of the manifest. The same command
continues an interrupted pull. From an object store the manifest comes last: a
folder that has one is complete.

From the hub the revision is resolved to a commit, and the folder is made in
one step. Prints the commit: a run that names it reads the same bytes for ever.
With HF_HUB_OFFLINE only the cache of the hub's client is used.""",
        """Examples:

  packline pull hf://datasets/org/tokens store
  packline pull hf://datasets/org/tokens@v1 store
  packline pull hf://org/tokenizer mytok
  packline pull s3://bucket/stores/web web --verify

Exit codes: 0 done, 1 error, 2 wrong usage, 129, 130 or 143 interrupted.""",
    ),
    "tokenizer": (
        """Train a tokenizer, compare it with others, check it, write it for a trainer.

train learns a byte-level BPE from text of any size, with the same merges as
HF's trainer. eval measures bytes per token next to baselines, by kind of text
and by language. check compares a tokenizer with a model's embedding, its own
declarations, hard text and every engine. export writes the files of nanochat.""",
        """Examples:

  packline tokenizer train 'web/*.jsonl.zst' --vocab-size 32768 --out tok
  packline tokenizer train corpus/ --vocab-size 32768 --pattern nanochat \\
      --specials nanochat --max-chars 2000000000 --doc-chars 10000 --out tok
  packline tokenizer eval tok --against gpt2 --against cl100k_base \\
      --text mine=notes.txt --html tok.html
  packline tokenizer check tok --model config.json
  packline tokenizer export tok --to nanochat --out ~/.cache/nanochat/tokenizer""",
    ),
    "demo": (
        """Build, verify and show a store of Python's own library. No network.

The corpus is the source code and documentation of the installed Python. The
demo trains a tokenizer on it, builds a store, verifies it and shows it.""",
        """Examples:

  packline demo
  packline demo --out somewhere""",
    ),
}
"""Commands in the order of the list, with the texts above and below their options."""

TOPICS = {
    "Start": ("demo", "init"),
    "Make a store": ("build", "status", "sft", "merge"),
    "Look at it": ("info", "view", "serve"),
    "Check it": ("verify", "analyze", "diff"),
    "Train": ("trace", "export"),
    "Other formats": ("formats", "import"),
    "Tokenizers and evaluation sets": ("tokenizer", "evals"),
    "Move and publish": ("push", "pull"),
}
"""Commands by topic, in the order of `packline --help`."""

WRITING = (
    "build",
    "sft",
    "merge",
    "init",
    "export",
    "import",
    "evals",
    "push",
    "pull",
    "demo",
)
"""Commands whose result is files; with --quiet they print nothing."""

GROUPS = ("tokenizer",)
"""Commands with subcommands, such as `packline tokenizer train`."""
