"""Map refusals of the API server to errors for the user of a command. Pure."""

import json
import re
from dataclasses import dataclass

from rljob_runtime.errors import ClusterError, NoAnswer, NotThere
from rljob_runtime.report.display.wording import one_line

MESSAGE_CHARACTERS = 500
HANDSHAKE = re.compile(r"Handshake status (\d+) .*-\+-\+- (.*)", re.DOTALL)
"""A refused exec in the message of the websocket client: status, headers, body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One call. resource: as in a role, e.g. pods/exec. namespace: "" for cluster-scoped calls. where:
    context and address."""

    verb: str
    resource: str
    name: str
    namespace: str
    where: str

    @property
    def object_text(self) -> str:
        """Return the object of the call, such as `pods/log job-0-head in namespace research`."""
        return f"{self.resource} {self.name}".strip() + self.namespace_text

    @property
    def namespace_text(self) -> str:
        """Return ` in namespace research`, "" for cluster-scoped calls."""
        return f" in namespace {self.namespace}" if self.namespace else ""


def refusal(request: ApiRequest, code: int, body: str) -> ClusterError:
    """Return the error for an answer with this status code. code: 0 without an answer."""
    if code == 0 and (handshake := HANDSHAKE.search(body)):
        code, body = int(handshake[1]), handshake[2]
    message, is_status = _parse_body(body)
    if code == 401:
        return ClusterError(
            f"the API server does not know you ({request.where}); log in again or use another --context"
        )
    if code == 403:
        forbidden = message if "forbidden" in message else f"forbidden: {message}"
        return ClusterError(
            f"{forbidden}; ask for a role that may {request.verb} {request.resource}{request.namespace_text}"
        )
    if code == 404 and not is_status and "rljobs" in request.resource:
        return ClusterError(
            f"the cluster knows no RLJobs ({request.where}): its CustomResourceDefinition is not "
            "installed; install the operator's chart, or use another --context"
        )
    if code == 404:
        return NotThere(f"{request.object_text} does not exist ({request.where})")
    if code in (0, 410, 429) or code >= 500:
        return NoAnswer(
            f"{request.where} cannot {request.verb} {request.object_text} now: {code or ''} {message}"
        )
    return ClusterError(f"{request.verb} {request.object_text}: {code} {message}")


def no_answer(request: ApiRequest, error: Exception) -> NoAnswer:
    """Return the error for a call that was not answered."""
    cause = getattr(error, "reason", None) or error  # urllib3 wraps the error of the socket
    return NoAnswer(
        f"no answer from the API server ({request.where}): {type(cause).__name__}: "
        f"{one_line(str(cause))[:MESSAGE_CHARACTERS]}; is the cluster running, and reachable from here?"
    )


def _parse_body(body: str) -> tuple[str, bool]:
    """Return (message, whether the body is a Kubernetes Status)."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return one_line(str(status.get("message", "")))[:MESSAGE_CHARACTERS], True
    return one_line(body.strip())[:MESSAGE_CHARACTERS], False
