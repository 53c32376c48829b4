"""`rljob status` without a name: a namespace's jobs, a line each, as `kubectl get rljobs` shows them."""

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


def jobs_table(jobs: Sequence[Manifest], *, now: float) -> Table:
    """The table. now: unix seconds."""
    table = plain_table()
    table.add_column("name", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    for name in ("step", "reward", "tokens/s", "devices", "restarts", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in sorted(jobs, key=lambda job: str(job["metadata"]["name"])):
        status, word = job.get("status", {}), phase(job)
        progress = status.get("progress", {})
        table.add_row(
            job["metadata"]["name"],
            Text(word, style=PHASE_STYLES.get(word, "")),
            f"{progress['step']}/{progress['totalSteps']}" if progress else UNKNOWN,
            shown(progress.get("reward"), figure),
            shown(progress.get("tokensPerSecond"), count),
            status.get("devices", UNKNOWN),
            str(status.get("restarts", 0)),
            age(seconds_since(job["metadata"]["creationTimestamp"], now)),
        )
    return table


def plain_table() -> Table:
    """A table with a quiet head and no frame."""
    return Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="dim", show_edge=False
    )


def shown(value: float | None, text_of: Callable[[float], str]) -> str:
    """The number as text; `–` where there is none."""
    return UNKNOWN if value is None else text_of(value)
