"""Text of tokens, as bytes and without an object per token.

    tokens [T]  ──one gather──>  data uint8 [N], begins int64 [T+1]

The bytes of token t are `data[begins[t]:begins[t + 1]]`.

Cost: about 5 ns per token. Independent of tokenizers: `token_bytes` provides the bytes of each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

BYTES, STARTS = "token_bytes.npy", "token_starts.npy"


class TokenText:
    """Bytes of every token of a vocabulary, for gathering.

    Args:
        data: bytes of all tokens back to back, uint8.
        starts: start of each token's bytes in `data`, and the end, int64 `[V+1]`.

    >>> data, begins = TokenText.of_tokens([b"the", b" cat", b""]).gather(np.array([0, 1, 2, 1]))
    >>> data.tobytes(), begins.tolist()
    (b'the cat cat', [0, 3, 7, 7, 11])
    """

    def __init__(self, data: np.ndarray, starts: np.ndarray) -> None:
        import pyarrow as pa

        self.data, self.starts = data, starts
        buffers = [None, pa.py_buffer(starts), pa.py_buffer(data)]
        self._array = pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers)

    @classmethod
    def of_tokens(cls, tokens: Sequence[bytes]) -> TokenText:
        """Build from the bytes of tokens by id, the result of `token_bytes`."""
        starts = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum([len(one) for one in tokens], out=starts[1:])
        return cls(np.frombuffer(b"".join(tokens), np.uint8), starts)

    @classmethod
    def load(cls, folder: Path) -> TokenText:
        """Read the files written by `save`."""
        return cls(np.load(folder / BYTES), np.load(folder / STARTS))

    def save(self, folder: Path) -> None:
        """Write two files that other processes can load."""
        np.save(folder / BYTES, self.data)
        np.save(folder / STARTS, self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def gather(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of tokens back to back, uint8 `[N]`, and the start of each token, int64 `[T+1]`.

        Args:
            tokens: integers `[T]` below the size of the vocabulary, which is not checked.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        _, offsets, text = pc.take(self._array, pa.array(tokens), boundscheck=False).buffers()
        begins = np.frombuffer(offsets, np.int64, len(tokens) + 1)
        return np.frombuffer(text or b"", np.uint8, int(begins[-1])), begins
