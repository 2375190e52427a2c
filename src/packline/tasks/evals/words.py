"""Words of a text, whatever its case and punctuation: as bytes, with a hash of each, without a Python string.

    "Don't  stop -- believing!"  ->  don t stop believing

ASCII letters in lower case, digits, and every byte beyond ASCII make words; everything else, and the usual
punctuation and spaces beyond ASCII (U+0080 to U+00BF, U+2000 to U+207F, U+3000 to U+303F), stands between
them. Letters beyond ASCII keep their case. Where a language has no spaces, a word is what stands between
punctuation: there tokens are the better grams.

Cost: about 6 ns a byte, arrays of 8 bytes a byte.
"""

from __future__ import annotations

import numpy as np

from packline.tasks.evals.ngrams import BASE, MASK, mix

SPACE = 32
LOWER = bytes(
    byte + 32 if 65 <= byte <= 90 else byte if byte >= 128 or chr(byte).isalnum() else SPACE
    for byte in range(256)
)
"""`bytes.translate` of it does all that ASCII needs."""
_BYTES = mix(np.arange(256))
_INVERSE = pow(BASE, -1, MASK + 1)


class WordSplitter:
    """Split bytes into words. It keeps powers of the base, as many as it needed."""

    def __init__(self) -> None:
        self._powers = np.ones(1, np.uint64)
        self._inverses = np.ones(1, np.uint64)

    def split(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where words begin and end, int64 `[W]`, and their hashes, uint64 `[W]`.

        Args:
            data: uint8, translated by `LOWER`; punctuation beyond ASCII is blanked in place.

        >>> data = np.frombuffer("Don’t stop!".encode().translate(LOWER), np.uint8).copy()
        >>> starts, ends, hashes = WordSplitter().split(data)
        >>> [data[start:end].tobytes() for start, end in zip(starts, ends)]
        [b'don', b't', b'stop']
        """
        blank(data)
        inside = np.empty(len(data) + 2, np.bool_)
        inside[0] = inside[-1] = False
        np.not_equal(data, SPACE, out=inside[1:-1])
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        starts, ends = edges[::2], edges[1::2]
        self._grow(len(data) + 1)
        sums = np.zeros(len(data) + 1, np.uint64)
        np.multiply(_BYTES[data], self._powers[: len(data)], out=sums[1:])
        np.add.accumulate(sums, out=sums)
        hashes = (sums[ends] - sums[starts]) * self._inverses[starts]
        return starts, ends, hashes ^ (hashes >> np.uint64(29))

    def _grow(self, size: int) -> None:
        if len(self._powers) < size:
            for name, base in (("_powers", BASE), ("_inverses", _INVERSE)):
                powers = np.full(size, base, np.uint64)
                powers[0] = 1
                setattr(self, name, np.multiply.accumulate(powers))


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
