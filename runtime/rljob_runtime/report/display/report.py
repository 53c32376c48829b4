"""Writes `report.html` of a run: one file that opens offline and loads nothing from the network.

Reads the run folder's events and resolved spec; called at the end of a run and by `rljob report`. The page's
texts, style and behaviour are in `report.html`, `report.css`, `plots.js` and `report.js` beside this file;
`rljob watch --web` serves the same page with `live.js`.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from rljob_runtime.errors import ConfigError
from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.history import RunHistory

LIBRARY = "plotly.js"
"""Path of Plotly on the server of a live page."""


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` from the content of the folder and return its path.

    Works for a run that continues or was interrupted. Raises ConfigError without an event log.
    """
    source = run_dir / "events.jsonl"
    if not source.is_file():
        raise ConfigError(f"{source} does not exist; name the folder of a run (rljob report DIR)")
    spec = run_dir / "rljob.yaml"
    page = render(
        RunHistory.read(source), spec.read_text(errors="replace") if spec.exists() else ""
    )
    path = run_dir / "report.html"
    draft = path.with_suffix(".html.part")
    draft.write_text(page, encoding="utf-8")
    draft.replace(path)
    return path


def render(history: RunHistory, spec: str) -> str:
    """Render the page. All texts of the run are data, which the page displays but never executes."""
    return page_of(
        ["plots.js", "report.js"],
        title=f"{html.escape(history.name)} · rljob report",
        subject="run report",
        data=document(history, spec),
        made="Made from <code>events.jsonl</code> by <code>rljob report</code>. Opens offline.",
        live="",
    )


def render_live() -> str:
    """Render the same page without data and Plotly.

    It requests Plotly from its server once, and data repeatedly.
    """
    return page_of(
        ["plots.js", "report.js", "live.js"],
        title="rljob watch",
        subject="run, live",
        data=None,
        made="Served by <code>rljob watch</code> or by the run.",
        live=f' data-live="{LIBRARY}?{hashlib.sha256(plotly().encode()).hexdigest()[:16]}"',
    )


def render_login() -> str:
    """Render a small page with a form for the token."""
    here = files("rljob_runtime.report.display")
    script = (here / "login.js").read_text(encoding="utf-8")
    return Template((here / "login.html").read_text(encoding="utf-8")).substitute(
        policy=content_policy(script, connects=True), script=script
    )


def content_policy(*scripts: str, connects: bool) -> str:
    """Return the Content-Security-Policy: run these scripts and, if the page `connects`, request its own
    server."""
    connect_source = "'self'" if connects else "'none'"
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect_source}; base-uri 'none'; form-action 'none'"
    )


def page_of(
    names: Sequence[str], *, live: str, data: object, template: str = "report.html", **words: str
) -> str:
    """Render a page with Plotly, these scripts and JSON-able data. words: other placeholders of its
    template."""
    here = files("rljob_runtime.report.display")
    script = "\n".join((here / name).read_text(encoding="utf-8") for name in names)
    return Template((here / template).read_text(encoding="utf-8")).substitute(
        words,
        live=live,
        policy=content_policy(plotly(), script, connects=bool(live)),
        style=(here / "report.css").read_text(encoding="utf-8"),
        data="" if live else packed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        plotly="" if live else _packed_plotly(),
        script=script,
    )


def packed(text: str) -> str:
    """Compress text by gzip and base 85, which plots.js unpacks: a third of Plotly's size.

    It contains no `<`, so that it can be part of a script element and cannot end it.
    """
    return base64.b85encode(gzip.compress(text.encode(), mtime=0)).decode().replace("<", ",")


@cache
def plotly() -> str:
    """Read the source of the library that draws the charts."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    return packed(plotly())


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
