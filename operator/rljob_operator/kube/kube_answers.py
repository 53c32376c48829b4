"""Interpretation of manifests and refusals for `kube_client`, without a network: merge patches and errors."""

import json
from typing import Any

from rljob_operator.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OperatorError,
    Permanent,
    Temporary,
    Unavailable,
    Unreachable,
)

Manifest = dict[str, Any]

RETRY_SECONDS = 2.0
MESSAGE_CHARACTERS = 1000

REFUSALS: dict[int, type[Permanent]] = {
    400: Invalid,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}
# 401 is a service account's token that is being rotated; 410 is a page of a list that is too old.
PASSING = {401, 408, 410, 429}
UNDECLARED = "field not declared in schema"
"""Message of the server, with 500, about a field that server-side apply sets and the kind does not have."""
OLD_DEFINITION = (
    "the cluster's definition of this kind is older than the operator needs: upgrade the one that it comes "
    "with, for a RayCluster KubeRay's CRDs, which helm upgrade leaves as they are"
)


def merge_patch(old: Manifest, new: Manifest) -> Manifest:
    """Return the JSON merge patch (RFC 7396) that turns `old` into `new`; {} if they are equal."""
    patch: Manifest = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif value != before or key not in old:
            patch[key] = value
    return patch


def error_of_answer(code: int, request: str, *, body: str, retry_after: str = "") -> OperatorError:
    """Return the error for an answer of status `code` to a request ("apply Pod ns/name")."""
    message = f"{request}: {code} {_message_of(body)}".rstrip()
    if code == 409:
        return Conflict(message)
    if code == 500 and UNDECLARED in message:
        return Invalid(f"{message}; {OLD_DEFINITION}")
    if code in PASSING or code >= 500:
        return Unavailable(message, retry_after=_seconds(retry_after))
    return REFUSALS.get(code, Permanent)(message)


def no_answer(request: str, why: str) -> Temporary:
    """Return the error for a request whose result is unknown."""
    return Unreachable(f"{request}: no answer ({why})", retry_after=RETRY_SECONDS)


def _message_of(body: str) -> str:
    """Return the message of a metav1.Status, or the text itself."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    text = status.get("message", "") if isinstance(status, dict) else body
    return str(text).strip()[:MESSAGE_CHARACTERS]


def _seconds(retry_after: str) -> float:
    try:
        return max(0.0, float(retry_after))
    except ValueError:  # absent, or a date
        return RETRY_SECONDS
