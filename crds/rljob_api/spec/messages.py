"""Translate pydantic's errors into problems in the words of the API: value, limit, legal values, remedy.

Called by `load`. Paths are written with the keys of the YAML.
"""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rljob_api.spec.patterns import WORDS
from rljob_api.spec.problems import Problem

Location = tuple[int | str, ...]

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping of keys",
    "model": "a mapping of keys",
}


def problem_of(error: ErrorDetails, *, root: type[BaseModel], prefix: str) -> Problem:
    """Return the problem that one pydantic error describes; prefix: path of `root` within the job."""
    location, tags = _without_tags(root, error["loc"])
    path = path_of(prefix, location)
    kind, value, limits = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(path, _unknown_key(str(location[-1]), _model_at(root, location[:-1], tags)))
    if kind == "missing":
        return Problem(path, f"is missing; {_purpose(root, location, tags)}")
    if kind == "unknown_name":
        legal = [name for model in _models_at(root, location, tags) for name in _names_of(model)]
        if not isinstance(value, Mapping):
            return Problem(path, f"is {show(value)}; must be a mapping of keys")
        algorithm = value.get("name")
        text = f"is {show(algorithm)}{suggestion(str(algorithm), legal)} Legal values: {', '.join(legal)}"
        return Problem(f"{path}.name", text)
    if value is None:
        return Problem(path, "is empty; give it a value or leave the key out")
    return Problem(path, _describe(kind, value, limits, error["msg"]))


def fault_of(error: Exception) -> str:
    """Describe what is wrong with a file besides the job. Of pydantic's errors it describes the first: `field
    is value; must be`."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    path, kind = path_of("", first["loc"]), first["type"]
    if kind == "missing":
        return f"{path} is missing"
    if kind == "unexpected_keyword_argument":
        return f"{path} is not known"
    if not path:
        return first["msg"]
    return f"{path} {_describe(kind, first['input'], first.get('ctx', {}), first['msg'])}"


def path_of(prefix: str, location: Iterable[int | str]) -> str:
    """Return `spec` and ("rewards", 0, "name") as `spec.rewards[0].name`."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)
    return (prefix + "".join(keys)).lstrip(".")


def suggestion(key: str, legal: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if a legal word is close, else a full stop."""
    by_letters = {word.lower(): word for word in legal}
    plain = key.replace("_", "").replace("-", "").lower()
    close = difflib.get_close_matches(plain, by_letters, n=1, cutoff=0.6)
    return f"; did you mean {by_letters[close[0]]!r}?" if close else "."


def _describe(kind: str, value: Any, limits: dict[str, Any], message: str) -> str:
    shown = show(value)
    match kind:
        case "greater_than_equal":
            return f"is {shown}; must be at least {show(limits['ge'])}"
        case "greater_than":
            return f"is {shown}; must be greater than {show(limits['gt'])}"
        case "less_than_equal":
            return f"is {shown}; must be at most {show(limits['le'])}"
        case "less_than":
            return f"is {shown}; must be less than {show(limits['lt'])}"
        case "literal_error":
            legal = limits["expected"].replace(" or ", ", ").replace("'", "").split(", ")
            if len(legal) == 1:
                return f"is {shown}; must be {legal[0]!r}"
            return f"is {shown}{suggestion(str(value), legal)} Legal values: {', '.join(legal)}"
        case "string_pattern_mismatch":
            pattern = limits["pattern"]
            return f"is {shown}; {WORDS.get(pattern, f'must match {pattern}')}"
        case "string_too_short" | "too_short":
            return f"is {shown}; needs at least {limits['min_length']} {_items(kind)}"
        case "string_too_long" | "too_long":
            return f"has {len(value)} {_items(kind)}; at most {limits['max_length']} are allowed"
        case "value_error":
            return str(limits["error"])
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    if stem in KINDS:
        hint = "; leave out the quotes" if stem in ("int", "float") and _quoted(value) else ""
        return f"is {shown}; must be {KINDS[stem]}{hint}"
    return f"is {shown}; {message[0].lower()}{message[1:]}"


PASSWORD = re.compile(r"(?<=://)[^\s/?#@]*@")
"""User and password in an address."""


def show(value: Any) -> str:
    """Format a value for a message: short, text in quotes, mappings by their kind, an address without its
    password."""
    if isinstance(value, dict):
        return "a mapping of keys" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value)) if value else "0"
    text = PASSWORD.sub("***@", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _quoted(value: Any) -> bool:
    return isinstance(value, str) and value.replace(".", "", 1).isdigit()


def _items(kind: str) -> str:
    return "characters" if kind.startswith("string") else "items"


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    legal = [field.alias or name for name, field in model.model_fields.items()] if model else []
    return f"unknown key {key!r}{suggestion(key, legal)} Legal keys: {', '.join(legal)}"


def _purpose(root: type[BaseModel], location: Location, tags: Sequence[str]) -> str:
    model = _model_at(root, location[:-1], tags)
    fields = model.model_fields.values() if model else ()
    text = next((field.description for field in fields if field.alias == location[-1]), None)
    sentence = " ".join((text or "give it a value").split()).rstrip(".")
    return sentence[0].lower() + sentence[1:]


def _without_tags(root: type[BaseModel], location: Location) -> tuple[Location, list[str]]:
    """Return a location as it is in the YAML, and the names that pydantic added for unions by name."""
    yaml_location: list[int | str] = []
    tags: list[str] = []
    for key in location:
        choice = _models_at(root, tuple(yaml_location), tags)
        named = len(choice) > 1 and any(key in _names_of(model) for model in choice)
        if named:
            tags.append(str(key))
        elif key != "[key]":
            yaml_location.append(key)
    return tuple(yaml_location), tags


def _model_at(
    root: type[BaseModel], location: Location, tags: Sequence[str]
) -> type[BaseModel] | None:
    """Return the model that describes the object at `location`, following aliases and list items."""
    return next(iter(_models_at(root, location, tags)), None)


def _models_at(
    root: type[BaseModel], location: Location, tags: Sequence[str]
) -> list[type[BaseModel]]:
    """Return the models that describe the object at `location`: several for a union by name whose name is not
    among the tags."""
    models = [root]
    for key in location:
        if isinstance(key, int):
            continue
        fields = [field for model in models[:1] for field in model.model_fields.values()]
        annotation = next((field.annotation for field in fields if field.alias == key), None)
        members = list(models_in(annotation))
        chosen = [model for model in members if set(_names_of(model)) & set(tags)]
        models = chosen or members
    return models


def _names_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the names by which a union chooses the model; UNION_NAME is the placeholder for names of
    packages."""
    if (placeholder := getattr(model, "UNION_NAME", None)) is not None:
        return (placeholder,)
    name = model.model_fields.get("name")
    literal = name is not None and typing.get_origin(name.annotation) is typing.Literal
    return typing.get_args(name.annotation) if name is not None and literal else ()


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models within `X`, `X | None`, `list[X]` and unions by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) in (list, types.UnionType, typing.Union):
        for argument in typing.get_args(annotation):
            yield from models_in(argument)
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from models_in(typing.get_args(annotation)[0])
