"""Format findings as a page for the terminal or as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rljob_runtime.cli.doctor.findings import Finding, Status

STYLES = {
    Status.OK: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIPPED: "dim",
}


def page(findings: Sequence[Finding]) -> RenderableType:
    """Return a page: a line per finding with its remedy beneath, and the counts by status."""
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        status = Text(finding.status, style=STYLES[finding.status])
        table.add_row(status, finding.check, Text(finding.text))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", style="dim"))
    return Group(table, Padding(summary(findings), (1, 0, 0, 0)))


def summary(findings: Sequence[Finding]) -> str:
    """Return the counts by status, such as `9 ok, 1 warn, 1 fail`."""
    counts = {status: sum(f.status is status for f in findings) for status in Status}
    return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return one object with `passed` and all findings."""
    lines = [
        {"check": f.check, "status": str(f.status), "text": f.text, "remedy": f.remedy or None}
        for f in findings
    ]
    return {"passed": not any_fails(findings), "findings": lines}


def any_fails(findings: Sequence[Finding]) -> bool:
    """Return whether any finding failed."""
    return any(finding.status is Status.FAIL for finding in findings)
