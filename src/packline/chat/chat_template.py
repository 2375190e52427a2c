"""Chat templates: rendering of conversations with the tokenizer's own template, with loss masks.

    {%- for message in messages %}
    <|im_start|>{{ message.role }}
    {% generation %}{{ message.content }}<|im_end|>{% endgeneration %}      marks: the assistant's own
    {%- endfor %}

Rendering is the same as in `apply_chat_template` of transformers: environment, filters and variables. If a
template has no marks, the assistant's ranges must be proven: the text up to an assistant's turn, with the
generation prompt, must be a prefix of the text with the turn, and that must be a prefix of the whole. The
difference is what a model would have to generate. A conversation that fails is refused. A template is refused
before any work if not even one question and its answer pass, or if plain conversations show that it trains on
the header of a turn or on the user's words. `packline.chat.named_templates` has marked templates for
models whose own templates fail.

A template is downloaded data: it runs in Jinja's immutable sandbox, without files, includes or the time of
day, and within the bounds of `packline.sources.sandbox`. Special-token strings inside messages are hidden
from the template while it runs, so that they remain text.

Cost: about 30 microseconds per message with marks; without, one rendering per turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols

from packline.chat.conversations import Conversation, Message, as_messages
from packline.chat.pieces import Piece, check_pieces, join_pieces, trained_runs
from packline.encoders.tokenizer import read_added_tokens
from packline.errors import RecipeError
from packline.sources.batch import RecordProblem, TemplateTimeout
from packline.sources.sandbox import Sandbox, print_value

HIDE, SHOW, OPEN, CLOSE = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
"""Noncharacters, which Unicode never assigns; if a text contains them, they are hidden too."""
MARKS = (OPEN, CLOSE)
NEVER = (False, False)
MOST_CHARACTERS = 64 << 20
"""Maximum length of a rendered conversation."""
MOST_PRODUCED = 8 * MOST_CHARACTERS
"""Maximum length of all text produced for a conversation, printed or not."""

PROBE = (
    Message("user", "What is one and one?"),
    Message("assistant", "Two, as far as I can see."),
    Message("user", "Are you sure of that?"),
    Message("assistant", "I counted it twice."),
)
PROBES = (
    Conversation(PROBE),
    Conversation(PROBE[:2]),
    Conversation((Message("system", "Keep to what is asked."), *PROBE[:2])),
)
"""Plain conversations; a template must pass at least one before any work."""


class ChatTemplate:
    """One template, ready to render.

    `special_tokens` says of each control token whether it strips white space before and after it; with
    `masked`, a template whose mask is neither marked nor provable is refused.

    >>> text = (
    ...     "{% for m in messages %}<|{{ m.role }}|>"
    ...     "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    ...     "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    ... )
    >>> template = ChatTemplate(text, dict.fromkeys(["<|user|>", "<|assistant|>", "<|end|>"], (False, False)))
    >>> pieces = template.render(Conversation((Message("user", "a <|end|>"), Message("assistant", "b"))))
    >>> [piece.text for piece in pieces if piece.control], [piece.text for piece in pieces if piece.trained]
    (['<|user|>', '<|end|>', '<|assistant|>', '<|end|>'], ['b', '<|end|>'])
    """

    def __init__(
        self,
        text: str,
        special_tokens: Mapping[str, tuple[bool, bool]],
        variables: Mapping[str, Any] | None = None,
        *,
        masked: bool = True,
    ) -> None:
        self._strips = dict(special_tokens)
        self._variables = dict(variables or {})
        self._environment = make_environment()
        self._template, self.marked = _compile(self._environment, text)
        tokens = sorted(filter(None, special_tokens), key=lambda token: (-len(token), token))
        self._hidden = [HIDE, SHOW, OPEN, CLOSE, *tokens]
        self._numbers = {string: number for number, string in enumerate(self._hidden)}
        self._hide = re.compile("|".join(map(re.escape, self._hidden)))
        self._firsts = sorted({string[0] for string in self._hidden})
        self._split = re.compile("(" + ("|".join(map(re.escape, tokens)) or "(?!)") + ")")
        self.unproven = self._probe() if masked else ""
        """Why the mask of a conversation of several turns cannot be proven; "" if it can."""

    def render(self, conversation: Conversation) -> list[Piece]:
        """Render a conversation to pieces."""
        if any(message.parts for message in conversation.messages):
            raise RecordProblem(
                "content_not_text", "code among the words: only nanochat's scheme has a place for it"
            )
        messages, tools = self._given(conversation)
        whole = self._run(messages, tools, prompt=False)
        if not self.marked:
            whole = self._mark(whole, messages, tools)
        return self._cut(whole)

    def write(self, conversation: Conversation) -> str:
        """Render the text of a conversation, whether or not a mask can be determined."""
        pieces = self._cut(self._run(*self._given(conversation), prompt=False))
        return "".join(piece.text for piece in pieces)

    def prompt(self, conversation: Conversation) -> list[Piece]:
        """Render the pieces up to the assistant's next turn, with the generation prompt."""
        pieces = self._cut(self._run(*self._given(conversation), prompt=True))
        return join_pieces(piece._replace(trained=False) for piece in pieces)

    def _probe(self) -> str:
        """Check plain conversations; return why the one of several turns fails."""
        why: list[RecordProblem] = []
        for talk in PROBES:
            try:
                self._hold(talk)
            except RecordProblem as error:
                why.append(error)
            else:
                return why[0].detail if why else ""
        raise self._refusal(why[0].detail) from why[0]

    def _hold(self, talk: Conversation) -> None:
        """Check that the trained ranges are exactly the assistant's."""
        pieces = self.render(talk)
        check_pieces(talk, pieces)
        runs = trained_runs(pieces)
        for message in talk.messages:
            if message.role != "assistant" and any(message.content in run for run in runs):
                raise self._refusal(f"the {message.role}'s {message.content!r} is trained on")
        first = next(n for n, message in enumerate(talk.messages) if message.role == "assistant")
        if not (ahead := runs[0].partition(talk.messages[first].content)[0].strip()):
            return
        asked = as_messages(talk.messages[:first])
        without, prompted = (self._run(asked, None, prompt=one) for one in (False, True))
        prompt = prompted.removeprefix(without).strip() if prompted.startswith(without) else ""
        if ahead.startswith(prompt):  # always true for "", the prompt of templates that have none
            raise self._refusal(f"{ahead!r} is trained on, which precedes the assistant's words")

    def _refusal(self, detail: str) -> RecipeError:
        known = "its {% generation %} marks" if self.marked else "rendering the text before each turn"
        return RecipeError(
            f"the chat template does not determine the assistant's words, by {known}: {detail}",
            hint="put {% generation %} and {% endgeneration %} around the assistant's words in a copy of "
            "it, and name that with --chat-template",
        )

    def _given(self, conversation: Conversation) -> tuple[list[Any], list[Any] | None]:
        """Messages and tools for a template, without anything that could become a control token."""
        messages = [self._hidden_in(one) for one in as_messages(conversation.messages)]
        return messages, [self._hidden_in(tool) for tool in conversation.tools] or None

    def _run(
        self,
        messages: list[Any],
        tools: list[Any] | None,
        *,
        prompt: bool,
    ) -> str:
        parts: list[str] = []
        size = 0
        given = {**self._variables, "messages": messages, "tools": tools, "add_generation_prompt": prompt}
        try:
            stream, _ = self._environment.start(self._template, given)
            for part in stream:
                parts.append(part)
                size += len(part)
                if size > MOST_CHARACTERS:
                    raise RecordProblem(
                        "template", f"the template made more than {MOST_CHARACTERS:,} characters"
                    )
        except (RecordProblem, TemplateTimeout):
            raise
        except Exception as error:  # any error of a template affects one conversation only
            raise RecordProblem("template", f"{type(error).__name__}: {error}"[:500]) from error
        return "".join(parts)

    def _mark(
        self,
        whole: str,
        messages: list[Any],
        tools: list[Any] | None,
    ) -> str:
        marked: list[str] = []
        done = 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            after = whole
            try:
                before = self._run(messages[:number], tools, prompt=True)
                if number + 1 < len(messages):
                    after = self._run(messages[: number + 1], tools, prompt=False)
            except RecordProblem as error:
                detail = (
                    f"message {number}: the template does not render it without what follows: {error.detail}"
                )
                raise RecordProblem("mask", detail) from error
            if not (after.startswith(before) and whole.startswith(after) and len(before) >= done):
                raise RecordProblem(
                    "mask", f"message {number}: what comes before it is rendered otherwise with it than alone"
                )
            # White space after the last token of a turn belongs to the template; no model generates it.
            end = len(before) + len(after[len(before) :].rstrip())
            marked += (whole[done : len(before)], OPEN, whole[len(before) : end], CLOSE)
            done = end
        return "".join([*marked, whole[done:]])

    def _cut(self, rendered: str) -> list[Piece]:
        """Cut text, control tokens and marks into pieces; adjacent texts of the same kind are joined."""
        pieces: list[Piece] = []
        trained = strip = False
        hides = HIDE in rendered
        parts: list[str] = []
        for opened in rendered.split(OPEN):  # a pattern without the marks begins with a literal, found faster
            for closed in opened.split(CLOSE):
                parts += self._split.split(closed)
                parts.append(CLOSE)
            parts[-1] = OPEN
        parts.pop()
        for place, part in enumerate(parts):
            if place % 2:
                if part in MARKS:
                    trained = part == OPEN
                else:
                    strip = self._strips[part][1]
                    pieces.append(Piece(part, trained, True))
            elif part:
                if strip:
                    part, strip = part.lstrip(), False
                if place + 1 < len(parts) and self._strips.get(parts[place + 1], NEVER)[0]:
                    part = part.rstrip()
                if hides:
                    part = self._shown(part)
                if pieces and not pieces[-1].control and pieces[-1].trained == trained:
                    part = pieces.pop().text + part
                if part:
                    pieces.append(Piece(part, trained))
        return pieces

    def _hidden_in(self, value: Any) -> Any:
        """The value with all special tokens and marks in its strings hidden."""
        if isinstance(value, str):
            if not any(map(value.__contains__, self._firsts)):  # much faster than the pattern
                return value
            return self._hide.sub(lambda match: f"{HIDE}{self._numbers[match[0]]}{SHOW}", value)
        if isinstance(value, dict):
            return {self._hidden_in(name): self._hidden_in(inner) for name, inner in value.items()}
        return [self._hidden_in(inner) for inner in value] if isinstance(value, list) else value

    def _shown(self, text: str) -> str:
        if HIDE not in text:
            return text
        return re.sub(f"{HIDE}(\\d+){SHOW}", lambda match: self._hidden[int(match[1])], text)


def _compile(environment: Environment, text: str) -> tuple[Any, bool]:
    """Compile a template; also return whether it has marks."""
    try:
        return environment.from_string(text), re.search(r"\{%-?\+?\s*generation\b", text) is not None
    except (TemplateError, SyntaxError, RecursionError) as error:
        said = error.msg if isinstance(error, SyntaxError) else error  # its lines are of Jinja's Python
        number = getattr(error, "lineno", None) if said is error else None
        line = f", line {number}" if number else ""
        raise RecipeError(
            f"the chat template is not one{line}: {said}",
            hint="it has to be Jinja, as transformers reads it",
        ) from error


class _Generation(Extension):
    """`{% generation %}`: marks its contents as the assistant's."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own name for it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in MARKS]
        return nodes.Scope([marks[0], *body, marks[1]], lineno=line)  # names that are set inside end there


class _ChatSandbox(Sandbox):
    """Sandbox of one whole template: it includes no others."""

    def check(self, tree: nodes.Template) -> None:
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            kind = type(node).__name__.lower()
            raise RecipeError(
                f"the chat template reads other templates (line {node.lineno}, {kind})",
                hint="a template has to be whole: put what it includes into it",
            )


def _refuse(message: str) -> None:
    raise TemplateError(message)


def make_environment() -> Sandbox:
    """Build Jinja's environment as in transformers, in a sandbox without side effects or access."""
    environment = _ChatSandbox(
        MOST_PRODUCED,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        finalize=print_value,
    )
    environment.globals["raise_exception"] = _refuse
    environment.bound()
    return environment


def strips_of(tokenizer_json: str) -> dict[str, tuple[bool, bool]]:
    """Special tokens of a tokenizer.json, and whether they strip white space before and after them.

    >>> added = '[{"content": "<s>", "id": 0, "special": true, "rstrip": true}, {"content": "x", "id": 1}]'
    >>> strips_of(f'{{"added_tokens": {added}}}')
    {'<s>': (False, True)}
    """
    tokens = read_added_tokens(tokenizer_json)
    return {token.content: (token.lstrip, token.rstrip) for token in tokens if token.special}
