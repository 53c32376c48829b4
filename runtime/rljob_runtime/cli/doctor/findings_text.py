"""Findings as people and programs read them."""

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
    """A line for each finding, its remedy beneath it, and how many there are of each kind."""
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        word = Text(finding.status, style=STYLES[finding.status])
        table.add_row(word, finding.check, Text(finding.text))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", style="dim"))
    return Group(table, Padding(summary(findings), (1, 0, 0, 0)))


def summary(findings: Sequence[Finding]) -> str:
    """`9 ok, 1 warn, 1 fail`."""
    counts = {status: sum(f.status is status for f in findings) for status in Status}
    return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """One object: whether nothing fails, and each finding."""
    lines = [
        {"check": f.check, "status": str(f.status), "text": f.text, "remedy": f.remedy or None}
        for f in findings
    ]
    return {"passed": not any_fails(findings), "findings": lines}


def any_fails(findings: Sequence[Finding]) -> bool:
    """Whether the cluster, or the job on it, will not do."""
    return any(finding.status is Status.FAIL for finding in findings)
