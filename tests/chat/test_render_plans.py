"""Law: with plans and without, a template makes the same pieces of a conversation, or refuses it alike."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.templates import CHATML, CHATML_TOKENS, LLAMA3, NANOCHAT, unmarked

from packline.chat.chat_template import ChatTemplate
from packline.chat.conversations import Conversation, Message
from packline.chat.named_templates import TEMPLATES
from packline.chat.pieces import Piece, check_pieces
from packline.chat.render_plans import BEGIN, NoPlan, Notes, Plan
from packline.sources.batch import RecordProblem

TOKENS = (*CHATML_TOKENS, "<|a|>", "<|b|>")
ODD_TOKENS = ("\n\n<x>",)
LOOP = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% generation %}BODY{% endgeneration %}<|im_end|>\n"
    "{% endfor %}"
)
BODIES = {
    "printed": "{{ m.content }}",
    "stripped": "{{ m.content | trim }}|{{ m.content.strip() }}|{{ m['content'].rstrip('b\\n') }}",
    "replaced": "{{ m.content.replace('a', 'b') | replace('b', '') }}",
    "asked": "{% if 'a' in m.content and not m.content.startswith('b') %}+{% endif %}{{ m.content }}",
    "compared": "{{ '=' if m.content == 'a' else '#' if 'a' != m.content else '' }}{{ m.content }}",
    "empty": "{% if m.content | trim %}{{ m.content }}{% else %}-{% endif %}",
    "default": "{{ m.content | default('none', true) }}",
    "split": "{% if 'b' in m.content %}{{ m.content.split('b')[-1] }}{% else %}{{ m.content }}{% endif %}",
    "sliced": "{{ m.content[1:] }}{{ m.content[:1] }}",
    "counted": "{{ m.content | length }}{{ m.content }}",
    "looped": "{% for c in m.content %}{{ c }},{% endfor %}",
    "looked for": "{{ 'x' if m.content in 'abab' else 'y' }}{{ m.content }}",
    "in a list": "{{ 'x' if m.content in ['a', 'b'] else 'y' }}{{ [m.content, m.content] | join('/') }}",
    "as JSON": "{{ m | tojson }}{{ messages | length }}{{ (messages | last).content }}",
    "formatted": "{{ '%s!' % m.content }}{{ '{}'.format(m.content) }}{{ m.content | upper }}",
    "added": "{{ m.content + '!' + m.content }}{{ m.content ~ '?' }}{{ (m.content ~ ' ').strip() }}",
    "captured": "{% set x %}{{ m.content }}{% endset %}{{ 'some' if x else 'none' }}{{ x | trim }}",
    "macro": "{% macro f(t) %}[{{ t }}]{% endmacro %}{{ f(m.content) }}{{ f(m.content).strip('[') | trim }}"
    "{{ 1 if 'a]' in f(m.content) else 0 }}",
    "space": "{% set ns = namespace(t='') %}{% set ns.t = ns.t + m.content %}{{ ns.t }}"
    "{{ 1 if ns.t else 0 }}",
    "keyed": "{{ {'a': 1}[m.content] }}{{ m.content }}",
    "edges": "<|{{ m.content }}|>{{ m.content }}>",
    "refused": "{% if 'b' in m.content %}{{ raise_exception('no ' + m.content) }}{% endif %}{{ m.content }}",
    "chosen": "{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content }}{{ m.content }}",
    "by words": "{{ messages | selectattr('content', 'equalto', 'a') | list | length }}{{ m.content }}",
    "sorted": "{{ messages | map(attribute='content') | sort | first }}{{ m.content }}",
    "ordered": "{{ 1 if m.content < 'b' else 2 }}{{ m.content }}",
    "repeated": "{{ m.content * 2 }}",
    "got": "{{ m.get('content') }}{{ m.items() | list | length }}"
    "{% for k, v in m.items() %}{{ v }}{% endfor %}",
}
MASKED = {
    "chatml": CHATML,
    "chatml unmarked": unmarked(CHATML),
    "llama3": LLAMA3,
    "nanochat": NANOCHAT,
    **{name: one.text for name, one in TEMPLATES.items()},
}
WORDS = st.lists(
    st.sampled_from(
        ["a", "b", " ", "%s%%", "\n", "</think>", "<think>", "<|im_end|>", "<", "|a", "x>", BEGIN + "0", "é"]
    ),
    max_size=5,
).map("".join)


def template(text: str, more: tuple[str, ...] = ()) -> ChatTemplate:
    tokens = {token for one in TEMPLATES.values() for token in one.tokens} | {*TOKENS, *more}
    return ChatTemplate(text, dict.fromkeys(tokens, (False, False)), {"bos_token": "<|a|>"}, masked=False)


@cache
def pair(text: str, more: tuple[str, ...]) -> tuple[ChatTemplate, ChatTemplate]:
    return template(text, more), template(text, more)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Users and assistants in turn, with a system message or without."""
    turns = draw(st.integers(1, 3))
    roles = ["system"] * draw(st.integers(0, 1)) + ["user", "assistant"] * turns
    return Conversation(tuple(Message(role, draw(WORDS)) for role in roles))  # type: ignore[arg-type]


def outcome(ready: ChatTemplate, talk: Conversation) -> list[Piece] | tuple[str, str]:
    try:
        return ready.render(talk)
    except RecordProblem as error:
        return error.reason, error.detail


@pytest.mark.parametrize("body", BODIES)
@settings(max_examples=25)
@given(talks=st.lists(conversations(), min_size=1, max_size=4), data=st.data())
def test_a_plan_makes_what_the_template_makes(
    body: str, talks: list[Conversation], data: st.DataObject
) -> None:
    text, more = LOOP.replace("BODY", BODIES[body]), data.draw(st.sampled_from([(), ODD_TOKENS]))
    planned, plain = pair(text, more)
    planned._plans, plain._plans = planned._make_plans(text), None  # new ones, which know no conversation yet
    for talk in talks * 2:
        assert outcome(planned, talk) == outcome(plain, talk)


READY = {name: (template(text), template(text)) for name, text in MASKED.items()}


@pytest.mark.parametrize("name", MASKED)
@settings(max_examples=25)
@given(talks=st.lists(conversations(), min_size=1, max_size=3))
def test_published_templates_are_planned_exactly(name: str, talks: list[Conversation]) -> None:
    planned, plain = READY[name]
    plain._plans = None
    for talk in talks * 2:
        found = outcome(plain, talk)
        assert outcome(planned, talk) == found
        if isinstance(found, list):
            rendered = planned.render_whole(talk)
            assert rendered.whole == "".join(piece.text for piece in found)
            if rendered.proven:
                check_pieces(talk, found)


@pytest.mark.parametrize("name", MASKED)
def test_published_templates_have_plans(name: str) -> None:
    talk = Conversation((Message("user", "hello"), Message("assistant", "hi there")))
    own = TEMPLATES[name].tokens if name in TEMPLATES else CHATML_TOKENS
    plans = ChatTemplate(
        MASKED[name], dict.fromkeys(own, (False, False)), {"bos_token": own[0]}, masked=False
    )._plans
    assert plans is not None and plans.render(talk) is not None


@pytest.mark.parametrize("body", ["split", "sliced", "counted", "looped", "as JSON", "by words", "repeated"])
def test_what_reads_words_has_no_plan(body: str) -> None:
    plans = template(LOOP.replace("BODY", BODIES[body]))._plans
    talk = Conversation((Message("user", "b"), Message("assistant", "b")))
    assert plans is not None and plans.render(talk) is None


def test_a_condition_left_out_would_be_noticed() -> None:
    notes = Notes(["a"])
    words = notes.words(f"{BEGIN}0\ufdd5")
    assert "a" in words
    plan = Plan([Piece(str(words))], ["user"], notes, ())
    found = plan.render(["xax"])
    assert found is not None and found.pieces() == [Piece("xax")] and plan.render(["b"]) is None


def test_words_beside_a_part_of_a_control_token_have_no_plan() -> None:
    notes = Notes(["a"])
    for text in ("<|im_{}", "{}|im_end|>", "x{}{}"):
        with pytest.raises(NoPlan):
            Plan([Piece(text.replace("{}", f"{BEGIN}0\ufdd5"))], ["user"], notes, ("<|im_end|>",))
