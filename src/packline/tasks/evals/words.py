"""Words of a text, whatever its case and punctuation: as bytes, with a hash of each, without a Python string.

    "Don't  stop -- believing!"  ->  don t stop believing

ASCII letters in lower case, digits, and every byte beyond ASCII make words; everything else, and the usual
punctuation and spaces beyond ASCII (U+0080 to U+00BF, U+2000 to U+207F, U+3000 to U+303F), stands between
them. Letters beyond ASCII keep their case. Where a language has no spaces, a word is what stands between
punctuation: there tokens are the better grams.

A word is hashed eight bytes at a time, `sum(mix(block[i]) * BASE**i)`: nearly all words are one block, which
is one look at the text. Cost: about 3 ns a byte, of which 2 for hashes.
"""

from __future__ import annotations

import numpy as np

from packline.tasks.evals.ngrams import BASE

SPACE = 32
LOWER = bytes(
    byte + 32 if 65 <= byte <= 90 else byte if byte >= 128 or chr(byte).isalnum() else SPACE
    for byte in range(256)
)
"""`bytes.translate` of it does all that ASCII needs."""
BLOCK = 8
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(BLOCK + 1)], np.uint64)
"""What a block of so many bytes has of eight."""


def split_words(text: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Words of a text: its bytes, uint8, where words begin and end in it, int64 `[W]`, their hashes, uint64.

    Args:
        text: uint8, translated by `LOWER`. It stays as it is; in the bytes that come back, punctuation
            beyond ASCII is blank too.

    >>> text = np.frombuffer("Don’t stop!".encode().translate(LOWER), np.uint8)
    >>> data, starts, ends, hashes = split_words(text)
    >>> [data[start:end].tobytes() for start, end in zip(starts, ends)]
    [b'don', b't', b'stop']
    """
    size = len(text)
    # The last word may be less than a block, and a block is read as a whole.
    padded = np.full(size + BLOCK, SPACE, np.uint8)
    data = padded[:size]
    data[:] = text
    blank(data)
    inside = np.zeros(size + 2, np.bool_)
    np.not_equal(data, SPACE, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    blocks = np.ndarray((size + 1,), "<u8", padded.data, strides=(1,))  # the eight bytes from each place on
    return data, starts, ends, _hashes(blocks, starts, ends)


def _hashes(blocks: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    lengths = ends - starts
    hashes = _mixed(blocks[starts] & _MASKS[np.minimum(lengths, BLOCK)])
    longer = np.flatnonzero(lengths > BLOCK)
    if len(longer):
        counts = (lengths[longer] - 1) // BLOCK
        firsts = np.cumsum(counts) - counts
        steps = np.arange(1, int(counts.sum()) + 1) - np.repeat(firsts, counts)
        at = np.repeat(starts[longer], counts) + steps * BLOCK
        left = np.minimum(np.repeat(ends[longer], counts) - at, BLOCK)
        powers = np.multiply.accumulate(np.full(int(counts.max()), BASE, np.uint64))
        rest = _mixed(blocks[at] & _MASKS[left]) * powers[steps - 1]
        hashes[longer] += np.add.reduceat(rest, firsts)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(BASE)
    return hashes ^ (hashes >> np.uint64(32))


def _mixed(blocks: np.ndarray) -> np.ndarray:
    """Each block with its high bits in its low ones and the other way round: a product alone only goes up."""
    return (blocks ^ (blocks >> np.uint64(32))) * np.uint64(BASE)


def blank(data: np.ndarray) -> None:
    """Put spaces where punctuation beyond ASCII is, in place."""
    leads = np.flatnonzero((data == 0xE2) | (data == 0xE3) | (data == 0xC2))
    if not len(leads):
        return
    lead, after = data[leads], data[np.minimum(leads + 1, len(data) - 1)]
    three = ((lead == 0xE2) & ((after == 0x80) | (after == 0x81))) | ((lead == 0xE3) & (after == 0x80))
    three &= leads + 2 < len(data)
    two = (lead == 0xC2) & (leads + 1 < len(data))
    for place, width in ((leads[three], 3), (leads[two], 2)):
        for step in range(width):
            data[place + step] = SPACE
