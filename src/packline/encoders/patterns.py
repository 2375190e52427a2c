"""Pre-tokenizer patterns by name, which cut text into words before merging.

    gpt2            ` ?letters`, ` ?digits`, ` ?others`                    GPT-2, RoBERTa, GPT-NeoX
    gpt4, llama3    one mark before letters, up to three digits, line ends with what is before them
    nanochat        the same, up to two digits
    qwen2           the same, single digits
    o200k           the same, three digits, and a new word at a capital letter (GPT-4o)

The expressions are those of the published tokenizers without possessive quantifiers, which HF's regular
expression engine interprets differently; the words are the same.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from packline.encoders.tiktoken import MARK, SPLIT_100K, SPLIT_200K, WORDS
from packline.errors import RecipeError

PatternName = Literal["gpt2", "gpt4", "llama3", "nanochat", "qwen2", "o200k"]
PATTERN_NAMES: tuple[PatternName, ...] = get_args(PatternName)

SPLIT_50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The regular expression that is built into the byte-level pre-tokenizer."""


class Pattern(msgspec.Struct, frozen=True):
    """A rule for cutting text into words."""

    name: str
    expression: str
    rules: Literal["spaces", "marks", "other"]
    """Rules of `splitting` that apply: words take a space, words take a mark, or none."""
    digits: int = 0
    """Maximum length of a word of digits; 0 for no limit."""

    def pre_tokenizer(self) -> dict[str, Any]:
        """The pre-tokenizer in the form of a tokenizer.json."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        if self.name == "gpt2":
            return {**level, "use_regex": True}
        split = {
            "type": "Split",
            "pattern": {"Regex": self.expression},
            "behavior": "Isolated",
            "invert": False,
        }
        return {"type": "Sequence", "pretokenizers": [split, level]}


def _marks(name: str, digits: int) -> Pattern:
    numbers = rf"\p{{N}}{{1,{digits}}}" if digits > 1 else r"\p{N}"
    expression = (
        rf"(?i:{WORDS})|{MARK}\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return Pattern(name, expression, "marks", digits)


PATTERNS: dict[str, Pattern] = {
    "gpt2": Pattern("gpt2", SPLIT_50K, "spaces"),
    "gpt4": _marks("gpt4", 3),
    "llama3": _marks("llama3", 3),
    "nanochat": _marks("nanochat", 2),
    "qwen2": _marks("qwen2", 1),
    "o200k": Pattern("o200k", SPLIT_200K, "other"),
}
assert PATTERNS["gpt4"].expression == SPLIT_100K


def pattern_of(name: str) -> Pattern:
    """Look up a pattern by name.

    Raises:
        RecipeError: no such pattern.

    >>> pattern_of("nanochat").digits
    2
    """
    if name not in PATTERNS:
        raise RecipeError(
            f"{name!r} is no pattern: expected one of {', '.join(PATTERNS)}",
            hint="a pattern says how text is cut into words before merging",
        )
    return PATTERNS[name]
