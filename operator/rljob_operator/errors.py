"""Errors of the operator: what passes by itself, and what does not.

    OperatorError
    ├── Temporary(retry_after)   try again, at the earliest after retry_after seconds
    │   ├── Conflict             the object changed since it was read, or exists already
    │   ├── Unreachable          no answer: timeout, broken or refused connection
    │   └── Unavailable          the server answered that it cannot: 401, 429, 5xx
    └── Permanent                trying again changes nothing until somebody changes something
        ├── NotFound             no such object
        ├── Forbidden            RBAC, quota or a policy refuses it
        ├── NotOwned             somebody else made an object of a child's name
        ├── Invalid              the server understood the request and finds it wrong
        ├── Unauthorized         Ray does not take the job's token
        ├── MalformedReport      what MindCluster says of chips cannot be read
        └── LeadershipLost       another operator may act now: this one must not

`queue` retries both kinds; `decide` turns those permanent errors that a user can mend into conditions.
"""


class OperatorError(Exception):
    """Whatever the operator's own calls raise."""


class Temporary(OperatorError):
    """Passes by itself. retry_after: seconds, the least to wait."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Conflict(Temporary):
    """The object changed since it was read, or exists already."""


class Unreachable(Temporary):
    """No answer came, so whether the server did what was asked is unknown."""


class Unavailable(Temporary):
    """The server answered that it cannot do it now."""


class Permanent(OperatorError):
    """Stays until a user, an administrator or a developer changes something."""


class NotFound(Permanent):
    """No such object."""


class Forbidden(Permanent):
    """RBAC, a quota or a policy refuses it; the message is the server's."""


class Invalid(Permanent):
    """The server finds the request wrong; the message is the server's."""


class NotOwned(Permanent):
    """Somebody else made an object of the name that one of the job's has."""


class Unauthorized(Permanent):
    """Ray does not take the job's token."""


class MalformedReport(Permanent):
    """A ConfigMap that tells of chips, in a form that nobody knows."""


class LeadershipLost(Permanent):
    """The lease could not be renewed in time."""
