"""What the viewer shows: the stores and tokenizers that were named when it was started, and no others.

    Site ── stores: Opened ── store, where its documents are from, rows by their settings, lengths
         └─ tokenizers: Choice ── a name, a vocabulary, what encodes: as a build, or with control tokens

A page is a function of a `View`: one of the stores, and what the address asks for. Whatever takes a pass over
a whole store (lengths) is begun in a thread when the viewer starts, and pages show it once it is there.
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

from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import RecipeError
from packline.packing.rows import Rows
from packline.store.manifest import TOKENIZER
from packline.store.origins import Origin, origins
from packline.store.reader import Store
from packline.viewing.lengths import Lengths, measure_lengths
from packline.viewing.page import Form, Note, Page
from packline.viewing.vocabulary import Vocabulary
from packline.viewing.web.origins import Origins
from packline.viewing.web.text_search import TextSearch

if TYPE_CHECKING:
    import tokenizers

ROWS_HELD = 8
PACKED_MOST = 1 << 20
"""Documents up to which best_fit is laid out in memory when a page asks for it; it takes a twentieth of a
second. Of more documents a plan on the disk is used where there is one, and never written."""


@dataclass(frozen=True)
class Choice:
    """A tokenizer that texts can be compared with."""

    name: str
    vocabulary: Vocabulary
    tokenizer: Tokenizer

    @classmethod
    def of_store(cls, store: Store) -> Choice:
        """The tokenizer that is kept with a store."""
        tokenizer = load_tokenizer(str(store.path / TOKENIZER))
        return cls(store.manifest.tokenizer.name, Vocabulary.of_store(store), tokenizer)

    @classmethod
    def load(cls, name: str) -> Choice:
        """One that is named on the command line.

        Raises:
            TokenizerError: there is none, or nothing that is one.
        """
        tokenizer = load_tokenizer(name)
        return cls(name, Vocabulary.of_tokenizer(tokenizer), tokenizer)

    @cached_property
    def as_text(self) -> tokenizers.Tokenizer:
        """What encodes as a build does: names of control tokens are text."""
        plain = msgspec.structs.replace(self.tokenizer, json=without_special_tokens(self.tokenizer))
        return plain.reference()

    @cached_property
    def _with_control(self) -> tokenizers.Tokenizer:
        return self.tokenizer.reference()

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Ids of a text, without boundary tokens.

        Args:
            text: what was typed.
            control: whether names of control tokens are control tokens; False: they are text, as in a build.
        """
        encoder = self._with_control if control else self.as_text
        return encoder.encode(text, add_special_tokens=False).ids


class Unclear(RecipeError):
    """What was asked for makes no sense, with a page that says so below the form that asked."""

    def __init__(self, page: Page, error: RecipeError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.page = page

    @classmethod
    def of(cls, title: str, form: Form, error: RecipeError) -> Unclear:
        """Form, error and what to do about it."""
        notes = (Note(f"{error.message}.", "warning"), *((Note(error.hint),) if error.hint else ()))
        return cls(Page(title, (form, *notes)), error)


def distinct(paths: Sequence[Path]) -> list[str]:
    """Names of folders: the last part, and as many before it as tell them apart.

    >>> distinct([Path("a/store"), Path("b/store"), Path("c")])
    ['a/store', 'b/store', 'c']
    """
    parts = [path.resolve().parts for path in paths]

    def name(own: tuple[str, ...], length: int) -> str:
        same = sum(other[-length:] == own[-length:] for other in parts)
        return name(own, length + 1) if same > 1 and length < len(own) else "/".join(own[-length:])

    return [name(own, 1) for own in parts]


class Opened:
    """A store, and what pages need of it again and again.

    Args:
        store: a finished store.
        choice: its tokenizer.
    """

    def __init__(self, store: Store, choice: Choice) -> None:
        self.store = store
        self.name = store.path.name or str(store.path)
        self.origins = Origins(store)
        self.lengths: Lengths | None = None
        """None until they are counted."""
        self.choice = choice
        self._rows: OrderedDict[tuple[Any, ...], Rows] = OrderedDict()
        self._lock = threading.Lock()
        self.measuring = threading.Thread(target=self._measure, name=f"lengths of {self.name}", daemon=True)
        self.measuring.start()

    def _measure(self) -> None:
        self.lengths = measure_lengths(self.store)

    @cached_property
    def whence(self) -> list[Origin]:
        """Source and label of each shard."""
        return origins(self.store)

    @cached_property
    def texts(self) -> TextSearch:
        """What finds texts."""
        return TextSearch(self.choice.tokenizer, Vocabulary.of_store(self.store), self.choice.as_text)

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return tuple(dict.fromkeys(shard.entry.split for shard in self.store.shards))

    def rows(self, seq_len: int, packing: str, split: str) -> Rows:
        """Rows with these settings, kept for the next page.

        Raises:
            RecipeError: settings that make no sense, or a plan that would have to be written.
            StoreError: no rows.
        """
        key = (seq_len, packing, split)
        with self._lock:
            if key not in self._rows:
                if packing == "best_fit":
                    self._check_plan(seq_len, split)
                self._rows[key] = Rows(self.store, seq_len, packing=packing, split=split)
                if len(self._rows) > ROWS_HELD:
                    self._rows.popitem(last=False)
            self._rows.move_to_end(key)
            return self._rows[key]

    def _check_plan(self, seq_len: int, split: str) -> None:
        """The viewer writes nothing, and no page waits for a plan of ten million documents."""
        from packline.packing.best_fit import plan_fingerprint
        from packline.packing.plan import plan_folder
        from packline.packing.rows import check_seq_len
        from packline.packing.selection import Selection

        selection = Selection(self.store, split=split)
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
    """All that was named on the command line.

    Args:
        stores: folders of stores; the first is the one shown when nothing else is asked for.
        tokenizers: further tokenizers to compare with.

    Raises:
        StoreError: a folder is not a store, or a damaged one.
        TokenizerError: a tokenizer cannot be read.
    """

    def __init__(self, stores: Sequence[str | Path], tokenizers: Sequence[str] = ()) -> None:
        found: dict[str, Choice] = {}
        self.stores: list[Opened] = []
        for store in map(Store, stores):
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
            one.encode("")  # the first page need not wait for it

    def wait(self, seconds: float) -> None:
        """Wait until lengths are counted, but not for longer than this."""
        for opened in self.stores:
            opened.measuring.join(seconds)


@dataclass(frozen=True)
class View:
    """One store as an address asks for it."""

    site: Site
    number: int
    params: Mapping[str, str]

    @property
    def opened(self) -> Opened:
        """The store, with what is kept of it."""
        return self.site.stores[self.number]

    @property
    def store(self) -> Store:
        """The store."""
        return self.opened.store

    @property
    def vocabulary(self) -> Vocabulary:
        """The store's."""
        return Vocabulary.of_store(self.store)

    def href(self, path: str, **params: str | int | None) -> str:
        """The address of a page of the same store; what is None or empty is left out."""
        chosen: dict[str, str | int] = {
            name: value for name, value in params.items() if value is not None and value != ""
        }
        if self.number and "store" not in chosen:
            chosen["store"] = self.number
        return f"{path}?{urlencode(chosen)}" if chosen else path

    def document(self, number: int) -> str:
        """The address of a document."""
        return self.href(f"/document/{number}")
