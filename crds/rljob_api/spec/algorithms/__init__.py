"""The built-in algorithms: one file each, with its parameters and the columns that it needs. Algorithms of
installed packages are found by entry point (`package_algorithm`).

The runtime's implementation of an algorithm (advantages, loss) is the file of the same name in
`rljob_runtime.algorithms`, which also follows from `NAMES`.
"""

from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, create_model

from rljob_api.spec.algorithms.package_algorithm import PackageAlgorithm
from rljob_api.spec.algorithms.policy_params import NamedAlgorithm, PolicyParams
from rljob_api.spec.extensions import is_extension

NAMES = (
    "grpo",
    "dr-grpo",
    "rloo",
    "reinforce-plus-plus",
    "reinforce-plus-plus-baseline",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "ppo",
    "dpo",
    "distillation",
)
"""The built-in algorithms; `dr-grpo` is in `dr_grpo.py`, here and in the runtime."""
DEFAULT = "grpo"


def _params_of(name: str) -> type[PolicyParams]:
    """Return the class of parameters that the algorithm's file defines."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    classes = [one for one in vars(module).values() if isinstance(one, type)]
    defined_here = [one for one in classes if one.__module__ == module.__name__]
    (params,) = [one for one in defined_here if issubclass(one, PolicyParams)]
    return params


def _section_of(name: str) -> type[NamedAlgorithm]:
    """Return the member of the union with these parameters."""
    params, shared = PARAMS[name], NamedAlgorithm.model_fields
    name_field = Field(name if name == DEFAULT else ..., description=shared["name"].description)
    params_field = Field(params(), description=shared["params"].description)
    fields: dict[str, Any] = {"name": (Literal[name], name_field), "params": (params, params_field)}
    title = params.__name__.removesuffix("Params")
    # Fields have their descriptions; pydantic would look for this class in the sources of all callers.
    options = {"use_attribute_docstrings": False}
    return create_model(
        title, __base__=NamedAlgorithm, __doc__=params.__doc__, __cls_kwargs__=options, **fields
    )


def name_of(value: Any) -> str:
    """Return the member of the union that a mapping or a section names, or the default if it names none."""
    named = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    name = DEFAULT if named is None else str(named)
    return PackageAlgorithm.UNION_NAME if is_extension(name) else name


PARAMS = {name: _params_of(name) for name in NAMES}
"""Parameters of each built-in algorithm, by its name."""
SECTIONS = {name: _section_of(name) for name in NAMES}
if TYPE_CHECKING:
    Algorithm = NamedAlgorithm
else:
    members = {**SECTIONS, PackageAlgorithm.UNION_NAME: PackageAlgorithm}
    Algorithm = Annotated[
        reduce(or_, (Annotated[section, Tag(name)] for name, section in members.items())),
        Discriminator(
            name_of,
            custom_error_type="unknown_name",
            custom_error_message="is not the name of an algorithm",
        ),
    ]
"""A union by name: each algorithm has its own parameters."""

__all__ = ["DEFAULT", "NAMES", "PARAMS", "SECTIONS", "Algorithm", "PackageAlgorithm"]
