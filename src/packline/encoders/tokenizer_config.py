"""tokenizer_config.json: what a tokenizer.json does not say of itself, such as which token ends a document.

With both files in a folder `transformers.AutoTokenizer.from_pretrained(FOLDER)` loads it, and knows its
`eos_token`, which trainers take for the end of a document.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

CONFIG = "tokenizer_config.json"


def config_bytes(special_tokens: Sequence[str], eos: str | None, bos: str | None) -> bytes:
    """The content of tokenizer_config.json.

    Args:
        special_tokens: all of them, in any order.
        eos: the token that ends a document, where there is one.
        bos: the token that begins one.

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
