"""The content of the viewer: the stores, runs and tokenizers named when it was started, and no others.

A page is a function of a `View`: one of the stores and the parameters of the address, which are checked. Work
that takes a pass over a whole store starts in a thread when the viewer starts, and pages show the result once
it is complete.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import msgspec

from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import CorruptStore, PacklineError, RecipeError, StoreError
from packline.loading.loader import Loader
from packline.loading.trace import stores_of, trace_document
from packline.packing.selection import Selection
from packline.store.files import store_files
from packline.store.manifest import load_kept_tokenizer
from packline.store.reader import StoreReader
from packline.viewing.columns import ColumnBars, ColumnCounts, count_columns, measure_columns
from packline.viewing.info import DocumentLengths, Group, group_shards, measure_lengths
from packline.viewing.page import Form, Link, Note, Page, Value
from packline.viewing.text import short_name
from packline.viewing.tokens import Vocabulary
from packline.viewing.web.choosing import bars_of
from packline.viewing.web.search import TextSearch

if TYPE_CHECKING:
    import tokenizers


USES = 3


class ServedRun(NamedTuple):
    """A run file with the loader of one rank; pages compute the others."""

    name: str
    loader: Loader


def address(path: str, **params: str | int | None) -> str:
    """Address of a page; parameters that are None or empty are omitted."""
    chosen = {name: value for name, value in params.items() if value not in (None, "")}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def uses_of(runs: Sequence[ServedRun], place: Path | str, document: int) -> tuple[tuple[str, Value], ...]:
    """Facts about the steps of each run that use a document of the store at a place."""
    facts: list[tuple[str, Value]] = []
    for order, run in enumerate(runs):
        stores = [store for store in stores_of(run.loader) if store.place == place]
        if not stores or run.loader.building:
            continue
        uses = trace_document(run.loader, document, store=stores[0])
        if not uses:
            facts.append((f"in {run.name}", "never used"))
        for use in uses[:USES]:
            href = address("/run", run=order or None, step=use.step, row=use.index)
            facts.append((f"in {run.name}", Link(f"step {use.step:,}, slot {use.index:,}", href)))
        if len(uses) > USES:
            facts.append((f"in {run.name}", f"and {len(uses) - USES:,} more times"))
    return tuple(facts)


NUMBER = re.compile(r"-?[0-9]{1,18}")


def number(
    params: Mapping[str, str],
    name: str,
    default: int,
    *,
    least: int = 0,
    most: int | None = None,
    what: str = "",
) -> int:
    """Parse a whole number; spaces and thousands separators are ignored."""
    given = re.sub(r"[\s,_]", "", params.get(name, ""))
    if not given:
        return default
    title = what or name.replace("_", " ")
    expected = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
    if not NUMBER.fullmatch(given):
        raise RecipeError(f"{title} is {params[name][:40]!r}: expected a whole number, {expected}")
    found = int(given)
    if found < least or (most is not None and found > most):
        raise RecipeError(f"{title} is {found:,}: expected {expected}")
    return found


def choice(params: Mapping[str, str], name: str, known: Sequence[str], default: str) -> str:
    """Parse one of several words."""
    given = params.get(name, "") or default
    if given not in known:
        raise RecipeError(f"{name} is {given[:40]!r}: expected one of {', '.join(known)}")
    return given


@dataclass(frozen=True)
class SiteTokenizer:
    """A tokenizer that texts can be compared with."""

    name: str
    vocabulary: Vocabulary
    tokenizer: Tokenizer

    @classmethod
    def of_store(cls, store: StoreReader) -> SiteTokenizer:
        tokenizer = load_kept_tokenizer(store.files, store.manifest.tokenizer_files)
        return cls(store.manifest.tokenizer.name, Vocabulary.of_store(store), tokenizer)

    @classmethod
    def load(cls, name: str) -> SiteTokenizer:
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
        """Encode a text as ids, without boundary tokens."""
        encoder = self._with_control if control else self.as_text
        return encoder.encode(text, add_special_tokens=False).ids


class InvalidForm(RecipeError):
    """Invalid input of a form, with a page that shows the error below the form."""

    def __init__(self, page: Page, error: PacklineError, status: int) -> None:
        super().__init__(error.message, hint=error.hint)
        self.page, self.status = page, status

    @classmethod
    def of(cls, title: str, form: Form, error: PacklineError) -> InvalidForm:
        """Make the error with a page of the form, the error and its remedy; an empty result is no error."""
        if isinstance(error, CorruptStore):
            raise error
        if isinstance(error, StoreError):
            return cls(Page(title, (form, Note(f"{error.message}."))), error, 200)
        notes = (Note(f"{error.message}.", "bad"), *((Note(f"Hint: {error.hint}"),) if error.hint else ()))
        return cls(Page(title, (form, *notes)), error, 400)


class Moved(Exception):
    """Another page of the viewer shows what an address requests."""

    def __init__(self, href: str) -> None:
        super().__init__(href)
        self.href = href


def distinct(paths: Sequence[str | Path]) -> list[str]:
    """Shortest distinct names of folders: the last part, and as many parts before it as necessary.

    >>> distinct(["a/store", Path("b/store"), Path("c")])
    ['a/store', 'b/store', 'c']
    """
    parts = [tuple(store_files(path).address.split("/")) for path in paths]

    def name(own: tuple[str, ...], length: int) -> str:
        same = sum(other[-length:] == own[-length:] for other in parts)
        return name(own, length + 1) if same > 1 and length < len(own) else "/".join(own[-length:])

    return [name(own, 1) for own in parts]


def short_names(names: Sequence[str]) -> list[str]:
    """Short names of tokenizers, numbered where they are equal.

    >>> short_names(["a/qwen3/tokenizer.json", "gpt2", "Qwen/Qwen3-8B", "b/gpt2"])
    ['qwen3', 'gpt2 (1)', 'Qwen3-8B', 'gpt2 (2)']
    """
    short = list(map(short_name, names))
    numbers = [short[: place + 1].count(name) for place, name in enumerate(short)]
    several = [short.count(name) > 1 for name in short]
    return [f"{one} ({at})" if more else one for one, at, more in zip(short, numbers, several, strict=True)]


class ServedStore:
    """A store, with data that pages use repeatedly."""

    def __init__(self, store: StoreReader, choice: SiteTokenizer) -> None:
        self.store = store
        self.name = Path(store.place).name or str(store.place)
        self.lengths: DocumentLengths | None = None
        """Lengths of documents; None until they are counted."""
        self.columns: list[ColumnCounts] = []
        """Carried columns; counted before the lengths."""
        self.bars: dict[str, ColumnBars] = {}
        """Distributions of columns; empty until they are measured."""
        self.choice = choice
        self.measuring = threading.Thread(target=self._measure, name=f"lengths of {self.name}", daemon=True)
        self.measuring.start()

    def _measure(self) -> None:
        self.columns = count_columns(self.store)
        self.lengths = measure_lengths(self.store)
        with contextlib.suppress(CorruptStore):  # the pages of its documents report the damage
            self.bars = measure_columns(self.store)

    @cached_property
    def groups(self) -> list[Group]:
        return group_shards(self.store)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.source for group in self.groups))

    @cached_property
    def texts(self) -> TextSearch:
        return TextSearch(self.choice.tokenizer, Vocabulary.of_store(self.store), self.choice.as_text)

    @cached_property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.store.manifest.shards.by_split("documents"))

    def bars_of(self, selection: Selection) -> dict[str, ColumnBars]:
        """Distributions of the columns of a selection; those of the whole store once they are measured."""
        return self.bars if len(selection) == len(self.store.documents) else bars_of(selection)


class Site:
    """Stores and tokenizers named on the command line."""

    def __init__(
        self,
        stores: Sequence[str | Path],
        tokenizers: Sequence[str] = (),
        *,
        runs: Sequence[str | Path] = (),
    ) -> None:
        self.runs = [ServedRun(Path(path).name, Loader.from_file(path, prefetch=0)) for path in runs]
        """Runs, in the order of the command line."""
        places = [store_files(path) for path in stores]
        places += [store.files for run in self.runs for store in stores_of(run.loader)]
        places = list({files.address: files for files in places}.values())
        found: dict[str, SiteTokenizer] = {}
        self.stores: list[ServedStore] = []
        for store in map(StoreReader, places):
            fingerprint = store.manifest.tokenizer.fingerprint
            if fingerprint not in found:
                found[fingerprint] = SiteTokenizer.of_store(store)
            self.stores.append(ServedStore(store, found[fingerprint]))
        for opened, name in zip(self.stores, distinct([one.store.place for one in self.stores]), strict=True):
            opened.name = name
        for name in tokenizers:
            loaded = SiteTokenizer.load(name)
            found.setdefault(loaded.tokenizer.fingerprint, loaded)
        names = short_names([one.name for one in found.values()])
        self.tokenizers = [replace(one, name=name) for one, name in zip(found.values(), names, strict=True)]
        for one in self.tokenizers:
            one.encode("")  # so that the first page need not wait

    def place_of(self, folder: str | Path) -> int:
        wanted = store_files(folder).address
        return next(place for place, one in enumerate(self.stores) if one.store.files.address == wanted)

    def wait(self, seconds: float) -> None:
        for opened in self.stores:
            opened.measuring.join(seconds)


@dataclass(frozen=True)
class View:
    """One store, with the parameters of an address."""

    site: Site
    number: int
    params: Mapping[str, str]

    @property
    def opened(self) -> ServedStore:
        return self.site.stores[self.number]

    @property
    def store(self) -> StoreReader:
        return self.opened.store

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of_store(self.store)

    def href(self, path: str, **params: str | int | None) -> str:
        """Address of a page of the same store; parameters that are None or empty are omitted."""
        return address(path, **{**params, "store": params.get("store") or self.number or None})

    def document(self, number: int, first: int = 0) -> str:
        return self.href(f"/document/{number}", first=first or None)
