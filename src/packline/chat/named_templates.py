"""Named chat templates, with marks around the assistant's words.

    qwen3  =  settings  +  chat_templates/qwen.jinja  ──> text  ──> ChatTemplate

Published templates have no marks, and some write earlier turns differently from the last one, so that no mask
can be proven. Each template here produces the text of the published one, turn by turn, and marks the
assistant's words with the token that ends them; where TRL has a template to train the same model, what is
marked is what TRL marks. Records with content that the format cannot express are refused, instead of losing
it, and so is an order of roles that the published template refuses.

`nearest_template` compares the output of two templates for the same plain conversations, not their source,
since comments, spaces and variable names differ between copies.
"""

from __future__ import annotations

from collections.abc import Container
from difflib import SequenceMatcher
from importlib.resources import files

import msgspec

from packline.chat.chat_template import ChatTemplate
from packline.chat.conversations import Call, Conversation, Message
from packline.errors import RecipeError, unknown_name
from packline.sources.batch import RecordProblem

NO_TOOLS = """\
{%- if tools or messages | selectattr('role', 'equalto', 'tool') | list
    or messages | selectattr('tool_calls', 'defined') | list %}
    {{- raise_exception('this template has no place for tools') }}
{%- endif %}
"""
NO_THOUGHTS = """\
{%- if messages | selectattr('reasoning_content', 'defined') | list %}
    {{- raise_exception('this template has no place for reasoning that stands apart') }}
{%- endif %}
"""
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
NEAR = 0.6
"""Minimum share of equal text for suggesting a template in place of an unusable one."""


class NamedTemplate(msgspec.Struct, frozen=True):
    """A template that comes with packline."""

    name: str
    models: str
    """Models whose published template it follows."""
    tokens: tuple[str, ...]
    """Control tokens that it writes and a tokenizer must have."""
    file: str
    settings: str
    """Jinja code inserted before the file."""
    tools: bool
    thoughts: bool = False
    """True if it supports reasoning."""

    @property
    def text(self) -> str:
        """The whole template."""
        body = files("packline.chat").joinpath("chat_templates", self.file).read_text("utf-8")
        refused = ("" if self.tools else NO_TOOLS) + ("" if self.thoughts else NO_THOUGHTS)
        return f"{{#- packline: {self.name} -#}}\n{self.settings}{refused}{body}"


IM = ("<|im_start|>", "<|im_end|>")
HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
INST = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
TEMPLATES = {
    one.name: one
    for one in (
        NamedTemplate("chatml", "plain ChatML", IM, "chatml.jinja", "", tools=False),
        NamedTemplate(
            "qwen2.5",
            "Qwen2.5, Qwen2.5-Coder",
            IM,
            "qwen.jinja",
            f"{{%- set instruction = '{QWEN}' %}}\n{{%- set thinks = false %}}\n",
            tools=True,
        ),
        NamedTemplate(
            "qwen3",
            "Qwen3",
            IM,
            "qwen.jinja",
            "{%- set instruction = '' %}\n{%- set thinks = true %}\n",
            tools=True,
            thoughts=True,
        ),
        NamedTemplate("llama3", "Llama 3", HEADERS, "llama3.jinja", "", tools=False),
        NamedTemplate("llama3.1", "Llama 3.1, 3.2, 3.3", HEADERS, "llama3.1.jinja", "", tools=True),
        NamedTemplate(
            "gemma",
            "Gemma 1, 2, 3",
            ("<bos>", "<start_of_turn>", "<end_of_turn>"),
            "gemma.jinja",
            "",
            tools=False,
        ),
        NamedTemplate(
            "mistral",
            "Mistral 7B v0.3, Mixtral 8x22B v0.1",
            INST,
            "mistral.jinja",
            "{%- set gap = ' ' %}\n{%- set trims = true %}\n",
            tools=True,
        ),
        NamedTemplate(
            "mistral-nemo",
            "Mistral Nemo 2407",
            INST,
            "mistral.jinja",
            "{%- set gap = '' %}\n{%- set trims = false %}\n",
            tools=True,
        ),
    )
}
"""Templates by name, in listing order."""

_ADD = (Call("add", {"a": 1, "b": 1}, "call00001"),)
_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
_ASKED, _SAID = Message("user", "What is one and one?"), Message("assistant", "Two.")
PLAIN = Conversation((_ASKED, _SAID))
COMPARED = (
    PLAIN,
    Conversation((Message("system", "Be brief."), _ASKED, _SAID)),
    Conversation((_ASKED, _SAID, Message("user", "Sure?"), Message("assistant", "Yes."))),
    Conversation(
        (
            _ASKED,
            Message("assistant", calls=_ADD),
            Message("tool", "2", call_id="call00001"),
            _SAID,
        ),
        (_TOOL,),
    ),
)
"""Conversations for comparing templates."""


def resolve_template(given: str, special_tokens: Container[str]) -> str:
    """Resolve a template, given by name or as text, to its text.

    >>> resolve_template("{{ messages }}", ())
    '{{ messages }}'
    >>> resolve_template("chatml", ())
    Traceback (most recent call last):
    packline.errors.RecipeError: chatml needs control tokens: the tokenizer has no <|im_start|>, <|im_end|>
    """
    if (named := TEMPLATES.get(given)) is not None:
        if missing := [token for token in named.tokens if token not in special_tokens]:
            raise RecipeError(
                f"{given} needs control tokens: the tokenizer has no {', '.join(missing)}",
                hint=f"{given} is for {named.models}; choose the template of the model, or add the tokens",
            )
        return named.text
    if "{" not in given:
        raise unknown_name(f"no chat template {given!r}, and not the text of one", given, TEMPLATES)
    return given


class Nearest(msgspec.Struct, frozen=True):
    """The named template with the most similar output to another template."""

    name: str
    equal: int
    """Number of conversations with identical output."""
    share: float
    """Share of equal text, from 0 to 1, mean over the conversations that both render."""
    same: bool
    """True if the output of a question and its answer is identical."""

    def hint(self) -> str:
        """Advice for errors and notes.

        >>> Nearest("qwen3", 2, 0.98, True).hint()
        'use --chat-template qwen3, which writes a question and its answer alike and marks the answer'
        """
        if self.same:
            alike = "which writes a question and its answer alike and marks the answer"
            return f"use --chat-template {self.name}, {alike}"
        return (
            f"the nearest template by name is --chat-template {self.name}; compare what it writes before use"
        )


def nearest_template(template: ChatTemplate, special_tokens: Container[str]) -> Nearest | None:
    """Find the named template with the most similar output; None if none is similar.

    Only templates whose control tokens the tokenizer has are considered. Cost: below 0.1 s.

    >>> text = "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"
    >>> other = ChatTemplate(text, dict.fromkeys(IM, (False, False)), masked=False)
    >>> found = nearest_template(other, IM)
    >>> found.name, found.same
    ('chatml', True)
    """
    own = [_written(template, talk) for talk in COMPARED]
    best: Nearest | None = None
    for named in TEMPLATES.values():
        if not all(token in special_tokens for token in named.tokens):
            continue
        other = ChatTemplate(named.text, dict.fromkeys(named.tokens, (False, False)), masked=False)
        texts = [_written(other, talk) for talk in COMPARED]
        pairs = [
            (one, two) for one, two in zip(own, texts, strict=True) if one is not None and two is not None
        ]
        likeness = [SequenceMatcher(None, one, two, autojunk=False).ratio() for one, two in pairs]
        share = sum(likeness) / max(len(likeness), 1)
        found = Nearest(named.name, likeness.count(1), share, own[0] is not None and own[0] == texts[0])
        if found.share >= NEAR and (best is None or (found.equal, found.share) > (best.equal, best.share)):
            best = found
    return best


def _written(template: ChatTemplate, conversation: Conversation) -> str | None:
    try:
        return template.write(conversation)
    except RecordProblem:
        return None
