"""What a page of a run shows in a browser: of a real run, whatever its figures are."""

from typing import Any

from browser import Browser

READY = "document.documentElement.dataset.ready === 'true'"
DRAWN = "!plots.get(document.getElementById({id!r})).due"
POINTS = "Math.max(...document.getElementById({id!r}).data.map((line) => line.x.length))"


def shown(browser: Browser) -> dict[str, Any]:
    """Of the page that is open: points of each chart, stages of each row of the last step's timeline, rows
    of the dock's tables, texts of the samples, their tokens without figures, links of the traces."""
    browser.wait(READY)
    return {
        "status": browser.tell("document.getElementById('status').textContent"),
        "points": _points(browser),
        "timeline": browser.tell(
            "Object.fromEntries([...document.querySelectorAll('#gantt .row')].map((row) => "
            "[row.textContent, new Set([...row.nextElementSibling.children].map("
            "(block) => block.style.background)).size]))"
        ),
        "stages": browser.tell(
            "[...document.querySelectorAll('#gantt-legend span')].map((name) => name.textContent)"
        ),
        "dock": browser.tell("document.querySelectorAll('#dock-card tbody tr').length"),
        "samples": browser.tell(
            "[...document.querySelectorAll('#group .response .text')].map((text) => text.textContent)"
        ),
        "tokens": browser.tell(
            "[...document.querySelectorAll('#group .tokens')].map((line) => "
            "[...line.children].map((token) => "
            "[token.textContent, token.title.replace(/ -?[\\d.e-]+ · weights' version \\d+$/, '')]))"
        ),
        "traces": browser.tell("[...document.querySelectorAll('#profiles a')].map((a) => a.text)"),
    }


def _points(browser: Browser) -> dict[str, int]:
    """By chart. A live page draws those in sight alone."""
    found = {}
    for chart in browser.tell("[...plots.keys()].map((place) => place.id)"):
        browser.tell(f"document.getElementById({chart!r}).scrollIntoView()")
        browser.wait(DRAWN.format(id=chart))
        found[chart] = browser.tell(POINTS.format(id=chart))
    return found
