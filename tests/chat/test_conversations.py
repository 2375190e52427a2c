"""The normal form: published shapes agree, and what is malformed has its reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.chat.conversations import as_messages, read_conversation
from packline.sources.batch import RecordProblem

USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
CALL = {"role": "assistant", "tool_calls": [{"id": "c0", "function": {"name": "f", "arguments": "{}"}}]}
OUTPUT = {"role": "tool", "tool_call_id": "c0", "content": "1"}
UNNAMED = {"role": "tool", "content": "1"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    "record",
    [
        [USER, ASSISTANT],
        {"messages": [USER, ASSISTANT]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"conversation": [USER, ASSISTANT], "id": 7},
        {"prompt": "hi", "response": "hello"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"instruction": "hi", "input": "", "output": "hello"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, ASSISTANT]},
        {"messages": [{**USER, "name": None, "tool_calls": None}, {**ASSISTANT, "tool_calls": None}]},
        {"messages": [{**USER, "annotations": []}, {**ASSISTANT, "refusal": None, "audio": {}}], "more": {}},
    ],
)
def test_published_shapes_have_one_normal_form(record: Any) -> None:
    assert as_messages(read_conversation(record).messages) == [USER, ASSISTANT]


def test_calls_and_outputs_of_both_shapes_are_one() -> None:
    openai = [USER, CALL, OUTPUT, ASSISTANT]
    sharegpt = {
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
            {"from": "observation", "value": "1"},
            {"from": "gpt", "value": "hello"},
        ]
    }
    one, other = (read_conversation(record).messages for record in (openai, sharegpt))
    assert [(m.role, m.content, [(c.name, c.arguments) for c in m.calls]) for m in one] == [
        (m.role, m.content, [(c.name, c.arguments) for c in m.calls]) for m in other
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("hello", "not_a_conversation"),
        ({"text": "hello"}, "not_a_conversation"),
        ({"messages": "hello"}, "not_a_conversation"),
        ({"messages": ["hello"]}, "not_a_conversation"),
        ({"messages": [USER, ASSISTANT], "tools": "nonsense"}, "not_a_conversation"),
        ([USER, {"role": "robot", "content": "x"}], "unknown_role"),
        ([USER, {"content": "x"}], "unknown_role"),
        ([{**USER, "tool_calls": CALL["tool_calls"]}, ASSISTANT], "roles_out_of_order"),
        ([], "empty_content"),
        ([USER, {"role": "assistant", "content": " \n"}], "empty_content"),
        ([USER, {"role": "assistant", "content": None}], "empty_content"),
        ([{"role": "user"}, ASSISTANT], "empty_content"),
        ([USER, {"role": "assistant", "content": 7}], "content_not_text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}, ASSISTANT], "content_not_text"),
        ([{"role": "user", "content": [{"type": "python", "text": "1"}]}, ASSISTANT], "content_not_text"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {}}]}], "content_not_text"),
        (
            [
                USER,
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
                OUTPUT,
            ],
            "content_not_text",
        ),
        ([USER, {**ASSISTANT, "weight": 0}], "nothing_to_train"),
        ([USER, {**ASSISTANT, "weight": 0.5}], "not_a_conversation"),
        ([USER, {**ASSISTANT, "weight": [0]}], "not_a_conversation"),
        ([USER, ASSISTANT, OUTPUT], "tool_output_without_call"),
        ([USER, CALL, {**OUTPUT, "tool_call_id": "c9"}], "tool_output_without_call"),
        ([USER, CALL, OUTPUT, OUTPUT], "tool_output_without_call"),
        ([USER, CALL, OUTPUT, UNNAMED], "tool_output_without_call"),
        ([USER, UNNAMED, ASSISTANT], "tool_output_without_call"),
        ([UNNAMED, ASSISTANT], "tool_output_without_call"),
        ([USER], "nothing_to_train"),
        ([{"role": "user", "content": "\ud800"}, ASSISTANT], "lone_surrogate"),
    ],
)
def test_what_is_malformed_has_its_reason(record: Any, reason: str) -> None:
    with pytest.raises(RecordProblem) as caught:
        read_conversation(record)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "record",
    [
        [ASSISTANT],
        [USER, USER, ASSISTANT],
        [USER, ASSISTANT, SYSTEM, USER, ASSISTANT],
        [USER, CALL],
        [USER, CALL, USER, ASSISTANT],
        [USER, CALL, USER, OUTPUT, ASSISTANT],
        [USER, CALL, OUTPUT, USER, ASSISTANT],
        # A call among the words, as in Hermes and ToolACE.
        [USER, {"role": "assistant", "content": "[f(a=1)]"}, UNNAMED, UNNAMED, ASSISTANT],
        {"system": "Be brief.", "prompt": [ASSISTANT, USER], "completion": [CALL]},
    ],
)
def test_the_template_decides_on_the_order_of_roles(record: Any) -> None:
    given = record if isinstance(record, list) else [*record["prompt"], *record["completion"]]
    roles = [one.role for one in read_conversation(record).messages]
    assert roles[-len(given) :] == [one["role"] for one in given]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "hi", "chosen": "hello", "rejected": "no"}, "DPOTrainer"),
        ({"chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT], "score_chosen": 9.0}, "--field chosen"),
        ({"prompt": "hi", "response": "no", "label": False}, "KTOTrainer"),
        ({"messages": [USER, ASSISTANT], "label": False}, "another name"),
    ],
)
def test_answers_that_nobody_should_learn_are_named(record: Any, said: str) -> None:
    with pytest.raises(RecordProblem, match=said) as caught:
        read_conversation(record)
    assert caught.value.reason == "preference_data"


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"prompt": [USER], "completion": [ASSISTANT], "label": True}, None),
        ({"prompt": "hi", "completion": "hello", "label": 0}, None),
        ({"messages": [USER, ASSISTANT], "label": "False"}, None),
        # As in UltraFeedback: the conversation to learn stands beside the pair.
        ({"prompt": "hi", "messages": [USER, ASSISTANT], "chosen": [], "rejected": []}, None),
        ({"prompt": "hi", "chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT]}, "chosen"),
    ],
)
def test_answers_to_learn_are_read_from_preference_data(record: Any, field: str | None) -> None:
    assert as_messages(read_conversation(record, field).messages) == [USER, ASSISTANT]


def test_a_chosen_answer_is_not_read_without_its_prompt() -> None:
    record = {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [ASSISTANT]}
    with pytest.raises(RecordProblem, match="begins with the assistant, beside a prompt") as caught:
        read_conversation(record, "chosen")
    assert caught.value.reason == "not_a_conversation"


def test_outputs_of_several_calls_may_come_in_any_order_or_not_at_all() -> None:
    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    asks = {"role": "assistant", "tool_calls": calls}
    outputs = [{**OUTPUT, "tool_call_id": f"c{n}"} for n in (1, 0)]
    assert len(read_conversation([USER, asks, *outputs, ASSISTANT]).messages) == 5
    assert len(read_conversation([USER, asks, outputs[0], ASSISTANT]).messages) == 4
    with pytest.raises(RecordProblem, match="tool_output_without_call"):
        read_conversation([USER, asks, outputs[0], outputs[0], ASSISTANT])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"a": {"b": [1, None]}}, {"a": {"b": [1, None]}}),
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ("", {}),
        (None, {}),
        ("as agents write", "as agents write"),
        ("[1]", "[1]"),
    ],
)
def test_arguments_are_an_object_or_the_string_that_is_none(arguments: Any, wanted: Any) -> None:
    calls = [{"id": "c0", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    asks = {"role": "assistant", "content": None, "tool_calls": calls}
    said = as_messages(read_conversation([USER, asks, OUTPUT]).messages)[1]
    assert said["tool_calls"] == [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": wanted}}
    ]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["user", "gpt", "tool"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "from", "content", "value", "tool_calls", "function", "prompt"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JUNK)
def test_whatever_a_record_is_it_is_a_conversation_or_malformed(record: Any) -> None:
    try:
        found = read_conversation(record)
    except RecordProblem as error:
        assert error.detail
    else:
        assert any(message.role == "assistant" for message in found.messages)
