"""How large an RLJob may be. Called by `load`, and by the operator before it keeps one.

What a job says in a few kilobytes takes a hundred times that in the objects that are made of it; what is long
belongs into a file that the job names. What is nested deeply ends Python's stack wherever it is read.
"""

from typing import Any

from rljob_api.spec.problems import Problem

MAX_SPEC_BYTES = 128 << 10
"""Of a spec as JSON. A ConfigMap, in which it stands as indented YAML, may have 1 MiB."""
MAX_LEVELS = 50
"""Of a spec. The deepest field, of a pod's template, has about 20."""
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
    for below in range(1, SHOWN_LEVELS):
        deep = [one for one in _parts(path, part) if _is_deeper(one[1], MAX_LEVELS - below)]
        path, part = deep[0]
    return Problem(path, f"is nested deeply: a spec has at most {MAX_LEVELS} levels, most have 8")


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether there is anything after so many levels of lists and mappings. Without recursion."""
    layer = [value]
    for _ in range(levels):
        layer = [inner for one in layer for _, inner in _parts("", one)]
    return bool(layer)


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}.{key}", part) for key, part in value.items()]
    if isinstance(value, list):
        return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    return []


def _bytes(value: Any) -> int:
    """About what it takes as JSON. `json.dumps` raises for a number of 5,000 digits, which would hide what
    is large beside it."""
    if isinstance(value, dict):
        return 4 * len(value) + sum(_bytes(key) + _bytes(part) for key, part in value.items())
    if isinstance(value, list):
        return 2 * len(value) + sum(map(_bytes, value))
    if isinstance(value, str):
        return 2 + len(value.encode(errors="replace"))
    if isinstance(value, int):
        return 1 + value.bit_length() // 3
    return 4
