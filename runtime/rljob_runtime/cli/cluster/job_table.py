"""`rljob status` without a name: a namespace's jobs, one per line, as `kubectl get rljobs` prints them."""

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rljob_runtime.cli.cluster.job_facts import Manifest, age, phase, seconds_since
from rljob_runtime.report.display.wording import count, figure

PHASE_STYLES = {
    "Running": "cyan",
    "Succeeded": "green",
    "Failed": "bold red",
    "Invalid": "bold red",
    "Queued": "yellow",
    "Evicting": "yellow",
    "Restarting": "yellow",
    "Suspending": "yellow",
    "Suspended": "yellow",
}
UNKNOWN = "–"


def jobs_table(jobs: Sequence[Manifest], *, unix_s: float) -> Table:
    """Return the table of jobs. unix_s: the current time."""
    table = plain_table()
    table.add_column("name", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    for name in ("step", "reward", "tokens/s", "devices", "restarts", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in sorted(jobs, key=lambda job: str(job["metadata"]["name"])):
        status, job_phase = job.get("status", {}), phase(job)
        progress = status.get("progress", {})
        table.add_row(
            job["metadata"]["name"],
            Text(job_phase, style=PHASE_STYLES.get(job_phase, "")),
            f"{progress['step']}/{progress['totalSteps']}" if progress else UNKNOWN,
            or_unknown(progress.get("reward"), figure),
            or_unknown(progress.get("tokensPerSecond"), count),
            status.get("devices", UNKNOWN),
            str(status.get("restarts", 0)),
            age(seconds_since(job["metadata"]["creationTimestamp"], unix_s)),
        )
    return table


def plain_table() -> Table:
    """Return a table with a dim header and no frame."""
    return Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="dim", show_edge=False
    )


def or_unknown(value: float | None, text_of: Callable[[float], str]) -> str:
    """Format the number; `–` for None."""
    return UNKNOWN if value is None else text_of(value)
