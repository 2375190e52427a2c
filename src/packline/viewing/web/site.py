"""The content of the viewer: the stores and tokenizers named when it was started, and no others.

    Site ── stores: Opened ── store, origins of its documents, rows by their settings, lengths
         └─ tokenizers: Choice ── a name, a vocabulary, encoding: as a build, or with control tokens

A page is a function of a `View`: one of the stores and the parameters of the address. Work that takes a pass
over a whole store (lengths) starts in a thread when the viewer starts, and pages show the result once it is
complete.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import RecipeError
from packline.packing.packer import RowOptions
from packline.packing.rows import Rows
from packline.store.manifest import TOKENIZER
from packline.store.reader import ShardLabel, StoreReader, shard_labels
from packline.viewing.lengths import Lengths, measure_lengths
from packline.viewing.page import Form, Note, Page
from packline.viewing.vocabulary import Vocabulary
from packline.viewing.web.origins import Origins
from packline.viewing.web.text_search import TextSearch

if TYPE_CHECKING:
    import tokenizers

ROWS_HELD = 8
PACKED_MOST = 1 << 20
"""Maximum documents for which a page computes best_fit in memory, in a twentieth of a second. For more
documents an existing plan on disk is used; the viewer never writes one."""


@dataclass(frozen=True)
class Choice:
    """A tokenizer that texts can be compared with."""

    name: str
    vocabulary: Vocabulary
    tokenizer: Tokenizer

    @classmethod
    def of_store(cls, store: StoreReader) -> Choice:
        """Load the tokenizer kept with a store."""
        tokenizer = load_tokenizer(str(store.path / TOKENIZER))
        return cls(store.manifest.tokenizer.name, Vocabulary.of_store(store), tokenizer)

    @classmethod
    def load(cls, name: str) -> Choice:
        """Load a tokenizer named on the command line.

        Raises:
            TokenizerError: the tokenizer does not exist or cannot be read.
        """
        tokenizer = load_tokenizer(name)
        return cls(name, Vocabulary.of_tokenizer(tokenizer), tokenizer)

    @cached_property
    def as_text(self) -> tokenizers.Tokenizer:
        """Tokenizer that encodes as a build does: names of control tokens are text."""
        plain = msgspec.structs.replace(self.tokenizer, json=without_special_tokens(self.tokenizer))
        return plain.reference()

    @cached_property
    def _with_control(self) -> tokenizers.Tokenizer:
        return self.tokenizer.reference()

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Encode a text as ids, without boundary tokens.

        Args:
            text: text as typed.
            control: True to encode names of control tokens as those tokens; False: as text, as in a build.
        """
        encoder = self._with_control if control else self.as_text
        return encoder.encode(text, add_special_tokens=False).ids


class Unclear(RecipeError):
    """Invalid input of a form, with a page that shows the error below the form."""

    def __init__(self, page: Page, error: RecipeError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.page = page

    @classmethod
    def of(cls, title: str, form: Form, error: RecipeError) -> Unclear:
        """Make the error with a page of the form, the error and its remedy."""
        notes = (Note(f"{error.message}.", "warning"), *((Note(error.hint),) if error.hint else ()))
        return cls(Page(title, (form, *notes)), error)


def distinct(paths: Sequence[Path]) -> list[str]:
    """Shortest distinct names of folders: the last part, and as many parts before it as necessary.

    >>> distinct([Path("a/store"), Path("b/store"), Path("c")])
    ['a/store', 'b/store', 'c']
    """
    parts = [path.resolve().parts for path in paths]

    def name(own: tuple[str, ...], length: int) -> str:
        same = sum(other[-length:] == own[-length:] for other in parts)
        return name(own, length + 1) if same > 1 and length < len(own) else "/".join(own[-length:])

    return [name(own, 1) for own in parts]


class Opened:
    """A store, with data that pages use repeatedly.

    Args:
        store: a complete store.
        choice: its tokenizer.
    """

    def __init__(self, store: StoreReader, choice: Choice) -> None:
        self.store = store
        self.name = store.path.name or str(store.path)
        self.origins = Origins(store)
        self.lengths: Lengths | None = None
        """Lengths of documents; None until they are counted."""
        self.choice = choice
        self._rows: OrderedDict[tuple[Any, ...], Rows] = OrderedDict()
        self._lock = threading.Lock()
        self.measuring = threading.Thread(target=self._measure, name=f"lengths of {self.name}", daemon=True)
        self.measuring.start()

    def _measure(self) -> None:
        self.lengths = measure_lengths(self.store)

    @cached_property
    def whence(self) -> list[ShardLabel]:
        """Source and label of each shard."""
        return shard_labels(self.store)

    @cached_property
    def texts(self) -> TextSearch:
        """Text search for this store."""
        return TextSearch(self.choice.tokenizer, Vocabulary.of_store(self.store), self.choice.as_text)

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Splits of the store."""
        return tuple(dict.fromkeys(shard.entry.split for shard in self.store.shards))

    def rows(self, seq_len: int, packing: str, split: str) -> Rows:
        """Rows with these settings, cached for the next page.

        Raises:
            RecipeError: the settings are invalid, or would require writing a plan.
            StoreError: there are no rows.
        """
        key = (seq_len, packing, split)
        with self._lock:
            if key not in self._rows:
                if packing == "best_fit":
                    self._check_plan(seq_len, split)
                self._rows[key] = Rows(self.store, seq_len, RowOptions(packing=packing, split=split))
                if len(self._rows) > ROWS_HELD:
                    self._rows.popitem(last=False)
            self._rows.move_to_end(key)
            return self._rows[key]

    def _check_plan(self, seq_len: int, split: str) -> None:
        """Reject a missing plan: the viewer writes nothing, and no page waits for ten million documents."""
        from packline.packing.best_fit import plan_fingerprint
        from packline.packing.cache import plan_folder
        from packline.packing.documents import Selection
        from packline.packing.packer import DocumentFilter
        from packline.packing.rows import check_seq_len

        selection = Selection(self.store, DocumentFilter(split=split))
        fingerprint = plan_fingerprint(selection, check_seq_len(seq_len, self.store))
        if len(selection) < PACKED_MOST or plan_folder(self.store, fingerprint).exists():
            return
        raise RecipeError(
            f"no plan of best_fit with rows of {seq_len:,} tokens yet, and {len(selection):,} documents are "
            "too many to pack them for a page",
            hint=f"packline pack {self.store.path} --seq-len {seq_len} --packing best_fit --split {split} "
            "--write",
        )


class Site:
    """Stores and tokenizers named on the command line.

    Args:
        stores: folders of stores; the first is shown by default.
        tokenizers: further tokenizers to compare with.

    Raises:
        StoreError: a folder is not a store, or the store is damaged.
        TokenizerError: a tokenizer cannot be read.
    """

    def __init__(self, stores: Sequence[str | Path], tokenizers: Sequence[str] = ()) -> None:
        found: dict[str, Choice] = {}
        self.stores: list[Opened] = []
        for store in map(StoreReader, stores):
            fingerprint = store.manifest.tokenizer.fingerprint
            if fingerprint not in found:
                found[fingerprint] = Choice.of_store(store)
            self.stores.append(Opened(store, found[fingerprint]))
        for opened, name in zip(self.stores, distinct([one.store.path for one in self.stores]), strict=True):
            opened.name = name
        for name in tokenizers:
            found[f"named {name}"] = Choice.load(name)
        self.tokenizers = list(found.values())
        for one in self.tokenizers:
            one.encode("")  # so that the first page need not wait

    def wait(self, seconds: float) -> None:
        """Wait until lengths are counted, for at most this many seconds."""
        for opened in self.stores:
            opened.measuring.join(seconds)


@dataclass(frozen=True)
class View:
    """One store, with the parameters of an address."""

    site: Site
    number: int
    params: Mapping[str, str]

    @property
    def opened(self) -> Opened:
        """The store with its cached data."""
        return self.site.stores[self.number]

    @property
    def store(self) -> StoreReader:
        """The store."""
        return self.opened.store

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the store."""
        return Vocabulary.of_store(self.store)

    def href(self, path: str, **params: str | int | None) -> str:
        """Address of a page of the same store; parameters that are None or empty are omitted."""
        chosen: dict[str, str | int] = {
            name: value for name, value in params.items() if value is not None and value != ""
        }
        if self.number and "store" not in chosen:
            chosen["store"] = self.number
        return f"{path}?{urlencode(chosen)}" if chosen else path

    def document(self, number: int) -> str:
        """Address of a document."""
        return self.href(f"/document/{number}")
