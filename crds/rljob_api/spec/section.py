"""The base of every model of the API: camelCase in YAML, snake_case in Python.

Unknown keys are errors, and the docstring beneath a field is its help text in the CRD.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

QUANTITY_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"


class Section(BaseModel):
    """One object of the resource. Frozen: a spec never changes after it was parsed.

    Strict: "3" is no number, as for the Kubernetes API server.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


@dataclass(frozen=True, slots=True)
class FirstFault:
    """Annotates a list of which only the first wrong item is reported. pydantic's `FailFast` has no hash,
    which a union needs."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema: Any = handler(source)
        failing_fast: core_schema.CoreSchema = schema | {"fail_fast": True}
        return failing_fast


def parse_quantity(text: str) -> int:
    """Return the bytes of a Kubernetes quantity such as ``512Mi`` or ``1.5G``. Raises ValueError."""
    match = re.fullmatch(QUANTITY_PATTERN, text)
    if match is None:
        raise ValueError(f"is {text!r}; must be bytes such as 512Mi (units k M G T Ki Mi Gi Ti)")
    unit = match.group(2) or ""
    return int(float(text.removesuffix(unit)) * QUANTITY_UNITS[unit])


def _check_quantity(text: str) -> str:
    parse_quantity(text)
    return text


Quantity = Annotated[
    str,
    Field(max_length=32, json_schema_extra={"pattern": QUANTITY_PATTERN}),
    AfterValidator(_check_quantity),
]
