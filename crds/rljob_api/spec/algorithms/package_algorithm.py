"""Algorithms of installed packages, by entry point: `acme.opo` under ``rljob.algorithm_params``.

Where the package is installed, `spec.algorithm.params` is an instance of its class, and rules, plan and
states follow from it; elsewhere, as in the operator, it has what every algorithm has.
"""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, Self

from pydantic import ValidationError, field_serializer, model_validator

from rljob_api.spec.algorithms.policy_params import NamedAlgorithm, PolicyParams
from rljob_api.spec.extensions import NameOf, Params
from rljob_api.spec.messages import problem_of
from rljob_api.spec.problems import Problem

ENTRY_POINTS = "rljob.algorithm_params"
PATH = "spec.algorithm"
STATES = ("generate", "reward", "reference", "teacher", "values", "critic", "update")
"""What a package's algorithm may choose its states among."""
WRITERS = {
    "rollout_logprobs": "generate",
    "reward": "reward",
    "reference_logprobs": "reference",
    "teacher_logprobs": "teacher",
    "values": "values",
}
"""Columns that an update can read, and the states that write them."""


class PackageAlgorithm(NamedAlgorithm):
    """An algorithm of an installed package."""

    UNION_NAME: ClassVar[str] = "PACKAGE.NAME"
    """Stands for its names, all of which have a dot."""

    name: Annotated[str, NameOf()]
    """Name of the algorithm, e.g. `acme.opo`."""

    params: PolicyParams = PolicyParams()
    """What every algorithm has."""

    package_params: Params = None
    """The algorithm's own parameters."""

    @model_validator(mode="after")
    def _as_the_package_says(self) -> Self:
        found = _class_of(self.name)
        if isinstance(found, type) and not isinstance(self.params, found):
            try:
                made = found.model_validate(self._given(self.params))
            except ValidationError:
                return self  # `package_problems` tells of it
            self.__dict__.update(params=made, package_params=self.package_params or {})
        return self

    @field_serializer("params")
    def _shared(self, params: PolicyParams) -> dict[str, Any]:
        """Only what was given or resolved: a package may have other defaults."""
        shared = params.model_fields_set & PolicyParams.model_fields.keys()
        return params.model_dump(mode="json", by_alias=True, include=shared)

    @field_serializer("package_params")
    def _own(self, given: dict[str, Any] | None) -> dict[str, Any] | None:
        own = self.params.model_fields_set - PolicyParams.model_fields.keys()
        return self.params.model_dump(mode="json", by_alias=True, include=own) if own else given

    def _given(self, params: PolicyParams) -> dict[str, Any]:
        return {**(self.package_params or {}), **self._shared(params)}

    def problems(self) -> Iterator[Problem]:
        """What the installed package says against the parameters; nothing where it is not installed."""
        found = _class_of(self.name)
        if isinstance(found, str):
            yield Problem(f"{PATH}.name", f"is {self.name!r}, {found}")
        elif found is not None and not isinstance(self.params, found):
            try:
                found.model_validate(self._given(self.params))
            except ValidationError as error:
                for detail in error.errors(include_url=False):
                    yield problem_of(detail, root=found, prefix=f"{PATH}.packageParams")
        yield from _needs_problems(self.name, self.params)


def _class_of(name: str) -> type[PolicyParams] | str | None:
    """The class of the parameters; None where not one package offers it, a text where it is broken."""
    offers = list(
        {entry.value: entry for entry in entry_points(group=ENTRY_POINTS, name=name)}.values()
    )
    if len(offers) != 1:
        return None
    where = f"whose entry point {offers[0].value} ({ENTRY_POINTS})"
    try:
        found = offers[0].load()
    except Exception as error:
        return f"{where} cannot be loaded: {type(error).__name__}: {error}"
    if not (isinstance(found, type) and issubclass(found, PolicyParams)):
        return f"{where} is no subclass of rljob_api.spec.algorithms.policy_params.PolicyParams"
    return found


def _needs_problems(name: str, params: PolicyParams) -> Iterator[Problem]:
    """States and columns that there are, each column written by one of the states."""
    path = f"{PATH}.name"
    unknown = [state for state in params.states if state not in STATES]
    if unknown or "update" not in params.states:
        wrong = f"needs a state {unknown[0]!r}" if unknown else "has no state 'update'"
        yield Problem(path, f"is {name!r}, which {wrong}; states are {', '.join(STATES)}")
        return
    for column in (*params.fields, *params.scalars):
        if WRITERS.get(column) not in params.states:
            yield Problem(
                path,
                f"is {name!r}, whose update reads the column {column!r}, which none of its states "
                f"{', '.join(params.states)} writes; columns are {', '.join(WRITERS)}",
            )
