"""Keep failing output from deciding how a command ends. Called by the entry points before anything is
printed."""

import contextlib
import errno
import io
import os
import sys
from typing import IO, Any


class SafeStream(io.TextIOWrapper):
    """Standard output or error that never fails. Characters without an encoding are replaced; once writing
    fails (a closed pipe, a full disk), later output is dropped. error: the failure, None without one."""

    def __init__(self, stream: IO[str]) -> None:
        assert isinstance(stream, io.TextIOWrapper), f"{stream!r} has no encoding"
        super().__init__(
            stream.detach(),
            encoding=stream.encoding,
            errors="replace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        with self._dropping():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            super().flush()

    @contextlib.contextmanager
    def _dropping(self) -> Any:
        try:
            yield
        except OSError as error:
            self.error = error
            # Buffered output would be written again when the process ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def reopen_closed() -> None:
    """Redirect standard files that were closed at the start to /dev/null: otherwise another file would get
    their descriptors and receive the output. Called before any other file is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (as the process)


def install_safe_streams() -> None:
    """Replace this process's standard output and error by streams that do not fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream))


def output_error() -> OSError | None:
    """Return why standard output could not be written; None where it could, or its reader closed the pipe."""
    error = sys.stdout.error if isinstance(sys.stdout, SafeStream) else None
    return None if error is None or error.errno == errno.EPIPE else error
