"""gigatoken the way Megatron-LM uses it: the whole file at once, then an indexed-dataset builder.

    PEERS_PYTHON -m benchmarks.contenders.megatron TOKENIZER EOD_ID OUT_FOLDER english.jsonl

Reads the JSONL file with gigatoken's own reader on all its threads (`--decode` parses it in Python
instead, as older scripts do), appends the end of document in one Awkward operation, and gives one
document after another to `IndexedDatasetBuilder` of megatron-core, the class that its
preprocessing writes with. The output is a `.bin` and `.idx` pair like a build's. No resume,
no checks, no bound on memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from typing import Any


def main() -> None:
    """Do the whole job once and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("eod", type=int)
    parser.add_argument("out")
    parser.add_argument("corpus", help="a JSONL file with the field text")
    parser.add_argument("--decode", action="store_true", help="parse the JSON in Python")
    arguments = parser.parse_args()

    import awkward as ak
    import gigatoken
    import numpy as np
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    tokenizer = gigatoken.Tokenizer(arguments.tokenizer)
    loaded = time.perf_counter()
    if arguments.decode:
        encoded = tokenizer.encode_batch(decode_all(arguments.corpus), parallel=True)
    else:
        source = gigatoken.JsonlFileSource([arguments.corpus], field="text")
        encoded = tokenizer.encode_files(source, parallel=True)
    end_column = ak.singletons(ak.Array(np.full(len(encoded), arguments.eod, np.uint32)))
    encoded = ak.concatenate([encoded, end_column], axis=1)
    encoded_at = time.perf_counter()
    dtype = DType.optimal_dtype(tokenizer.vocab_size)
    os.makedirs(arguments.out, exist_ok=True)
    builder = IndexedDatasetBuilder(os.path.join(arguments.out, "document.bin"), dtype=dtype)
    documents, tokens = add_documents(builder, encoded)
    builder.finalize(os.path.join(arguments.out, "document.idx"))
    ended = time.perf_counter()
    report = {"documents": documents, "tokens": tokens, "text_bytes": None}
    stages = {"encode_seconds": encoded_at - loaded, "write_seconds": ended - encoded_at}
    print(json.dumps({**report, **stages, "seconds": ended - loaded}))


def decode_all(path: str) -> list[str]:
    """Every text of a JSONL file, in memory."""
    import orjson

    with open(path, "rb") as file:
        return [orjson.loads(line)["text"] for line in file]


def add_documents(builder: Any, encoded: Any) -> tuple[int, int]:
    """Every document to the builder, through NumPy views of the flat array (the quickest way that it has)."""
    import awkward as ak
    import numpy as np

    layout = ak.to_packed(encoded).layout
    ids, offsets = np.asarray(layout.content.data), np.asarray(layout.offsets).tolist()
    for begin, end in itertools.pairwise(offsets):
        builder.add_document(ids[begin:end], [end - begin])
    return len(offsets) - 1, offsets[-1]


if __name__ == "__main__":
    main()
