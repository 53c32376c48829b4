"""Logs as JSON lines, each with the job that it concerns.

Called by `main` (`set_up`) and by `queue` (`job_field`); everything else uses `logging` as usual.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

# One line a request or an event at INFO: metrics count those.
QUIET_LOGGERS = ("kopf.objects", "httpx2", "httpcore2", "aiohttp.access")

_job: ContextVar[str | None] = ContextVar("rljob_log_job", default=None)


@contextmanager
def job_field(job: str) -> Iterator[None]:
    """Put job=`namespace/name` into every line that is logged inside, also by tasks started there."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, job if there is one, message, error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if (job := _job.get()) is not None:
            line["job"] = job
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(stream: TextIO, *, level: int = logging.INFO) -> None:
    """Send all logs to `stream` as JSON lines, and replace the root logger's handlers."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
