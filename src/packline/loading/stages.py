"""Stage: a range of training with its own rows, mixture, row length and number of tokens.

    Stage(rows, tokens=10_000_000_000, seq_len=4096)     batches of B x 4096 tokens
    Stage(Mixture([...]), tokens=2_000_000_000)          then these
    Stage(long_rows)                                     then those, until they are used up

A stage gives whole batches, as many as fit into its tokens. Its position among other stages is determined in
`schedule`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packline.errors import RecipeError
from packline.loading.mixture import Mixture

if TYPE_CHECKING:
    from packline.packing.rows import RowSource


class Stage:
    """Rows or a mixture, and their number of tokens.

    Args:
        rows: one source, used once at most, or a mixture.
        tokens: number of tokens to train on, rounded down to whole batches. Padding counts, since it takes
            its place in a batch. None: until the first source is used up.
        seq_len: length to which longer rows are cut; it must divide theirs.
        batch_size: rows per global batch, if different from the loader's.

    Raises:
        RecipeError: a setting out of bounds, or rows that cannot be cut to `seq_len`.

    With a store of one document of 25 tokens:

    >>> import packline
    >>> stages = [packline.Stage(store.rows(seq_len=5), tokens=10), packline.Stage(store.rows(seq_len=10))]
    >>> [batch["tokens"].shape for batch in packline.Loader(stages, batch_size=1)]
    [(1, 5), (1, 5), (1, 10), (1, 10), (1, 10)]
    """

    def __init__(
        self,
        rows: RowSource | Mixture,
        *,
        tokens: int | None = None,
        seq_len: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        mixture = rows if isinstance(rows, Mixture) else Mixture([(rows, 1)])
        if tokens is not None and tokens < 1:
            raise RecipeError(f"expected tokens of a stage above 0, found {tokens!r}")
        if batch_size is not None and batch_size < 1:
            raise RecipeError(f"expected a batch_size above 0, found {batch_size!r}")
        self.mixture = mixture if seq_len is None else mixture.split_to(seq_len)
        self.tokens, self.batch_size = tokens, batch_size

    @property
    def seq_len(self) -> int:
        """Tokens per row."""
        return self.mixture.seq_len

    def __repr__(self) -> str:
        length = "until used up" if self.tokens is None else f"{self.tokens:,} tokens"
        batch = "" if self.batch_size is None else f", batches of {self.batch_size:,} rows"
        return f"<Stage: {length}{batch}, {self.mixture!r}>"
