"""How large an RLJob may be. Called by `load`, and by the operator before it keeps one.

What a job says in a few kilobytes takes a hundred times that in the objects that are made of it; what is long
belongs into a file that the job names. What is nested deeply ends Python's stack wherever it is read.
"""

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from rljob_api.spec.problems import Problem

MAX_SPEC_BYTES = 128 << 10
"""Of a spec as JSON. A ConfigMap, in which it stands as indented YAML, may have 1 MiB."""
MAX_LEVELS = 50
"""Of a spec's lists and mappings in one another. The deepest field, of a pod's template, has about 20."""
SHOWN_LEVELS = 4
"""Of the path of what is nested more deeply than that."""


def size_problem(manifest: dict[str, Any]) -> Problem | None:
    """What of a spec is nested too deeply, or its largest part where it is too large; None for others."""
    spec = manifest.get("spec")
    if _is_deeper(spec, MAX_LEVELS):
        return _depth_problem(spec)
    whole = _bytes(spec)
    if whole <= MAX_SPEC_BYTES:
        return None
    path, part, size = "spec", spec, whole
    while inner := _parts(path, part):
        sizes = [_bytes(one) for _, one in inner]
        largest = max(sizes)
        if largest < size / 2:
            break
        (path, part), size = inner[sizes.index(largest)], largest
    return Problem(
        path,
        f"takes {size} of the spec's {whole} bytes as JSON, where {MAX_SPEC_BYTES} is the limit; put what is "
        "long into a file that the job names",
    )


def _depth_problem(spec: Any) -> Problem:
    path, part = "spec", spec
    for above in range(1, SHOWN_LEVELS):
        inner = _parts(path, part)
        path, part = next(one for one in inner if _is_deeper(one[1], MAX_LEVELS - above))
    return Problem(path, f"is nested deeply: a spec has at most {MAX_LEVELS} levels, most have 8")


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether there are more levels of lists and mappings than that. Without recursion."""
    layer = [value]
    for _ in range(levels):
        inner = (one.values() if isinstance(one, dict) else one for one in layer if _is_level(one))
        layer = [part for parts in inner for part in parts]
    return any(map(_is_level, layer))


def _is_level(value: Any) -> bool:
    return isinstance(value, dict | list)


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}.{key}", part) for key, part in value.items()]
    if isinstance(value, list):
        return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    return []


def _bytes(value: Any) -> int:
    try:
        return len(to_json(value, fallback=str))
    except PydanticSerializationError:  # half of a surrogate pair, which an API server never has
        return len(json.dumps(value, default=str, skipkeys=True))
