"""Text on which tokenizers part: made from a seed, of any size, valid Unicode throughout."""

from __future__ import annotations

from random import Random

SPACES = [
    " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n\n", "\r", "\u00a0", "\u0085", "\u2003", "\u2028",
    "\u3000", "\u180e", "\u200b", "\u200d", "\ufeff", "\x0b", "\x0c", "\x1c", "\x1f", " \n ", "\n \t",
    "    \n",
]  # fmt: skip
WORDS = [
    "the", "The", "THE", "other", "cat", "and", "don't", "DON'T", "we'LL", "I'M", "'s", "'S", "'ſ", "'re",
    "x'd", "iPhone", "HTTPServer", "naïve", "café", "cafe\u0301", "ﬁne", "Straße", "ǅungla", "ʼn", "a_b",
    'if(a<b){return"x\\n";}', "//'code'", "0xdeadbeef", "e-mail@x.org", "http://a.b/c?d=e&f", "--", "…",
]  # fmt: skip
NUMBERS = [
    "1", "12", "123", "1234", "1234567890", "3.14", "1,000", "٣٤٥", "४२", "½", "Ⅷ", "²", "１２", "𝟜𝟚",
]  # fmt: skip
SCRIPTS = [
    "漢字とかな", "한국어", "각", "\u1100\u1161\u11a8", "العربية", "עברית", "हिन्दी", "ไทย", "ქართული",
    "Ελληνικά", "Русский", "தமிழ்", "ខ្មែរ", "日", "、。", "「」", "ｶﾞ", "が", "か\u3099", "ß",
    "İ", "ı", "Å", "Å", "Ω", "K",
]  # fmt: skip
MARKS = [
    "\u0301", "\u0323", "\u0338", "\u0344", "\u0307\u0323", "\u093c", "\u07fd", "\u0898", "\u0c3c",
    "\u1abf", "\u20dd", "\ufe0f", "\U0001e94a", "\u0897", "\U00010d69", "\U000105d2", "\U000113c9",
]  # fmt: skip
ODD = [
    "\x00", "\ufffd", "\uffff", "\ufffe", "\U0010ffff", "\ue000", "\U000e0041", "\u202e", "🧑‍🚀",
    "👩‍👩‍👧‍👦", "🇯🇵", "👍🏽", "𝒜", "\U00020000",
]  # fmt: skip
PIECES = [
    "▁", "▁▂▃", "Ġ", "Ġthe", "Ċ", "##", "##s", "<0x0A>", "<0xE4>", "<unk>", "[UNK]", "</s>", "<s>",
    "<|endoftext|>",
]  # fmt: skip
PUNCTUATION = [
    *'!"#$%&()*+,-./:;<=>?@[]^`{|}~',
    "...",
    "?!",
    "; ",
    ")\n",
    "}\n\n",
    " (",
    "``",
    "\\",
    "£",
    "×",
]
GROUPS = [SPACES, WORDS, NUMBERS, SCRIPTS, MARKS, ODD, PIECES, PUNCTUATION]


def hostile_texts(rng: Random, words: list[str], size: int) -> list[str]:
    """Texts of about `size` characters in all.

    Args:
        words: strings that matter for the tokenizer, such as its added tokens; half of the text is of these.
    """
    texts = [form for word in words for form in forms(word)][:200]
    made = sum(map(len, texts))
    before = ""
    while made < size:
        text = _text(rng, words, rng.choice((1, 2, 3, 5, 8, 20, 100)))
        kind = rng.random()
        if kind < 0.03:  # long runs of one kind, which no engine may cut
            text += rng.choice(("a", " ", "\n", "1", "日", "!", "\u0301", "ab", " a", "é")) * rng.choice(
                (300, 1500)
            )
        elif kind < 0.06 and before:  # a beginning that an engine may remember
            text = before[: len(before) - rng.randrange(8)] + text
        elif kind < 0.08:  # what one engine keeps of a long text, and may cut
            text = (text + _text(rng, words, 50)) * (1 + 6000 // (len(text) + 50))
        texts.append(text)
        before = text if len(text) > 4096 else before
        made += len(text)
    return texts


def forms(word: str) -> list[str]:
    """A word alone, between spaces and line ends, inside words, doubled, and in other case."""
    around = [
        "{}",
        " {}",
        "{} ",
        "  {}  ",
        "\n{}\n",
        "a{}b",
        "{}{}",
        "{} {}",
        "1{}1",
        ".{}.",
        "_{}_",
        "é{}é",
        "{}\u0301",
    ]
    return [one.replace("{}", word) for one in around] + [
        word.swapcase(),
        word[:-1],
        word[1:],
        word[:-1] + word,
    ]


def _text(rng: Random, words: list[str], pieces: int) -> str:
    found = []
    for _ in range(pieces):
        if words and rng.random() < 0.3:
            word = rng.choice(words)
            kind = rng.random()
            if kind < 0.2 and word:
                cut = rng.randrange(len(word))
                word = rng.choice((word[:cut], word[cut:], word.swapcase(), word.upper()))
            found.append(word)
        elif rng.random() < 0.03:
            found.append(_any_character(rng))
        else:
            found.append(rng.choice(rng.choice(GROUPS)))
        if rng.random() < 0.25:
            found.append(rng.choice(SPACES))
    return "".join(found)


def _any_character(rng: Random) -> str:
    number = rng.randrange(rng.choice((0x250, 0x3000, 0xD800, 0x20000, 0x110000)))
    return chr(number) if not 0xD800 <= number < 0xE000 else "\ufffd"
