"""Parse a request for a chat completion and create the message that answers it, in the form of
docs/agents.md. No torch.

Two messages are the same if these forms are equal. Fields that clients add to a received message or omit
from it (`refusal`, None) are ignored.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from rljob_api.spec.json_text import parse_json

Message = dict[str, Any]
"""A message with `role`, `content` (a text), and optionally `tool_calls`, `tool_call_id` and `name`. A
tool call has `id`, `type` and `function` with `name` and `arguments`: an object, or a text that is not
JSON."""

ROLES = ("system", "developer", "user", "assistant", "tool")
CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
UNSUPPORTED = ("stop", "logit_bias", "response_format", "logprobs", "functions", "audio")
"""Parameters that would change what is drawn or returned, and are not supported."""


class RequestRefused(Exception):
    """Raised to answer a request with an error of OpenAI's form and this status. code: that of the
    error."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = "authentication_error" if status == 401 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A parsed request. most: limit of the answer's tokens, None without a limit. retry: whether the
    client marks it as a repetition of an earlier request."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    most: int | None
    model: str
    stream: bool
    usage: bool
    retry: bool

    def same(self, other: "ChatRequest") -> bool:
        """Return whether both requests have equal messages, tools and limit."""
        return (self.messages, self.tools, self.most) == (other.messages, other.tools, other.most)


def read_request(body: JsonValue, *, retry: bool) -> ChatRequest:
    """Parse the body of a request. Raises RequestRefused with the parameter that is wrong."""
    if not isinstance(body, dict):
        raise RequestRefused("the body is no JSON object")
    if body.get("n") not in (None, 1):
        raise RequestRefused("n must be 1; ask again for another answer", param="n")
    for name in UNSUPPORTED:
        if body.get(name) not in (None, False, {"type": "text"}):
            raise RequestRefused(
                f"{name} is not carried out here; leave it out", param=name, code="unsupported"
            )
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise RequestRefused("tool_choice must be auto or none", param="tool_choice")
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise RequestRefused("max_tokens must be a whole number from 1 on", param="max_tokens")
    options = body.get("stream_options")
    tools = [] if body.get("tool_choice") == "none" else body.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestRefused("tools must be a list of objects", param="tools")
    return ChatRequest(
        messages=_messages(body.get("messages")),
        tools=tools,  # type: ignore[arg-type]
        most=most,
        model=str(body.get("model") or "policy"),
        stream=bool(body.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
        retry=retry,
    )


def answer_message(text: str, content: str, *, number: int, tools: bool) -> Message:
    """Return the assistant's message of a turn.

    text: all of the turn; content: the turn up to a stop string. number: that of the turn, for names of
    calls. tools: whether to look for calls: `<tool_call>` with an object of `name` and `arguments`, as
    Qwen's and Hermes' templates require. If one call is invalid, the turn is text.
    """
    matches = CALL.findall(text) if tools else []
    calls = [_call(match, f"call_{number}_{index}") for index, match in enumerate(matches)]
    if not calls or None in calls:
        return {"role": "assistant", "content": content}
    before = text[: text.index("<tool_call>")]
    return {"role": "assistant", "content": before.strip(), "tool_calls": calls}


def sent(message: Message) -> dict[str, JsonValue]:
    """Return an answer's message as it is sent to the client: arguments become texts, and empty
    content becomes null."""
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        call | {"function": call["function"] | {"arguments": _text(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message["content"] or None, "tool_calls": calls}


def _call(text: str, name: str) -> Message | None:
    try:
        call = parse_json(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    function = {"name": call["name"], "arguments": arguments}
    return {"id": name, "type": "function", "function": function}


def _messages(value: JsonValue) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise RequestRefused("messages must be a list with one message at least", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(value: JsonValue, param: str) -> Message:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(value, dict) or role not in ROLES:
        raise RequestRefused(f"{param}.role must be one of {', '.join(ROLES)}", param=param)
    message: Message = {
        "role": "system" if role == "developer" else role,
        "content": _content(value.get("content"), f"{param}.content"),
    }
    if calls := value.get("tool_calls"):
        try:
            message["tool_calls"] = [_read_call(call) for call in calls]  # type: ignore[union-attr]
        except (TypeError, KeyError, AttributeError) as error:
            raise RequestRefused(
                f"{param}.tool_calls must be a list of calls of functions", param=param
            ) from error
    return message | {key: value[key] for key in ("tool_call_id", "name") if value.get(key)}


def _read_call(call: Any) -> Message:
    function = call["function"]
    name, arguments = str(function["name"]), str(function.get("arguments") or "{}")
    try:
        parsed = parse_json(arguments)
    except ValueError:
        parsed = arguments
    function = {"name": name, "arguments": parsed}
    return {"id": str(call.get("id", "")), "type": "function", "function": function}


def _content(value: JsonValue, param: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [None]
    texts = [item.get("text") if isinstance(item, dict) else None for item in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefused(
            f"{param} must be a text, or parts of type text: the policy is shown nothing else",
            param=param,
        )
    return "".join(map(str, texts))


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
