"""Engines, rewards, tools, environments and other extensions from installed packages, found by their entry
points.

`missing_extensions` runs before a job starts. `load` is called by the tables of engines and algorithms, the
scorers and the prompt source. No package is imported before `load`.
`rljob_api.spec.algorithms.package_algorithm` reads the parameters of an algorithm.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points

from typing_extensions import get_protocol_members

from rljob_api.check.environment_rules import environments
from rljob_api.spec.extensions import is_extension
from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_runtime.errors import ConfigError

ALGORITHM = "spec.algorithm.name"


class ExtensionKind(StrEnum):
    """The kinds of extensions; the value is the group of their entry points."""

    ROLLOUT_ENGINE = "rljob.rollout_engines"
    UPDATE_ENGINE = "rljob.update_engines"
    REWARD = "rljob.rewards"
    TOOL = "rljob.tools"
    ENVIRONMENT = "rljob.environments"
    DATA = "rljob.data"
    ALGORITHM = "rljob.algorithms"
    ALGORITHM_PARAMS = "rljob.algorithm_params"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionUse:
    """A field of a job that names an extension. path: of the field in the job."""

    path: str
    kind: ExtensionKind
    name: str


def extension_uses(spec: RLJobSpec) -> Iterator[ExtensionUse]:
    """Yield every extension that a job names."""
    if is_extension(spec.rollout.engine):
        yield rollout_use(spec.rollout.engine)
    if is_extension(spec.update.engine):
        yield update_use(spec.update.engine)
    for i, reward in enumerate(spec.rewards):
        if is_extension(reward.type):
            yield ExtensionUse(
                path=f"spec.rewards[{i}].type", kind=ExtensionKind.REWARD, name=reward.type
            )
    for i, tool in enumerate(spec.rollout.tools):
        if is_extension(tool.type):
            yield tool_use(tool.type, f"spec.rollout.tools[{i}]")
    for path, environment in environments(spec):
        if is_extension(environment.name):
            yield environment_use(environment.name, path)
    if spec.data.source is not None:
        yield data_use(spec.data.source.name)
    if is_extension(spec.algorithm.name):
        yield algorithm_use(spec.algorithm.name)
        yield ExtensionUse(
            path=ALGORITHM, kind=ExtensionKind.ALGORITHM_PARAMS, name=spec.algorithm.name
        )


def rollout_use(name: str) -> ExtensionUse:
    """Return the use of a rollout engine in `spec.rollout.engine`."""
    return ExtensionUse(path="spec.rollout.engine", kind=ExtensionKind.ROLLOUT_ENGINE, name=name)


def update_use(name: str) -> ExtensionUse:
    """Return the use of an update engine in `spec.update.engine`."""
    return ExtensionUse(path="spec.update.engine", kind=ExtensionKind.UPDATE_ENGINE, name=name)


def tool_use(name: str, path: str) -> ExtensionUse:
    """Return the use of a tool's type. path: of the tool in the job."""
    return ExtensionUse(path=f"{path}.type", kind=ExtensionKind.TOOL, name=name)


def environment_use(name: str, path: str = "spec.data.environment") -> ExtensionUse:
    """Return the use of an environment's name. path: of the environment in the job."""
    return ExtensionUse(path=f"{path}.name", kind=ExtensionKind.ENVIRONMENT, name=name)


def data_use(name: str) -> ExtensionUse:
    """Return the use of a data source in `spec.data.source`."""
    return ExtensionUse(path="spec.data.source.name", kind=ExtensionKind.DATA, name=name)


def algorithm_use(name: str) -> ExtensionUse:
    """Return the use of an algorithm in `spec.algorithm`."""
    return ExtensionUse(path=ALGORITHM, kind=ExtensionKind.ALGORITHM, name=name)


def missing_extensions(spec: RLJobSpec) -> list[Problem]:
    """Return the problems of extensions that the job names and that no installed package, or more than one,
    offers."""
    return [problem for use in extension_uses(spec) if (problem := _problem(use)) is not None]


def packages(spec: RLJobSpec) -> dict[str, str]:
    """Return the packages of the job's extensions and their versions."""
    distributions = [entry.dist for use in extension_uses(spec) for entry in _offers(use)]
    return {package.name: package.version for package in distributions if package is not None}


def load(use: ExtensionUse) -> Callable[..., object]:
    """Return the function or class that a package offers under the name. Raises ConfigError if it is missing
    or broken."""
    entry, factory = _load_entry(use)
    if not callable(factory):
        raise ConfigError(
            f"{use.path}: {entry.value} of {_package(entry)}, which {use.name!r} names, is a "
            f"{type(factory).__name__}; it must be a function or class that makes a {_kind_name(use)}"
        )
    checked_factory: Callable[..., object] = factory
    return checked_factory


def load_module(use: ExtensionUse, protocol: type) -> object:
    """Return the module or object that a package offers under the name, with the members of the protocol.
    Raises ConfigError if it is missing or broken."""
    _, module = _load_entry(use)
    check_members(module, protocol, use)
    return module


def _load_entry(use: ExtensionUse) -> tuple[EntryPoint, object]:
    if (problem := _problem(use)) is not None:
        raise ConfigError(str(problem))
    (entry,) = _offers(use)
    try:
        return entry, entry.load()
    except Exception as error:
        raise ConfigError(
            f"{use.path}: {entry.value} of {_package(entry)}, which {use.name!r} names, cannot be "
            f"loaded: {type(error).__name__}: {error}"
        ) from error


def check_members(created: object, protocol: type, use: ExtensionUse) -> None:
    """Raise ConfigError if an object that an extension created lacks members of its protocol."""
    missing_members = sorted(
        name for name in get_protocol_members(protocol) if not hasattr(created, name)
    )
    if missing_members:
        raise ConfigError(
            f"{use.path}: {use.name!r} made a {type(created).__name__} without {', '.join(missing_members)}; "
            f"a {_kind_name(use)} has all members of {protocol.__module__}.{protocol.__name__}"
        )


def _problem(use: ExtensionUse) -> Problem | None:
    offers = _offers(use)
    if len(offers) == 1:
        return None
    if offers:
        package_names = " and ".join(_package(entry) for entry in offers)
        return Problem(
            use.path, f"is {use.name!r}, which {package_names} offer; uninstall one of them"
        )
    installed = sorted({entry.name for entry in entry_points(group=use.kind)})
    return Problem(
        use.path,
        f"is {use.name!r}, which no package installed here offers{suggestion(use.name, installed)} "
        f"Installed: {', '.join(installed) or 'none'} (entry points {use.kind}); install the "
        f"package of the {_kind_name(use)} where the job runs, or correct the name",
    )


def _offers(use: ExtensionUse) -> list[EntryPoint]:
    entries = entry_points(group=use.kind, name=use.name)
    return list({(entry.value, _package(entry)): entry for entry in entries}.values())


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unnamed package"


def _kind_name(use: ExtensionUse) -> str:
    return {ExtensionKind.DATA: "data source"}.get(
        use.kind, use.kind.name.lower().replace("_", " ")
    )
