"""Algorithms of installed packages, by entry point: `acme.opo` under ``rljob.algorithm_params``.

If the package is installed, `spec.algorithm.params` is an instance of its class, and rules, plan and states
follow from it. Elsewhere, as in the operator, it has only the parameters that every algorithm has.
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
"""States that a package's algorithm may use."""
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
    """Placeholder for the names of packages, all of which have a dot."""

    name: Annotated[str, NameOf()]
    """Name of the algorithm, e.g. `acme.opo`."""

    params: PolicyParams = PolicyParams()
    """Parameters that every algorithm has."""

    package_params: Params = None
    """The algorithm's own parameters."""

    @model_validator(mode="after")
    def _use_package_class(self) -> Self:
        """Validate the parameters with the package's class, if the package is installed."""
        params_class = _class_of(self.name)
        if isinstance(params_class, type) and not isinstance(self.params, params_class):
            try:
                params = params_class.model_validate(self._combined_params(self.params))
            except ValidationError:
                return self  # `problems` reports it
            self.__dict__.update(params=params, package_params=self.package_params or {})
        return self

    @field_serializer("params")
    def _shared_params_json(self, params: PolicyParams) -> dict[str, Any]:
        """Return only what was set or resolved: a package may have other defaults."""
        shared = params.model_fields_set & PolicyParams.model_fields.keys()
        return params.model_dump(mode="json", by_alias=True, include=shared)

    @field_serializer("package_params")
    def _package_params_json(self, package_params: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the package's own parameters, or those that were given if it is not installed."""
        package_fields = self.params.model_fields_set - PolicyParams.model_fields.keys()
        return (
            self.params.model_dump(mode="json", by_alias=True, include=package_fields)
            if package_fields
            else package_params
        )

    def _combined_params(self, params: PolicyParams) -> dict[str, Any]:
        return {**(self.package_params or {}), **self._shared_params_json(params)}

    def problems(self) -> Iterator[Problem]:
        """Yield what the installed package finds wrong with the parameters; nothing if it is not
        installed."""
        params_class = _class_of(self.name)
        if isinstance(params_class, str):
            yield Problem(f"{PATH}.name", f"is {self.name!r}, {params_class}")
        elif params_class is not None and not isinstance(self.params, params_class):
            try:
                params_class.model_validate(self._combined_params(self.params))
            except ValidationError as error:
                for detail in error.errors(include_url=False):
                    yield problem_of(detail, root=params_class, prefix=f"{PATH}.packageParams")
        yield from _needs_problems(self.name, self.params)


def _class_of(name: str) -> type[PolicyParams] | str | None:
    """Return the class of the parameters, None unless exactly one package offers it, or a message if it is
    broken."""
    offers = list(
        {entry.value: entry for entry in entry_points(group=ENTRY_POINTS, name=name)}.values()
    )
    if len(offers) != 1:
        return None
    where = f"whose entry point {offers[0].value} ({ENTRY_POINTS})"
    try:
        params_class = offers[0].load()
    except Exception as error:
        return f"{where} cannot be loaded: {type(error).__name__}: {error}"
    if not (isinstance(params_class, type) and issubclass(params_class, PolicyParams)):
        return f"{where} is no subclass of rljob_api.spec.algorithms.policy_params.PolicyParams"
    return params_class


def _needs_problems(name: str, params: PolicyParams) -> Iterator[Problem]:
    """Require known states, and columns that one of the states writes."""
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
