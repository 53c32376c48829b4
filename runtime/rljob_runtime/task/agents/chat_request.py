"""A request for a chat completion, read, and the message that answers it: the form that docs/agents.md
describes. No torch.

Two messages are the same where these forms are equal: what clients add or leave out of a message that they
were given (`refusal`, None) says nothing.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from rljob_api.spec.json_text import parse_json

Message = dict[str, Any]
"""`role`, `content` (a text), and where there are any `tool_calls` (`id`, `type`, `function` with `name` and
`arguments`, an object or a text that is no JSON), `tool_call_id` and `name`."""

ROLES = ("system", "developer", "user", "assistant", "tool")
CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
REFUSED = ("stop", "logit_bias", "response_format", "logprobs", "functions", "audio")
"""Parameters that would change what is drawn or told, and are not carried out."""


class RequestRefused(Exception):
    """Answered as an error of OpenAI's form, with this status. code: of the error."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = "authentication_error" if status == 401 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """most: tokens of the answer, None without a limit of its own. retry: whether the client says that it
    asks again what it asked."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    most: int | None
    model: str
    stream: bool
    usage: bool
    retry: bool

    def same(self, other: "ChatRequest") -> bool:
        """Whether both ask for the same."""
        return (self.messages, self.tools, self.most) == (other.messages, other.tools, other.most)


def read_request(body: JsonValue, *, retry: bool) -> ChatRequest:
    """Raises RequestRefused with the parameter that is wrong."""
    if not isinstance(body, dict):
        raise RequestRefused("the body is no JSON object")
    if body.get("n") not in (None, 1):
        raise RequestRefused("n must be 1; ask again for another answer", param="n")
    for name in REFUSED:
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
    """The assistant's message of a turn. text: all of the turn; content: up to a stop string. number: of the
    turn, for names of calls. tools: whether calls are looked for: `<tool_call>` with an object of `name` and
    `arguments`, as Qwen's and Hermes' templates ask for; where one is none, the turn is text."""
    found = CALL.findall(text) if tools else []
    calls = [_call(part, f"call_{number}_{place}") for place, part in enumerate(found)]
    if not calls or None in calls:
        return {"role": "assistant", "content": content}
    before = text[: text.index("<tool_call>")]
    return {"role": "assistant", "content": before.strip(), "tool_calls": calls}


def sent(message: Message) -> dict[str, JsonValue]:
    """An answer's message as it goes to the client: arguments are texts there, and no content is null."""
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


def _messages(found: JsonValue) -> list[Message]:
    if not isinstance(found, list) or not found:
        raise RequestRefused("messages must be a list with one message at least", param="messages")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(found)]


def _message(found: JsonValue, param: str) -> Message:
    role = found.get("role") if isinstance(found, dict) else None
    if not isinstance(found, dict) or role not in ROLES:
        raise RequestRefused(f"{param}.role must be one of {', '.join(ROLES)}", param=param)
    read: Message = {
        "role": "system" if role == "developer" else role,
        "content": _content(found.get("content"), f"{param}.content"),
    }
    if calls := found.get("tool_calls"):
        try:
            read["tool_calls"] = [_read_call(call) for call in calls]  # type: ignore[union-attr]
        except (TypeError, KeyError, AttributeError) as error:
            raise RequestRefused(
                f"{param}.tool_calls must be a list of calls of functions", param=param
            ) from error
    return read | {key: found[key] for key in ("tool_call_id", "name") if found.get(key)}


def _read_call(call: Any) -> Message:
    function = call["function"]
    name, arguments = str(function["name"]), str(function.get("arguments") or "{}")
    try:
        given = parse_json(arguments)
    except ValueError:
        given = arguments
    function = {"name": name, "arguments": given}
    return {"id": str(call.get("id", "")), "type": "function", "function": function}


def _content(found: JsonValue, param: str) -> str:
    if found is None:
        return ""
    if isinstance(found, str):
        return found
    parts = found if isinstance(found, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefused(
            f"{param} must be a text, or parts of type text: the policy is shown nothing else",
            param=param,
        )
    return "".join(map(str, texts))


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
