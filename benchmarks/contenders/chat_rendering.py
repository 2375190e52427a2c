"""Ids and loss masks of conversations by transformers' own rendering, one thread.

    python benchmarks/contenders/chat_rendering.py CONVERSATIONS TOKENIZER TEMPLATE IDS

Writes the ids of all conversations, then their masks, to the file IDS as int32 and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from pathlib import Path


def main(conversations: str, tokenizer: str, template: str, out: str) -> None:
    """Render all conversations, write them, and print what they are."""
    import transformers

    loaded = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer)
    loaded.chat_template = Path(template).read_text("utf-8")
    ids, mask, count = array("i"), array("i"), 0
    begin = time.perf_counter()
    with open(conversations, encoding="utf-8") as lines:
        for line in lines:
            found = loaded.apply_chat_template(
                json.loads(line)["messages"],
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            ids.extend(found["input_ids"])
            mask.extend(found["assistant_masks"])
            count += 1
    seconds = time.perf_counter() - begin
    with open(out, "wb") as file:
        ids.tofile(file)
        mask.tofile(file)
    print(json.dumps({"conversations": count, "tokens": len(ids), "trained": sum(mask), "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
