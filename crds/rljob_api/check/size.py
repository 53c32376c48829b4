"""Limit the size of an RLJob. Called by `load`, and by the operator before it stores one.

A few kilobytes of a job take a hundred times that in the objects created from it, so long content belongs
into a file that the job names. Deep nesting would overflow Python's stack in every reader.
"""

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from rljob_api.spec.problems import Problem

MAX_SPEC_BYTES = 128 << 10
"""Largest size of a spec as JSON. A ConfigMap, which stores it as indented YAML, may have 1 MiB."""
MAX_LEVELS = 50
"""Most levels of nested lists and mappings in a spec. The deepest field, in a pod's template, has some 20."""
SHOWN_LEVELS = 4
"""Levels that are shown of the path of a value that is nested too deeply."""


def size_problem(manifest: dict[str, Any]) -> Problem | None:
    """Return the value of a spec that is nested too deeply, or the largest value of a spec that is too large;
    None otherwise."""
    spec = manifest.get("spec")
    if _is_deeper(spec, MAX_LEVELS):
        return _depth_problem(spec)
    total = _bytes(spec)
    if total <= MAX_SPEC_BYTES:
        return None
    path, value, size = "spec", spec, total
    while inner := _items(path, value):
        sizes = [_bytes(one) for _, one in inner]
        largest = max(sizes)
        if largest < size / 2:
            break
        (path, value), size = inner[sizes.index(largest)], largest
    return Problem(
        path,
        f"takes {size} of the spec's {total} bytes as JSON, where {MAX_SPEC_BYTES} is the limit; put what is "
        "long into a file that the job names",
    )


def _depth_problem(spec: Any) -> Problem:
    path, value = "spec", spec
    for above in range(1, SHOWN_LEVELS):
        inner = _items(path, value)
        path, value = next(one for one in inner if _is_deeper(one[1], MAX_LEVELS - above))
    return Problem(path, f"is nested deeply: a spec has at most {MAX_LEVELS} levels, most have 8")


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and mappings are nested more deeply than `levels`. It does not recurse."""
    layer = [value]
    for _ in range(levels):
        inner = (one.values() if isinstance(one, dict) else one for one in layer if _is_level(one))
        layer = [value_ for values in inner for value_ in values]
    return any(map(_is_level, layer))


def _is_level(value: Any) -> bool:
    return isinstance(value, dict | list)


def _items(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}.{key}", item) for key, item in value.items()]
    if isinstance(value, list):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return []


def _bytes(value: Any) -> int:
    try:
        return len(to_json(value, fallback=str))
    except PydanticSerializationError:  # half of a surrogate pair, which an API server never has
        return len(json.dumps(value, default=str, skipkeys=True))
