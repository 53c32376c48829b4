"""Convert items of a dataset to JSON and back exactly: JSON alone turns tuples into lists.

A dataset's scorer compares items that it made itself, so they must come back unchanged.
"""

from typing import Any

_TUPLE, _PAIRS = "()", "{}"


def to_json(value: Any) -> Any:
    """Return the value in JSON types. Raises TypeError for what is neither JSON nor a tuple."""
    if isinstance(value, tuple):
        return {_TUPLE: [to_json(item) for item in value]}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        plain = all(isinstance(key, str) for key in value) and not value.keys() & {_TUPLE, _PAIRS}
        if plain:
            return {key: to_json(item) for key, item in value.items()}
        return {_PAIRS: [[to_json(key), to_json(item)] for key, item in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be kept in an item")


def from_json(value: Any) -> Any:
    """Return the value that `to_json` converted."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TUPLE}:
        return tuple(from_json(item) for item in value[_TUPLE])
    if value.keys() == {_PAIRS}:
        return {from_json(key): from_json(item) for key, item in value[_PAIRS]}
    return {key: from_json(item) for key, item in value.items()}
