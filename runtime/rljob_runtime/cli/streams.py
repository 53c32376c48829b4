"""What a command prints never decides how it ends. Called by the entry points, before anything is printed."""

import contextlib
import errno
import io
import os
import sys
from typing import IO, Any


class Printed(io.TextIOWrapper):
    """Standard output or error: characters that it has no code for are replaced, and once it cannot be
    written any more (a closed pipe, a full disk) the rest is dropped. error: why, None while it can."""

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
            # What is buffered would be written again at the process's end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def open_closed() -> None:
    """Standard files that were closed when the process began lead nowhere: no other file gets their numbers,
    in which what is printed would stand. Called before any other file is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (as the process)


def keep_printing() -> None:
    """Replace this process's standard output and error by those that do not fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, Printed):
            setattr(sys, name, Printed(stream))


def unwritten() -> OSError | None:
    """Return why standard output could not be written; None where it could, or its reader had enough."""
    error = sys.stdout.error if isinstance(sys.stdout, Printed) else None
    return None if error is None or error.errno == errno.EPIPE else error
