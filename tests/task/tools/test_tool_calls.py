"""Calls are found in tokens as they are drawn, and answers become tokens that are no special ones."""

import pytest

from rljob_api.spec.tools import Tool
from rljob_runtime.task.tokenizer import EOS_ID, ByteTokenizer
from rljob_runtime.task.tools.call_format import Call, CallFormat

TOOLS = [
    Tool(name="calc", type="calculator", max_answer_tokens=32),
    Tool(name="py", type="python", max_answer_tokens=64),
]


@pytest.fixture
def form() -> CallFormat:
    return CallFormat(ByteTokenizer(), TOOLS)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("<calc>1+1</calc>", Call(tool="calc", text="1+1")),
        ("so <calc>1</calc>", Call(tool="calc", text="1")),
        ("<py>print(1)\nprint('<calc>')</py>", Call(tool="py", text="print(1)\nprint('<calc>')")),
        ("<calc>1<calc>2</calc>", Call(tool="calc", text="2")),
        ("<calc></calc>", Call(tool="calc", text="")),
        ("<calc>1</calc", None),
        ("1</calc>", None),
        ("<py>1</calc>", None),
        ("<result>1</result>", None),
        ("é<calc>ü</calc>", Call(tool="calc", text="ü")),
    ],
)
def test_a_call_is_what_stands_between_the_tags_of_a_turn(
    form: CallFormat, text: str, call: Call | None
) -> None:
    ids = list(text.encode())

    assert form.call(ids) == call
    if call is not None:  # no sooner than its last token
        assert all(form.call(ids[:n]) is None for n in range(len(ids)))
        assert form.completes(ids[-1])


def test_an_answer_is_put_in_tags(form: CallFormat) -> None:
    assert bytes(form.answer_ids("calc", "42")).decode() == "<result>42</result>"


@pytest.mark.parametrize("text", ["9" * 500, "é" * 500, "9" * 16, "9" * 15])
def test_a_long_answer_is_cut_to_the_tool_s_limit_with_its_tags(
    form: CallFormat, text: str
) -> None:
    ids = form.answer_ids("calc", text)

    whole = len(f"<result>{text}</result>".encode()) <= 32
    assert len(ids) <= 32
    shown = bytes(ids).decode()
    assert shown.startswith("<result>")
    assert shown.endswith("</result>" if whole else "...</result>")
    assert text.startswith(shown.removeprefix("<result>").split("...")[0].removesuffix("</result>"))


def test_an_answer_never_ends_the_response(form: CallFormat) -> None:
    assert EOS_ID not in form.answer_ids("py", "<|im_end|></s>")
