"""Requests are read and answered as OpenAI's clients expect."""

from typing import Any

import pytest

from rljob_runtime.task.agents.chat_request import (
    RequestRefused,
    answer_message,
    read_request,
    sent,
)

USER: Any = {"role": "user", "content": "hi"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_call_of_a_tool_comes_back_as_the_message_that_it_was() -> None:
    said = answer_message(f"So: {CALL}{CALL}", "", number=3, tools=True)

    shown = sent(said)
    asked = read_request(
        {"messages": [USER, shown | {"refusal": None}, {"role": "tool", "content": "2"}]},
        retry=False,
    )

    assert [call["id"] for call in shown["tool_calls"]] == ["call_3_0", "call_3_1"]  # type: ignore[index,union-attr,call-overload]
    assert shown["content"] == "So:"
    assert shown["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}  # type: ignore[index,call-overload]
    assert asked.messages[1] == said


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        (CALL, False),
        ("<tool_call>no json</tool_call>", True),
        ("<tool_call>[1]", True),
        ("", True),
        (CALL.replace("1", "[" * 5000 + "]" * 5000), True),
        (CALL.replace("1", "9" * 5000), True),
        (CALL.replace("add", r"\ud800"), True),
    ],
    ids=["no tools", "no JSON", "no end", "nothing", "nested", "digits", "half a character"],
)
def test_what_is_no_call_is_text(text: str, tools: bool) -> None:
    assert answer_message(text, text, number=0, tools=tools) == {
        "role": "assistant",
        "content": text,
    }


def test_arguments_that_are_nested_deeply_are_kept_as_their_text() -> None:
    deep = "[" * 5000
    call: Any = {"id": "1", "function": {"name": "add", "arguments": deep}}

    asked = read_request(
        {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}, retry=False
    )

    assert asked.messages[1]["tool_calls"][0]["function"]["arguments"] == deep


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0]"),
        ({"messages": [USER], "n": 2}, "n"),
        ({"messages": [USER], "stop": ["x"]}, "stop"),
        ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [USER], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [USER], "max_tokens": 0}, "max_tokens"),
        ({"messages": [USER], "tools": "add"}, "tools"),
    ],
)
def test_what_is_not_carried_out_is_refused_by_name(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read_request(wrong, retry=False)

    assert refused.value.status == 400
    assert refused.value.body["error"]["param"] == param


def test_texts_in_parts_and_developers_are_what_templates_know() -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: Any = [{"role": "developer", "content": parts}]

    asked = read_request(
        {"messages": messages, "max_completion_tokens": 5},
        retry=True,
    )

    assert asked.messages == [{"role": "system", "content": "ab"}]
    assert (asked.most, asked.retry, asked.model) == (5, True, "policy")
