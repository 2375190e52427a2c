"""tokenizer_config.json: metadata that a tokenizer.json lacks, such as which token ends a document.

If a folder has both files, `transformers.AutoTokenizer.from_pretrained(FOLDER)` loads it, and knows its
`eos_token`, which trainers use as the end of a document.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

CONFIG = "tokenizer_config.json"


def config_bytes(special_tokens: Sequence[str], eos: str | None, bos: str | None) -> bytes:
    """Build the contents of tokenizer_config.json.

    Args:
        special_tokens: all special tokens, in any order.
        eos: the token that ends a document, if any.
        bos: the token that begins a document, if any.

    >>> msgspec.json.decode(config_bytes(["</s>", "<x>"], "</s>", None))["eos_token"]
    '</s>'
    """
    named = {"eos_token": eos, "bos_token": bos}
    config: dict[str, str | bool | list[str]] = {
        name: token for name, token in named.items() if token is not None
    }
    config |= {
        "additional_special_tokens": [token for token in special_tokens if token not in (eos, bos)],
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return msgspec.json.format(msgspec.json.encode(config)) + b"\n"
