"""Names and docstrings of the product that say nothing, refused: `check_names.py`. For `make check`.

A name says what a value is: `ready_rows`, not `found`. A class name stands once in the product. A docstring
is a sentence that a reader understands without the line above it.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("crds", "operator", "runtime")
VAGUE = frozenset({
    "asked", "beside", "found", "given", "half", "held", "kept", "look", "made", "met", "now", "own", "part",
    "piece", "place", "rest", "say", "seen", "tell", "thing", "together", "told", "wanted", "way", "what",
    "whole",
})  # fmt: skip
DATA = {
    "crds/rljob_api/topology/elastic.py": {"wanted"},
    "crds/rljob_api/topology/fewer_replicas.py": {"wanted"},
    "operator/rljob_operator/driver/progress.py": {"told"},
    "runtime/rljob_runtime/dock/wire/messages.py": {"held", "seen", "told"},
    "runtime/rljob_runtime/processes/holder.py": {"kept", "told"},
    "runtime/rljob_runtime/processes/link.py": {"kept", "told"},
    "runtime/rljob_runtime/processes/placement.py": {"place"},
    "runtime/rljob_runtime/record/event_types.py": {"wanted"},
    "runtime/rljob_runtime/report/analysis/remedies.py": {"part"},
    "runtime/rljob_runtime/report/display/busy.py": {"whole"},
    "runtime/rljob_runtime/worker/transfers.py": {"part"},
}
"""Vague names that are keys of messages, events, status or JSON: to rename one changes what others read."""
FRAGMENT = re.compile(r"(Of|That|With|As|In|By|Whom|Whose|Until|For)\b")
FEWEST_WORDS = 4


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each variable, parameter and function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def fragments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, first sentence) of each docstring that is no sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            sentence = (ast.get_docstring(node) or "").partition("\n\n")[0]
            if sentence and (len(sentence.split()) < FEWEST_WORDS or FRAGMENT.match(sentence)):
                yield node.lineno, sentence


def problems() -> Iterator[str]:
    """Yield a line for each name or docstring to mend, with its file and line."""
    classes: defaultdict[str, list[str]] = defaultdict(list)
    allowed = {(file, name) for file, names in DATA.items() for name in names}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        file, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
        vague = [(line, name) for line, name in bound_names(tree) if name.strip("_") in VAGUE]
        for line, name in vague:
            if (file, name) not in allowed:
                yield f"{file}:{line}: {name!r} does not say what it is"
        allowed -= {(file, name) for name in DATA.get(file, set()) & {name for _, name in vague}}
        yield from (f"{file}:{line}: no sentence: {text!r}" for line, text in fragments(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{file}:{node.lineno}")
    for name, places in classes.items():
        if len(places) > 1:
            yield f"class {name} stands {len(places)} times: {', '.join(places)}"
    yield from (
        f"{file}: {name!r} is in DATA of {__file__}, and nowhere else" for file, name in allowed
    )


if __name__ == "__main__":
    lines = list(problems())
    sys.exit("\n".join(lines) if lines else 0)
