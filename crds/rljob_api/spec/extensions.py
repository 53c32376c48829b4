"""Names of engines, rewards, data sources and algorithms: the built-in ones, and those of installed packages.

A package's name has a dot (`acme.echo`), so a misspelt built-in name is still refused immediately. Installed
packages are known only where a job runs: `rljob_runtime.extensions` finds them.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from rljob_api.spec.messages import suggestion

MAX_LENGTH = 128
_WORD = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
EXTENSION = rf"{_WORD}(\.{_WORD})+"


@dataclass(frozen=True, slots=True)
class NameOf:
    """Annotates a text that is one of `builtin` or the name of a package's extension."""

    builtin: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """Return the pattern that the API server checks."""
        return f"^({'|'.join((*self.builtin, EXTENSION))})$"

    def schema(self) -> JsonSchemaValue:
        """Return the bounds of the text."""
        return {"pattern": self.pattern, "maxLength": MAX_LENGTH}

    def check(self, name: str) -> str:
        """Return the name. Raises ValueError with the legal ones."""
        if len(name) <= MAX_LENGTH and re.fullmatch(self.pattern, name):
            return name
        if not self.builtin:
            raise ValueError(f"is {name!r}; must be the name of an extension, such as acme.words")
        raise ValueError(
            f"is {name!r}{suggestion(name, self.builtin)} Legal values: {', '.join(self.builtin)}, "
            "and names with a dot of installed extensions"
        )

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema) | self.schema()


Params = Annotated[
    dict[str, JsonValue] | None,
    Field(
        max_length=64,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
        exclude_if=lambda params: params is None,  # a job without them keeps its digest
    ),
]
"""Parameters of an extension, which its package defines."""


def is_extension(name: str) -> bool:
    """Return whether an engine, reward or data source comes from an installed package."""
    return "." in name
