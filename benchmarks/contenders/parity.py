"""Are an engine's ids the reference's? HF tokenizers encodes some of the documents and decides.

    python -m benchmarks.contenders.parity english.jsonl TOKENIZER --engine fastokens

Documents are taken at equal distances over the whole file, up to `--bytes` of text: the reference
makes about a megabyte a second. An engine that differs anywhere is no contender for the ceiling.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.contenders.ceiling import read_batches, without_special_tokens


def main() -> None:
    """Compare, and print how much was compared and whether all was equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("tokenizer")
    parser.add_argument("--engine", choices=["gigatoken", "fastokens"], required=True)
    parser.add_argument("--bytes", type=int, default=4_000_000)
    arguments = parser.parse_args()
    _, total = read_batches(arguments.corpus, 0, 1, 1 << 20)
    every = max(1, total // arguments.bytes)
    batches, text_bytes = read_batches(arguments.corpus, 0, every, 1 << 20)
    documents = [text for batch in batches for text in batch]
    expected = reference_ids(arguments.tokenizer, documents)
    found = engine_ids(arguments.engine, arguments.tokenizer, documents)
    different = sum(one != other for one, other in zip(expected, found, strict=True))
    tokens = sum(map(len, expected))
    report = {"documents": len(documents), "text_bytes": text_bytes, "tokens": tokens, "different": different}
    print(json.dumps({**report, "seconds": 0.0}))


def reference_ids(tokenizer: str, documents: list[str]) -> list[list[int]]:
    """HF tokenizers, special-token strings as text."""
    import tokenizers

    reference: Any = tokenizers.Tokenizer.from_file(tokenizer)
    reference.no_truncation()
    reference.no_padding()
    reference.encode_special_tokens = True
    return [reference.encode(text, add_special_tokens=False).ids for text in documents]


def engine_ids(engine: str, tokenizer: str, documents: list[str]) -> list[list[int]]:
    """The engine as the ceiling uses it."""
    if engine == "gigatoken":
        import gigatoken

        giga = gigatoken.Tokenizer.from_json(without_special_tokens(tokenizer))
        return giga.encode_batch_list(documents, parallel=False)
    import numpy as np
    from fastokens._native import Tokenizer

    ids, offsets = Tokenizer.from_file(tokenizer).encode_batch_flat(documents, split_special_tokens=True)
    ends = np.frombuffer(offsets, np.uint64)[1:-1].astype(np.int64)
    return [part.tolist() for part in np.split(np.frombuffer(ids, np.uint32), ends)]


if __name__ == "__main__":
    main()
