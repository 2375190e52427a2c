"""datatrove's DocumentTokenizer: a local pipeline with a worker for every file of the input folder.

    PEERS_PYTHON -m benchmarks.contenders.datatrove_tokenizer TOKENIZER EOD OUT_FOLDER INPUT_FOLDER

Reads JSONL, encodes with HF tokenizers in batches, appends the end of document, writes `.ds` files;
without its shuffling, which would cost it a second pass. Timed from the start of the pipeline.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path


def main() -> None:
    """Do the whole job once and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("eod", help="the string of the end-of-document token")
    parser.add_argument("out")
    parser.add_argument("corpus", help="a folder of JSONL files with the field text, one a worker")
    arguments = parser.parse_args()
    # Each worker would start a thread a core for itself; with a worker a core, one thread is faster.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    out = Path(arguments.out)
    workers = len(list(Path(arguments.corpus).glob("*.jsonl")))
    started = time.perf_counter()
    executor = LocalPipelineExecutor(
        pipeline=[
            JsonlReader(arguments.corpus, glob_pattern="*.jsonl", text_key="text"),
            DocumentTokenizer(
                output_folder=str(out / "tokens"),
                tokenizer_name_or_path=arguments.tokenizer,
                eos_token=arguments.eod,
                shuffle_documents=False,
                max_tokens_per_file=10**12,
            ),
        ],
        tasks=workers,
        workers=workers,
        logging_dir=str(out / "logs"),
        skip_completed=False,
    )
    executor.run()
    seconds = time.perf_counter() - started
    documents = sum(path.stat().st_size // 8 for path in (out / "tokens").glob("*.ds.index"))
    token_bytes = 2 if vocabulary_of(arguments.tokenizer) < 2**16 else 4
    tokens = sum(path.stat().st_size // token_bytes for path in (out / "tokens").glob("*.ds"))
    print(json.dumps({"documents": documents, "tokens": tokens, "text_bytes": None, "seconds": seconds}))


def vocabulary_of(tokenizer: str) -> int:
    """Number of ids, which decides how wide datatrove writes them."""
    import tokenizers

    return tokenizers.Tokenizer.from_file(tokenizer).get_vocab_size()


if __name__ == "__main__":
    main()
