"""Render plans: what a chat template makes of conversations of one shape, with holes for the words.

    user, assistant  ──template, once──>  <|im_start|> "user\\n{0}" <|im_end|> "\\n" <|im_start|> ... "{1}"
                                          if "</think>" not in {1} and {0} is not empty

A template mostly copies words, and looks at them a little: is there a `</think>`, is it empty? So it is run
once per shape (the roles) with words that note every question about them. The notes become conditions:
another conversation of this shape that meets them gets the same pieces with its own words, without running
the template. Stripping and replacing are done on the words of each conversation. A template that does
anything else with words (counts, cuts, formats them) has no plan, and neither have words that contain
control tokens.

Exact, because words can be reached in no other way: every operation of a template on a value goes through the
sandbox (`packline.sources.sandbox`), whose budget here knows the words; `Words` itself notes comparisons
and truth. What neither knows ends the planning.

Cost: two microseconds per message, against 50 of the template.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2.runtime import Macro
from jinja2.utils import Namespace

from packline.chat.conversations import Conversation
from packline.chat.pieces import Piece, Rendered, join_pieces, may_be_lost, trained_runs
from packline.sources.batch import RecordProblem
from packline.sources.sandbox import CONTAINERS, Budget

BEGIN, END = "\ufdd4", "\ufdd5"
"""Around the number of a value in the text of `Words`: noncharacters, which Unicode never assigns."""
BETWEEN = "\ufdd6"
"""Between the texts of a plan, likewise."""
HOLE = re.compile(f"{BEGIN}(\\d+){END}")
MOST_SHAPES, MOST_PLANS = 1024, 8
"""Shapes of conversations with plans, and plans of a shape with different conditions."""
MOST_LENGTH = 1 << 20
"""Characters of a conversation above which the template runs, with its budget."""

CHANGES: Mapping[str, Callable[..., str]] = {
    "trim": str.strip,
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    "replace": str.replace,
}
"""Filters and methods whose result is a function of the words and of constants."""
QUESTIONS: Mapping[str, Callable[..., bool]] = {"startswith": str.startswith, "endswith": str.endswith}
"""Methods whose answer becomes a condition."""
OF_ANY_TEXT = frozenset(
    ("string", "defined", "undefined", "none", "mapping", "iterable", "sequence", "number", "boolean")
)
"""Tests with the same answer for every text."""
PASSING = frozenset(("default", "d", "string"))
"""Filters that pass words on unread."""
OF_LISTS = frozenset(("list", "first", "last", "length", "count", "get", "items", "keys", "values"))
"""Filters and methods that read a list or an object, and not the words in it."""
BY_ATTRIBUTE = frozenset(("selectattr", "rejectattr"))
"""Filters that read one attribute of each object in a list."""


class NoPlan(Exception):
    """The template does something with words that a plan cannot repeat."""


class _Change(NamedTuple):
    """A value made from others: a text with holes, changed."""

    text: str
    name: str
    arguments: tuple[Any, ...]


class _Condition(NamedTuple):
    """An answer that the template was given about a text with holes."""

    text: str
    ask: Callable[..., bool]
    arguments: tuple[Any, ...]
    answer: bool


class Notes:
    """Values that a template made of the words of one conversation, and what it asked about them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.real = list(words)
        """Real text of each value: of the messages first."""
        self.changes: list[_Change] = []
        self.conditions: dict[_Condition, None] = {}
        self._numbers: dict[_Change, int] = {}

    def words(self, text: str) -> PlannedWords:
        """Text with holes, as a value of the template."""
        return PlannedWords._of(text, self)

    def fill(self, text: str) -> str:
        """Text with holes, filled with the real words."""
        return fill_holes(text, self.real)

    def change(self, text: str, name: str, arguments: tuple[Any, ...]) -> PlannedWords:
        """A changed text, numbered."""
        change = _Change(text, name, arguments)
        if change not in self._numbers:
            self._numbers[change] = len(self.real)
            self.changes.append(change)
            self.real.append(CHANGES[name](self.fill(text), *arguments))
        return self.words(f"{BEGIN}{self._numbers[change]}{END}")

    def ask(self, text: str, ask: Callable[..., bool], arguments: tuple[Any, ...]) -> bool:
        """Answer a question about the real text, and note it."""
        answer = bool(ask(self.fill(text), *arguments))
        self.conditions[_Condition(text, ask, arguments, answer)] = None
        return answer


def fill_holes(text: str, words: Sequence[str]) -> str:
    """Fill the holes of a text.

    >>> fill_holes(f"a {BEGIN}1{END}!", ["x", "y"])
    'a y!'
    """
    return HOLE.sub(lambda match: words[int(match[1])], text)


def _equals(text: str, other: str) -> bool:
    return text == other


def _contains(text: str, part: str) -> bool:
    return part in text


class PlannedWords(str):
    """Words of a message while a template is planned: printed, a text with holes; asked, the real words."""

    _notes: Notes

    @classmethod
    def _of(cls, text: str, notes: Notes) -> PlannedWords:
        found = cls(text)
        found._notes = notes
        return found

    def _ask(self, ask: Callable[..., bool], *arguments: Any) -> bool:
        if any(isinstance(one, PlannedWords) for one in arguments):
            raise NoPlan("words compared with words")
        return self._notes.ask(str(self), ask, arguments)

    def __bool__(self) -> bool:
        return self._ask(bool)

    def __contains__(self, part: object) -> bool:
        return self._ask(_contains, part)

    def __eq__(self, other: object) -> bool:
        return self._ask(_equals, other)

    def __ne__(self, other: object) -> bool:
        return not self._ask(_equals, other)

    def _refuse(self, *_: object) -> Any:
        raise NoPlan("words ordered, counted or taken apart")

    __hash__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __iter__ = __getitem__ = __mod__ = __rmod__ = __mul__ = __rmul__ = _refuse

    def __str__(self) -> str:
        return str.__str__(self)

    def change(self, name: str, arguments: tuple[Any, ...]) -> PlannedWords:
        """These words, changed."""
        return self._notes.change(str(self), name, arguments)

    def question(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Answer a method that asks about these words."""
        return self._ask(QUESTIONS[name], *arguments)


class PlanningBudget(Budget):
    """Budget of a template that is planned: knows the words, and refuses what a plan cannot repeat."""

    __slots__ = ("notes",)

    def __init__(self, most: int, notes: Notes) -> None:
        super().__init__(most)
        self.notes = notes

    def made(self, value: Any) -> Any:
        """Count a new value; a text with words in it becomes `Words`."""
        return self.combined(super().made(value))

    def combined(self, value: Any) -> Any:
        """A text that was put together, as `Words` if there are words in it."""
        if isinstance(value, str) and not isinstance(value, PlannedWords) and BEGIN in value:
            return self.notes.words(value)
        return value

    def needle(self, value: Any) -> None:
        """Refuse words that are looked for in a text."""
        if has_words(value):
            raise NoPlan("words looked for")
        super().needle(value)

    def list_of(self, values: Any) -> list[Any]:
        """The values of a list; words have none."""
        if isinstance(values, PlannedWords):
            raise NoPlan("words taken apart")
        return super().list_of(values)

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Count an operator; words can only be added to others."""
        if operator != "+" and (has_words(left) or has_words(right)):
            raise NoPlan(f"words with {operator}")
        super().operate(operator, left, right)

    def function(self, called: Any, arguments: Iterable[Any]) -> None:
        """Refuse words as arguments of what is not part of the template."""
        arguments = tuple(arguments)
        if (
            not isinstance(called, Macro)
            and called is not dict
            and called is not Namespace
            and any(map(has_words, arguments))
        ):
            raise NoPlan("words given to a function")
        super().function(called, arguments)

    def apply(
        self,
        name: str,
        function: Callable[..., Any],
        value: Any,
        given: Any = (),
        named: Any = {},  # noqa: B006  never changed
    ) -> Any:
        """Call a filter, a test or a method, if a plan can repeat it."""
        arguments = (*given, *named.values())
        if isinstance(value, PlannedWords):
            constant = not any(map(has_words, arguments))
            if constant and not named and name in CHANGES and all(isinstance(one, str) for one in given):
                return value.change(name, tuple(given))
            if constant and not named and name in QUESTIONS and all(isinstance(one, str) for one in given):
                return value.question(name, tuple(given))
            if not constant or not (name in OF_ANY_TEXT or name in PASSING):
                raise NoPlan(f"words with {name}")
        elif has_words(value) or any(map(has_words, arguments)):
            by_attribute = name in BY_ATTRIBUTE and _reads_no_words(value, arguments)
            choice = name in ("default", "d") and not has_words(value)
            of_list = name in OF_LISTS or name in OF_ANY_TEXT or name == "join"
            if not (by_attribute or choice or (of_list and not any(map(has_words, arguments)))):
                raise NoPlan(f"words with {name}")
        return self.combined(super().apply(name, function, value, given, named))


def has_words(value: Any) -> bool:
    """True for words, and for a list or an object with words in it, at any depth."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, PlannedWords):
            return True
        if isinstance(one, CONTAINERS):
            rest += [*one, *one.values()] if isinstance(one, dict) else one
    return False


def _reads_no_words(objects: Any, arguments: Sequence[Any]) -> bool:
    """True if the attribute of the objects that a filter reads has no words in it."""
    if not arguments or not isinstance(arguments[0], str) or "." in arguments[0]:
        return False
    plain = isinstance(objects, list | tuple) and all(isinstance(one, dict) for one in objects)
    plain = plain and not any(map(has_words, arguments))
    return plain and not any(has_words(one.get(arguments[0])) for one in objects)


class _Text(NamedTuple):
    """A text with holes, taken apart once."""

    format: str
    """The text with `%s` for each hole."""
    holes: tuple[int, ...]

    def fill(self, words: Sequence[str]) -> str:
        """The text with these words; see `fill_holes`."""
        return self.format % tuple([words[hole] for hole in self.holes])


class Plan:
    """All conversations of one shape that meet the conditions, rendered.

    Args:
        pieces: pieces of the conversation of the notes, with holes.
        roles: role of each message.
        tokens: see `Plans`.
    """

    def __init__(
        self, pieces: Sequence[Piece], roles: Sequence[str], notes: Notes, tokens: Iterable[str]
    ) -> None:
        texts = [piece.text for piece in pieces if not piece.control]
        if any(_may_become(tuple(HOLE.split(text)[::2]), tuple(tokens)) for text in texts):
            raise NoPlan("words next to a part of a control token")
        self._changes = [(_take_apart(text), CHANGES[name], given) for text, name, given in notes.changes]
        self._conditions = [(_take_apart(one.text), one) for one in notes.conditions]
        self._texts, self._whole = _take_apart(BETWEEN.join(texts)), _take_apart(Rendered.of(pieces).whole)
        self._layout = Rendered.of(pieces).layout
        self._proven = _prove(pieces, roles, notes)

    def render(self, words: Sequence[str]) -> Rendered | None:
        """Render these words, one text per message; None if they do not meet the conditions."""
        values = list(words)
        for text, change, arguments in self._changes:
            values.append(change(text.fill(values), *arguments))
        for text, one in self._conditions:
            if bool(one.ask(text.fill(values), *one.arguments)) is not one.answer:
                return None
        texts = self._texts.fill(values).split(BETWEEN)
        found = Rendered(self._layout, texts, self._whole.fill(values), self._proven)
        return found if all(texts) else Rendered.of(join_pieces(found.pieces()))


def _prove(pieces: Sequence[Piece], roles: Sequence[str], notes: Notes) -> bool:
    """True if each trained range has the words of one turn of the assistant, and no words are lost, for any.

    The words are there as they are, or without white space at their ends (see `check_pieces`).
    """
    stripped = {
        change.text: f"{BEGIN}{number}{END}"
        for number, change in enumerate(notes.changes, len(roles))
        if change.name.endswith("strip") or change.name == "trim"
        if not change.arguments
    }
    holes = [f"{BEGIN}{number}{END}" for number in range(len(roles))]
    turns = [hole for hole, role in zip(holes, roles, strict=True) if role == "assistant"]
    others = [hole for number, hole in enumerate(holes) if may_be_lost(number, roles[number])]
    runs, whole = trained_runs(pieces), "".join(piece.text for piece in pieces)
    found = [*zip(turns, runs, strict=False), *((hole, whole) for hole in others)]
    return len(runs) == len(turns) and all(
        hole in text or stripped.get(hole, hole) in text for hole, text in found
    )


def _take_apart(text: str) -> _Text:
    split = HOLE.split(text)
    constants = [constant.replace("%", "%%") for constant in split[::2]]
    return _Text("%s".join(constants), tuple(map(int, split[1::2])))


def _may_become(constants: tuple[str, ...], tokens: tuple[str, ...]) -> bool:
    """True if words between constants could complete a control token."""
    inner = any(one in token for one in constants[1:-1] for token in tokens)
    begun = any(_ends_within(one, token) for one in constants[:-1] for token in tokens)
    ended = any(_ends_within(one[::-1], token[::-1]) for one in constants[1:] for token in tokens)
    return inner or begun or ended


def _ends_within(text: str, token: str) -> bool:
    """True if a text ends with a proper beginning of a token."""
    return any(text.endswith(token[:size]) for size in range(1, len(token)))


class Plans:
    """Plans of one template, each made when its shape first occurs.

    Args:
        plan: renders messages with a budget to pieces with holes.
        most: maximum characters of produced text, for the budget.
        tokens: strings that a template never sees in words: control tokens and marks.
    """

    def __init__(
        self,
        plan: Callable[[list[dict[str, Any]], PlanningBudget], list[Piece]],
        most: int,
        tokens: Iterable[str],
    ) -> None:
        self._plan, self._most, self._tokens = plan, most, (BETWEEN, *filter(None, tokens))
        self._firsts = tuple({token[0] for token in self._tokens})
        self._token = re.compile("|".join(map(re.escape, self._tokens)))
        self._known: dict[tuple[str, ...], list[Plan]] = {}
        self._refused: Counter[tuple[str, ...]] = Counter()
        self._without: set[tuple[str, ...]] = set()
        """Shapes for which the template cannot be planned."""

    def render(self, conversation: Conversation) -> Rendered | None:
        """A conversation, rendered; None if the template has to be run for it."""
        if conversation.tools:
            return None
        words, roles = [], []
        for message in conversation.messages:
            if message.parts or message.calls or message.reasoning or message.name or message.call_id:
                return None
            words.append(message.content)
            roles.append(message.role)
        joined = "\n".join(words)
        if any(map(joined.__contains__, self._firsts)) and self._token.search(joined):
            return None
        shape = tuple(roles)
        plans = self._known.get(shape, ())
        for plan in plans:
            if (found := plan.render(words)) is not None:
                return found
        if shape in self._without or len(plans) >= MOST_PLANS or len(self._known) >= MOST_SHAPES:
            return None
        if sum(map(len, words)) > MOST_LENGTH:
            return None
        return self._make(shape, words)

    def _make(self, shape: tuple[str, ...], words: list[str]) -> Rendered | None:
        notes = Notes(words)
        messages = [
            {"role": role, "content": notes.words(f"{BEGIN}{number}{END}")}
            for number, role in enumerate(shape)
        ]
        try:
            pieces = self._plan(messages, PlanningBudget(self._most, notes))
            plan = Plan(pieces, shape, notes, self._tokens)
        except NoPlan:
            self._without.add(shape)
            return None
        except RecordProblem:  # of this conversation: the template shows which
            self._refused[shape] += 1
            if self._refused[shape] > MOST_PLANS and shape not in self._known:
                self._without.add(shape)
            return None
        self._known.setdefault(shape, []).append(plan)
        return plan.render(words)
