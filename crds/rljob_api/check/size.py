"""How large an RLJob may be. Called by `load`, and by the operator before it keeps one.

What a job says in a few kilobytes takes a hundred times that in the objects that are made of it; what is long
belongs into a file that the job names.
"""

import json
from typing import Any

from rljob_api.spec.problems import Problem

MAX_SPEC_BYTES = 128 << 10
"""Of a spec as JSON. A ConfigMap, in which it stands as indented YAML, may have 1 MiB."""


def size_problem(manifest: dict[str, Any]) -> Problem | None:
    """The largest part of a spec that is too large; None where it is not."""
    spec = manifest.get("spec")
    whole = _bytes(spec)
    if whole <= MAX_SPEC_BYTES:
        return None
    path, part, size = "spec", spec, whole
    while inner := _parts(path, part):
        largest = max(inner, key=lambda one: one[2])
        if largest[2] < size / 2:
            break
        path, part, size = largest
    return Problem(
        path,
        f"takes {size} of the spec's {whole} bytes as JSON, where {MAX_SPEC_BYTES} is the limit; put what is "
        "long into a file that the job names",
    )


def _parts(path: str, value: Any) -> list[tuple[str, Any, int]]:
    if isinstance(value, dict):
        return [(f"{path}.{key}", part, _bytes(part)) for key, part in value.items()]
    if isinstance(value, list):
        return [(f"{path}[{index}]", part, _bytes(part)) for index, part in enumerate(value)]
    return []


def _bytes(value: Any) -> int:
    """0 for what JSON cannot say, which others refuse."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False, skipkeys=True)
    except (ValueError, RecursionError):
        return 0
    return len(text.encode(errors="replace"))
