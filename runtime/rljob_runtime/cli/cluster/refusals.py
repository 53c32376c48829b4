"""What the API server's refusals mean to whoever typed the command. Pure."""

import json
import re
from dataclasses import dataclass

from rljob_runtime.errors import ClusterError, NoAnswer, NotThere
from rljob_runtime.report.display.wording import one_line

MESSAGE_CHARACTERS = 500
HANDSHAKE = re.compile(r"Handshake status (\d+) .*-\+-\+- (.*)", re.DOTALL)
"""A refused exec, as the websocket client words it: status, headers, body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call. resource: as in a role, e.g. pods/exec. namespace: "" of the whole cluster. where: context
    and address."""

    verb: str
    resource: str
    name: str
    namespace: str
    where: str

    @property
    def what(self) -> str:
        """`pods/log job-0-head in namespace research`."""
        return f"{self.resource} {self.name}".strip() + self.place

    @property
    def place(self) -> str:
        """` in namespace research`; nothing for the whole cluster."""
        return f" in namespace {self.namespace}" if self.namespace else ""


def refusal(asked: Asked, code: int, body: str) -> ClusterError:
    """The error for an answer of this status. code: 0 where there was none."""
    if code == 0 and (handshake := HANDSHAKE.search(body)):
        code, body = int(handshake[1]), handshake[2]
    message, is_status = _said(body)
    if code == 401:
        return ClusterError(
            f"the API server does not know you ({asked.where}); log in again or use another --context"
        )
    if code == 403:
        forbidden = message if "forbidden" in message else f"forbidden: {message}"
        return ClusterError(
            f"{forbidden}; ask for a role that may {asked.verb} {asked.resource}{asked.place}"
        )
    if code == 404 and not is_status and "rljobs" in asked.resource:
        return ClusterError(
            f"the cluster knows no RLJobs ({asked.where}): its CustomResourceDefinition is not "
            "installed; install the operator's chart, or use another --context"
        )
    if code == 404:
        return NotThere(f"{asked.what} does not exist ({asked.where})")
    if code in (0, 410, 429) or code >= 500:
        return NoAnswer(
            f"{asked.where} cannot {asked.verb} {asked.what} now: {code or ''} {message}"
        )
    return ClusterError(f"{asked.verb} {asked.what}: {code} {message}")


def no_answer(asked: Asked, error: Exception) -> NoAnswer:
    """The error for a call that was not answered."""
    cause = getattr(error, "reason", None) or error  # urllib3 wraps what the socket said
    return NoAnswer(
        f"no answer from the API server ({asked.where}): {type(cause).__name__}: "
        f"{one_line(str(cause))[:MESSAGE_CHARACTERS]}; is the cluster running, and reachable from here?"
    )


def _said(body: str) -> tuple[str, bool]:
    """(message, whether the body is a Kubernetes Status)."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return one_line(str(status.get("message", "")))[:MESSAGE_CHARACTERS], True
    return one_line(body.strip())[:MESSAGE_CHARACTERS], False
