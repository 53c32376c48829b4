"""Errors of the runtime.

RljobError
├── ConfigError        the user's job or files cannot work; exit code 2
│   └── PictureError   a picture of a row cannot be used
├── DockError          the transfer dock
│   ├── DockTimeout    a wait ended at its deadline
│   ├── DockFull       a warehouse stayed full until the producer's deadline
│   ├── DockLost       rows are gone: their warehouse restarted, or their batch was dropped
│   ├── DockStale      rows are from weights that are older than the claim accepts
│   └── DockRefused    a message was refused: token, version, stale attempt, unknown row or column
├── WeightsError       tensors of a model directory are wrong, missing or extra
├── WorkerError        a device worker failed or vanished
│   ├── DeadlineError  processes did not finish a request in time; exit code 5
│   └── WorkerFailed   a worker died, or raised an error that is not rljob's
├── DeviceMemoryError  tensors do not fit on a device
├── VersionError       the pods of a job have different software
├── ScaleRefused       a requested number of rollout devices that the job cannot have
├── RewardError        every reward of a step failed
├── ServiceError       a network service of a reward gave no valid answer
├── CheckpointError    a checkpoint is missing, incomplete or from another job
│   └── CheckpointDamaged  a file of it differs from what was written
├── StorageError       remote storage could not be read or written
├── FolderInUse        another process trains in the run's folder
├── GuardStop          a guard's alarm ended the run; exit code 4
└── ClusterError       a Kubernetes cluster was not reached, or refused a request; exit code 2
    ├── NotThere       the requested object does not exist
    └── NoAnswer       the API server could not be reached, or was silent too long
"""

import re

TIMED_OUT = re.compile(r"timed? ?out|within [\d.]+ s\b|was silent for", re.IGNORECASE)
"""Matches timeouts in messages of torch's collectives and stores, and in rljob's messages about them."""

CUT_OFF = re.compile(
    r"is gone|closed by peer|connection (was )?(closed|reset)|broken pipe|actor (died|is unavailable)",
    re.IGNORECASE,
)
"""Matches messages of processes that communicated with one that has ended."""


class RljobError(Exception):
    """Base of all errors that rljob raises deliberately."""


class ConfigError(RljobError):
    """The user's job or files cannot work as written."""


class PictureError(ConfigError):
    """A picture of a row cannot be used. fault: the message without the row, for callers that name the row
    themselves."""

    def __init__(self, message: str, *, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault


class DockError(RljobError):
    """The transfer dock could not carry out a request."""


class DockTimeout(DockError):
    """A wait on the dock ended at its deadline; the message names what it waited for."""


class DockFull(DockError):
    """A warehouse stayed full until the producer's deadline."""


class DockLost(DockError):
    """Rows are gone: their warehouse restarted, or their batch was dropped; put them again."""


class DockStale(DockError):
    """Rows are from weights that are older than the claim accepts; generate them again."""


class DockRefused(DockError):
    """A message was refused: wrong token or version, stale attempt, unknown row or column."""


class WeightsError(RljobError):
    """Tensors of a model directory are wrong, missing or extra; the message names them all."""


class WorkerError(RljobError):
    """A device worker failed or vanished."""


class DeadlineError(WorkerError):
    """Processes did not finish a request in time. stage: the request."""

    def __init__(self, message: str, *, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class WorkerFailed(WorkerError):
    """A worker died, or raised an error that is not rljob's. cause: the error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class DeviceMemoryError(RljobError):
    """Tensors do not fit on a device; the message names the device, the tensors, bytes and limit."""


class VersionError(RljobError):
    """The nodes of a run do not have the same rljob, Ray and Python."""


class ScaleRefused(RljobError):
    """The job cannot have that number of rollout devices. conflict: it cannot have any number but its own."""

    def __init__(self, message: str, *, conflict: bool) -> None:
        super().__init__(message)
        self.conflict = conflict


class RewardError(RljobError):
    """Every reward of a step failed."""


class ServiceError(RljobError):
    """A network service that a reward uses gave no valid answer."""


class CheckpointError(RljobError):
    """A checkpoint is missing, incomplete or belongs to another job."""


class CheckpointDamaged(CheckpointError):
    """A file of a checkpoint differs from what was written; the message names it."""


class StorageError(RljobError):
    """Remote storage could not be read or written, or not in time; the message names the URI."""


class FolderInUse(RljobError):
    """Another process trains in the run's folder."""


class GuardStop(RljobError):
    """A guard's alarm ended the run (spec.guards)."""


class ClusterError(RljobError):
    """A Kubernetes cluster cannot be reached, or refuses a request."""


class NotThere(ClusterError):
    """The requested object does not exist in the cluster."""


class NoAnswer(ClusterError):
    """The API server could not be reached, or was silent too long; a retry may succeed."""


def describe(error: Exception) -> str:
    """Return the message of an error. For an error that a worker raised, omit the wrapper that carried it
    here."""
    cause = getattr(error, "cause", None)
    inner = cause if isinstance(cause, Exception) else error
    if isinstance(inner, RljobError):
        return str(inner)
    return f"{type(inner).__name__}: {inner}"


def stage_of_deadline(error: BaseException) -> str:
    """Return where a wait timed out: a stage, `dock` or `collective`; "" for any other error."""
    inner = getattr(error, "cause", None) or error
    if isinstance(inner, DeadlineError):
        return inner.stage or "deadline"
    if isinstance(inner, (DockTimeout, DockFull)):
        return "dock"
    timed_out = isinstance(inner, (WorkerError, RuntimeError)) and TIMED_OUT.search(str(inner))
    return "collective" if timed_out else ""
