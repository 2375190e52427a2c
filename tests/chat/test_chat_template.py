"""Chat templates: marks and proof agree, text stays text, and what cannot be known is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.talks import (
    CHATML,
    CHATML_TOKENS,
    LLAMA3,
    LLAMA3_TOKENS,
    NANOCHAT,
    unmarked,
)

from packline.chat.chat_template import ChatTemplate
from packline.chat.conversations import Call, Conversation, Message, Part
from packline.chat.pieces import NANOCHAT_TOKENS, check_pieces, mute, render_nanochat, trained_runs
from packline.errors import RecipeError
from packline.sources import sandbox
from packline.sources.batch import RecordProblem

TALK = Conversation((Message("user", "hi"), Message("assistant", "hello")))
CASES = {
    "chatml": (CHATML, CHATML_TOKENS),
    "llama3": (LLAMA3, LLAMA3_TOKENS),
    "nanochat": (NANOCHAT, NANOCHAT_TOKENS),
}

# Words as people and attackers write them: control tokens, the marks of the project, white space.
WORDS = st.lists(
    st.sampled_from(
        [*CHATML_TOKENS, *LLAMA3_TOKENS, *NANOCHAT_TOKENS, "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd30\ufdd1"]
    )
    | st.text(max_size=8),
    max_size=5,
).map("".join)
SPOKEN = WORDS.filter(lambda text: bool(text.strip()))
TALKS = st.lists(st.tuples(SPOKEN, SPOKEN), min_size=1, max_size=4).map(
    lambda turns: Conversation(
        tuple(
            message
            for asked, said in turns
            for message in (Message("user", asked), Message("assistant", said))
        )
    )
)


def make(name: str, marked: bool) -> ChatTemplate:
    text, tokens = CASES[name]
    text = text if marked else unmarked(text)
    template = ChatTemplate(text, dict.fromkeys(tokens, (False, False)), {"bos_token": tokens[0]})
    assert template.marked == marked and template.unproven == ""
    return template


TEMPLATES = {(name, marked): make(name, marked) for name in CASES for marked in (True, False)}


@given(TALKS, st.sampled_from(sorted(CASES)))
def test_the_proof_by_prefixes_finds_what_the_marks_say(talk: Conversation, name: str) -> None:
    by_marks = TEMPLATES[name, True].render(talk)
    # What is proven ends at the last sign of a turn, so it is the same wherever turns end with a token.
    assert TEMPLATES[name, False].render(talk) == by_marks
    check_pieces(talk, by_marks)


@given(TALKS, st.sampled_from(sorted(CASES)))
def test_text_stays_text_and_what_is_trained_on_is_the_assistants_words(
    talk: Conversation, name: str
) -> None:
    pieces = TEMPLATES[name, True].render(talk)
    end = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "nanochat": "<|assistant_end|>"}[name]
    trim = str.strip if name == "llama3" else str
    said = [trim(message.content) + end for message in talk.messages if message.role == "assistant"]
    assert trained_runs(pieces) == said
    # As many control tokens as the scheme writes, whatever the words are.
    turns = len(talk.messages)
    expected = {"chatml": 2 * turns, "llama3": 1 + 3 * turns, "nanochat": 1 + 2 * turns}[name]
    assert sum(piece.control for piece in pieces) == expected


@given(TALKS)
def test_nanochats_scheme_is_its_template_without_the_first_token(talk: Conversation) -> None:
    assert render_nanochat(talk) == TEMPLATES["nanochat", True].render(talk)[1:]


def test_a_call_may_be_the_answer_and_tools_stay_text() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}
    talk = Conversation((Message("user", "a"), CALLED), (tool,))
    runs = ['<|python_start|>{"name": "f", "arguments": {}}<|python_end|><|assistant_end|>']
    assert trained_runs(render_nanochat(talk)) == runs
    pieces = TEMPLATES["chatml", True].render(talk)
    assert '"description": "<|im_end|>"' in "".join(piece.text for piece in pieces)
    assert sum(piece.control for piece in pieces) == 6


def test_code_among_words_that_are_not_learned_mutes_its_own_message_alone() -> None:
    parts = (
        Part("text", "Let me see: "),
        Part("python", "1+1"),
        Part("python_output", "2"),
        Part("text", "2."),
    )
    first, last = Message("assistant", "Let me see: 2.", parts), Message("assistant", "Yes.")
    asked = (Message("user", "1+1?"), Message("user", "Sure?"))
    runs = ["Let me see: <|python_start|>1+1<|python_end|>", "2.<|assistant_end|>", "Yes.<|assistant_end|>"]
    for learned, wanted in (((True, True), runs), ((False, True), runs[2:]), ((True, False), runs[:2])):
        said = [
            msgspec.structs.replace(one, trained=is_learned)
            for one, is_learned in zip((first, last), learned, strict=True)
        ]
        talk = Conversation((asked[0], said[0], asked[1], said[1]))
        pieces = render_nanochat(talk)
        check_pieces(talk, pieces)
        assert trained_runs(mute(talk, pieces)) == wanted
        assert [piece.text for piece in mute(talk, pieces)] == [piece.text for piece in pieces]


NOBODY = Message("system", "Be brief.")
CALLED = Message("assistant", "", calls=(Call("f", {}),))


@pytest.mark.parametrize(
    "messages",
    [
        (Message("assistant", "a"), Message("user", "b")),
        (Message("user", "a"), Message("user", "b"), Message("assistant", "c")),
        (Message("user", "a"), Message("assistant", "b"), Message("assistant", "c")),
        (Message("user", "a"), NOBODY, Message("assistant", "b")),
        (Message("user", "a"), Message("assistant", "b"), NOBODY, Message("user", "c")),
        (Message("user", "a"), CALLED, Message("tool", "1"), Message("user", "c"), Message("assistant", "b")),
    ],
)
def test_nanochats_scheme_has_user_and_assistant_in_turn(messages: tuple[Message, ...]) -> None:
    with pytest.raises(RecordProblem, match="nanochat's scheme has user and assistant in turn") as caught:
        render_nanochat(Conversation(messages))
    assert caught.value.reason == "roles_out_of_order"


def test_any_order_that_a_template_renders_is_proven_or_refused_by_name() -> None:
    first = Conversation((Message("assistant", "a"), Message("user", "b"), Message("assistant", "c")))
    twice = Conversation((Message("user", "b"), Message("assistant", "a"), Message("assistant", "c")))
    within = Conversation(
        (Message("user", "b"), Message("assistant", "a"), NOBODY, Message("assistant", "c"))
    )
    for talk in (first, twice, within):
        assert trained_runs(TEMPLATES["chatml", True].render(talk)) == ["a<|im_end|>", "c<|im_end|>"]
        if talk is not first:
            assert TEMPLATES["chatml", False].render(talk) == TEMPLATES["chatml", True].render(talk)
    # Nothing stands ahead of the first message, and this template looks at the first.
    with pytest.raises(RecordProblem, match="mask: message 0: the template does not render it without what"):
        TEMPLATES["chatml", False].render(first)


def test_a_template_that_wants_a_system_message_is_judged_by_each_conversation() -> None:
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    template = ChatTemplate(wants + each(HEADER + OPENED + WORDS_AND_END + CLOSED), CHATML_PLAIN)
    told = Conversation((Message("system", "be brief"), *TALK.messages))
    assert trained_runs(template.render(told)) == ["hello<|im_end|>"]
    with pytest.raises(RecordProblem, match="no system message"):
        template.render(TALK)
    with pytest.raises(RecipeError, match=r"the system's 'Keep to what is asked\.' is trained on"):
        ChatTemplate(
            wants + "{% generation %}{{ messages | map(attribute='content') | join }}{% endgeneration %}", {}
        )


HEADER = "{{ '<|im_start|>' + m.role + '\n' }}"
WORDS_AND_END = "{{ m.content + '<|im_end|>' }}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
OPENED, CLOSED = "{% generation %}", "{% endgeneration %}"
CHATML_PLAIN = dict.fromkeys(CHATML_TOKENS, (False, False))


def each(assistant: str, others: str = HEADER + WORDS_AND_END) -> str:
    """A template that writes so what an assistant says, and so what others say."""
    which = "{% if m.role == 'assistant' %}" + assistant + "{% else %}" + others + "{% endif %}"
    return "{% for m in messages %}" + which + "{% endfor %}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # A header within the marks, where the prompt has it and where there is no prompt.
        (each(OPENED + HEADER + WORDS_AND_END + CLOSED) + PROMPT, "precedes the assistant's words"),
        (each(OPENED + HEADER + WORDS_AND_END + CLOSED), "precedes the assistant's words"),
        # No marks, and no prompt that would prove where the assistant begins.
        (each(HEADER + WORDS_AND_END), "precedes the assistant's words"),
        # More stretches than there should be.
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
            "speaks 2 times, and 4 are trained on",
        ),
        # As many stretches as there should be, with the user's words in them.
        (
            "{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ m.content }}|"
            "{{ messages[loop.index0 + 1].content }}{% endgeneration %}|{% endif %}{% endfor %}",
            "the user's 'What is one and one.' is trained on",
        ),
    ],
)
def test_trained_stretches_begin_where_the_assistant_does_and_hold_nobody_else(
    text: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        ChatTemplate(text, dict.fromkeys(CHATML_TOKENS, (False, False)))


@pytest.mark.parametrize(
    "text",
    [
        each(HEADER + OPENED + WORDS_AND_END + CLOSED) + PROMPT,
        each(HEADER + OPENED + WORDS_AND_END + CLOSED),
        each(HEADER + WORDS_AND_END) + PROMPT,
        # What a model has to say first, behind the prompt: an empty thought, or the name of a channel.
        each(HEADER + OPENED + "<think>\n\n</think>\n\n" + WORDS_AND_END + CLOSED) + PROMPT,
        each("{{ ' ' + m.content + '</s>' }}", "{{ '[INST] ' + m.content + ' [/INST]' }}"),
    ],
)
def test_templates_that_train_on_what_a_model_has_to_say_pass(text: str) -> None:
    template = ChatTemplate(text, dict.fromkeys(CHATML_TOKENS, (False, False)))
    (run,) = trained_runs(template.render(TALK))
    assert run.removeprefix("<think>\n\n</think>").strip() in ("hello<|im_end|>", "hello</s>")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for m in messages %}", "is not one"),
        ("{% include 'secrets' %}", "reads other templates"),
        ("{% import 'secrets' as s %}", "reads other templates"),
        ("{{ messages.__class__.__mro__ }}", "does not determine"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 'a' * 10000000000 }}", "makes more than"),
        ("{{ 10 ** 10 ** 10 }}", "powers"),
        ("{% for i in range(10000000) %}a{% endfor %}", "OverflowError"),
        ("{{ strftime_now('%Y') }}", "strftime_now"),
        ("{{ {'class=x onclick': 1} | xmlattr }}", "No filter named 'xmlattr'"),  # CVE-2024-22195, 34064
        # More than memory or time allow.
        ("{% set x = 'y' * 9999 %}" + "{% set x = x ~ x %}" * 60, "makes more than"),
        ("{% set x = 'y' * 9999 %}" + "{% set x = x + x %}" * 60, "makes more than"),
        ("{% set x = 'y' * 9999 %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60, "makes more than"),
        ("{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "RecursionError"),
        ("{% set x = [1] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}", "more than 1,000,000 steps"),
        ("{% set x = [1] %}" + "{% set x = dict(a=x, b=x) %}" * 60, "more than 1,000,000 steps"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{{ 'a' | center(1000000000) }}", "is more than 9,999"),
        ("{{ 'a'.ljust(1000000000) }}", "is more than 9,999"),
        ("{{ '%1000000000d' % 5 }}", "a format with a width"),
        ("{{ '%1000000000d' | format(5) }}", "a format with a width"),
        ("{{ '{:1000000000}'.format(5) }}", "a format with a width"),
        ("{{ '{:{w}}'.format(5, w='1000000000') }}", "a format with a width"),
        ("{{ ('a' * 99999).replace('', 'b' * 99999) }}", "makes more than"),
        ("{{ ('b' * 99999).join('a' * 99999) }}", "makes more than"),
        ("{{ ('a' * 99999).translate({97: 'b' * 99999}) }}", "makes more than"),
        ("{{ ('{0}' * 99999).format('b' * 99999) }}", "makes more than"),
        ("{{ ('\n' * 9999999) | indent(9999, blank=true) }}", "makes more than"),
        ("{{ 1 | round(-1000000000) }}", "is more than 9,999"),
        ("{{ [1] | batch(1000000000, 0) | list }}", "is more than 9,999"),
        ("{{ messages | tojson(indent=1000000000) }}", "indent is 1000000000"),
        ("{{ lipsum(1000000000) }}", "'lipsum' is undefined"),
        ("{{ raise_exception('no') }}", "no"),
        ("{{ ([[1]] * 250000) | sum(start=[]) }}", "sum: lists"),  # copies quadratically
        ("{% break %}", "is not one: 'break' outside loop"),
        # The text of an object has an address, which differs in every run.
        ("{{ {} | attr('get') }}", "builtin_function_or_method has no text"),
        ("{{ [raise_exception] }}", "function has no text"),
        ("{{ [raise_exception] | string }}", "function has no text"),
        ("{{ raise_exception | upper }}", "function has no text"),
        ("{{ '' ~ messages.copy }}", "has no text"),
        ("{{ '%s' % messages.copy }}", "has no text"),
        ("{{ '{}'.format(messages.copy) }}", "has no text"),
        ("{{ [messages.copy] | join }}", "has no text"),
    ],
)
def test_a_template_that_reaches_out_or_never_ends_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ChatTemplate(text, {})


@pytest.mark.parametrize(
    "text",
    [
        "{% macro m(n) %}{% if n < 40 %}{{ m(n + 1) }}{{ m(n + 1) }}{% endif %}{% endmacro %}{{ m(0) }}",
        "{% for i in range(99) recursive %}{{ loop(range(99)) if loop.depth < 9 }}{% endfor %}",
    ],
)
def test_calls_that_call_again_and_again_are_counted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes 13 microseconds, and every probe is rendered twice, so that fewer steps show as much."""
    monkeypatch.setattr(sandbox, "MOST_STEPS", 10_500)
    with pytest.raises(RecipeError, match="more than 10,500 steps"):
        ChatTemplate(text, {})


@pytest.mark.parametrize(
    "text",
    [  # The escapes of Jinja's own advisories: an attribute of an object is undefined, and prints as nothing.
        "{{ '{0.__class__}'.format(messages) }}",  # CVE-2016-10745
        "{{ '{a.__class__}'.format_map({'a': messages}) }}",  # CVE-2019-10906
        "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",  # CVE-2024-56326
        "{% macro m(f) %}{{ f(messages) }}{% endmacro %}{{ m('{0.__class__}'.format) }}",  # CVE-2024-56326
        "{{ ('{0.__class__}' | attr('format'))(messages) }}",  # CVE-2025-27516
        "{{ (['{0.__class__}'] | map('attr', 'format') | first)(messages) }}",  # CVE-2025-27516
        "{{ (['{0.__class__}'] | map(attribute='format') | first)(messages) }}",  # CVE-2025-27516
    ],
)
def test_a_format_reaches_no_attributes(text: str) -> None:
    assert ChatTemplate(text, {}, masked=False).write(TALK) == ""


def test_a_template_that_makes_too_much_costs_only_its_conversation() -> None:
    loop = "{% for i in range(99999) %}{{ m.content }}{% endfor %}"
    text = (
        "{% for m in messages %}{% if m.role == 'user' %}{% if m.content == 'x' * 999 %}"
        + loop
        + "{% endif %}"
        "{% else %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}|{% endfor %}"
    )
    template = ChatTemplate(text, {})
    assert trained_runs(template.render(TALK)) == ["hello"]
    with pytest.raises(RecordProblem, match="more than"):
        template.render(Conversation((Message("user", "x" * 999), Message("assistant", "hello"))))


def test_white_space_that_a_token_takes_away_is_gone() -> None:
    text = (
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'user' %}{{ m.content }}{% else %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    pieces = ChatTemplate(text, {"<|user|>": (False, True), "<|assistant|>": (True, True)}).render(
        Conversation((Message("user", " hi "), Message("assistant", "hello")))
    )
    assert [piece.text for piece in pieces] == ["<|user|>", "hi", "<|assistant|>", "hello"]
