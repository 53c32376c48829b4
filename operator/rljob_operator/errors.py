"""Errors of the operator: temporary and permanent ones.

    OperatorError
    ├── Temporary(retry_after)   try again, at the earliest after retry_after seconds
    │   ├── Conflict             the object changed since it was read, or exists already
    │   ├── Unreachable          no answer: timeout, broken or refused connection
    │   └── Unavailable          the server answered that it cannot: 401, 429, 5xx
    └── Permanent                a retry changes nothing until a person changes something
        ├── NotFound             no such object
        ├── Forbidden            RBAC, quota or a policy refuses it
        ├── NotOwned             another owner made an object with a child's name
        ├── Invalid              the server understood the request and rejects it as wrong
        ├── Unauthorized         Ray does not take the job's token
        ├── MalformedReport      MindCluster's report of chips cannot be read
        └── LeadershipLost       another operator may act now: this one must not

`queue` retries both kinds; `decide` turns those permanent errors that a user can mend into conditions.
"""


class OperatorError(Exception):
    """Base of all errors that the operator's own calls raise."""


class Temporary(OperatorError):
    """An error that a retry may fix. retry_after: seconds, the least to wait."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Conflict(Temporary):
    """The object changed since it was read, or exists already."""


class Unreachable(Temporary):
    """No answer came, so it is unknown whether the server carried out the request."""


class Unavailable(Temporary):
    """The server answered that it is temporarily unable to do it."""


class Permanent(OperatorError):
    """An error that stays until a user, an administrator or a developer changes something."""


class NotFound(Permanent):
    """The object does not exist."""


class Forbidden(Permanent):
    """RBAC, a quota or a policy refuses it; the message is the server's."""


class Invalid(Permanent):
    """The server rejects the request as wrong; the message is the server's."""


class NotOwned(Permanent):
    """Another owner made an object with the name of one of the job's."""


class Unauthorized(Permanent):
    """Ray does not accept the job's token."""


class MalformedReport(Permanent):
    """A ConfigMap with a report of chips has an unknown format."""


class LeadershipLost(Permanent):
    """The lease could not be renewed in time."""
