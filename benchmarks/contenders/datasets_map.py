"""HF datasets: `load_dataset("json")`, then `map` with one process per core and batched encoding.

    PEERS_PYTHON -m benchmarks.contenders.datasets_map TOKENIZER EOD_ID OUT_FOLDER INPUT_FOLDER

What comes out is a dataset with a list of ids a document in an Arrow cache, end of document
included; not yet a file that a trainer reads, and no time is charged for making one. Timed from the
loading of the JSONL, which datasets converts to Arrow first.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Do the whole job once and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("eod", type=int)
    parser.add_argument("out", help="gets the Arrow cache")
    parser.add_argument("corpus", help="a folder of JSONL files with the field text")
    arguments = parser.parse_args()
    os.environ["HF_HOME"] = arguments.out
    # One thread a process: one process per core is faster than threads in each.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    import datasets
    import tokenizers

    datasets.disable_progress_bars()
    tokenizer = tokenizers.Tokenizer.from_file(arguments.tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        encodings = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"ids": [[*encoding.ids, arguments.eod] for encoding in encodings]}

    started = time.perf_counter()
    files = sorted(map(str, Path(arguments.corpus).glob("*.jsonl")))
    loaded = datasets.load_dataset("json", data_files=files, split="train", cache_dir=arguments.out)
    columns, processes = loaded.column_names, len(os.sched_getaffinity(0))
    mapped = loaded.map(encode, batched=True, num_proc=processes, remove_columns=columns)
    seconds = time.perf_counter() - started
    import pyarrow.compute as pc

    tokens = int(pc.sum(pc.list_value_length(mapped.data.column("ids"))).as_py())
    print(json.dumps({"documents": len(mapped), "tokens": tokens, "text_bytes": None, "seconds": seconds}))


if __name__ == "__main__":
    main()
