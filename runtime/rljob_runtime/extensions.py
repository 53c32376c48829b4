"""Engines, rewards, tools, environments and the like of installed packages, found by their entry points.

`missing` is asked before a job starts, `load` by whoever makes what the job names: the tables of engines and
algorithms, the scorers and the prompt source. Imports no package before `load`. The parameters of an
algorithm are read by `rljob_api.spec.algorithms.package_algorithm`.
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


class Kind(StrEnum):
    """What a package can add; the value is the group of its entry points."""

    ROLLOUT_ENGINE = "rljob.rollout_engines"
    UPDATE_ENGINE = "rljob.update_engines"
    REWARD = "rljob.rewards"
    TOOL = "rljob.tools"
    ENVIRONMENT = "rljob.environments"
    DATA = "rljob.data"
    ALGORITHM = "rljob.algorithms"
    ALGORITHM_PARAMS = "rljob.algorithm_params"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Where a job names an extension. path: in the job."""

    path: str
    kind: Kind
    name: str


def uses(spec: RLJobSpec) -> Iterator[Use]:
    """Every extension that a job names."""
    if is_extension(spec.rollout.engine):
        yield rollout_use(spec.rollout.engine)
    if is_extension(spec.update.engine):
        yield update_use(spec.update.engine)
    for i, reward in enumerate(spec.rewards):
        if is_extension(reward.type):
            yield Use(path=f"spec.rewards[{i}].type", kind=Kind.REWARD, name=reward.type)
    for i, tool in enumerate(spec.rollout.tools):
        if is_extension(tool.type):
            yield tool_use(tool.type, f"spec.rollout.tools[{i}]")
    for path, played in environments(spec):
        if is_extension(played.name):
            yield environment_use(played.name, path)
    if spec.data.source is not None:
        yield data_use(spec.data.source.name)
    if is_extension(spec.algorithm.name):
        yield algorithm_use(spec.algorithm.name)
        yield Use(path=ALGORITHM, kind=Kind.ALGORITHM_PARAMS, name=spec.algorithm.name)


def rollout_use(name: str) -> Use:
    """`spec.rollout.engine`."""
    return Use(path="spec.rollout.engine", kind=Kind.ROLLOUT_ENGINE, name=name)


def update_use(name: str) -> Use:
    """`spec.update.engine`."""
    return Use(path="spec.update.engine", kind=Kind.UPDATE_ENGINE, name=name)


def tool_use(name: str, path: str) -> Use:
    """A tool's type. path: of the tool."""
    return Use(path=f"{path}.type", kind=Kind.TOOL, name=name)


def environment_use(name: str, path: str = "spec.data.environment") -> Use:
    """An environment's name. path: of the environment."""
    return Use(path=f"{path}.name", kind=Kind.ENVIRONMENT, name=name)


def data_use(name: str) -> Use:
    """`spec.data.source`."""
    return Use(path="spec.data.source.name", kind=Kind.DATA, name=name)


def algorithm_use(name: str) -> Use:
    """`spec.algorithm`."""
    return Use(path=ALGORITHM, kind=Kind.ALGORITHM, name=name)


def missing(spec: RLJobSpec) -> list[Problem]:
    """Extensions that the job names and no package here offers, or several do."""
    return [problem for use in uses(spec) if (problem := _problem(use)) is not None]


def packages(spec: RLJobSpec) -> dict[str, str]:
    """Packages of the job's extensions and their versions."""
    found = [entry.dist for use in uses(spec) for entry in _offers(use)]
    return {package.name: package.version for package in found if package is not None}


def load(use: Use) -> Callable[..., object]:
    """What a package offers under the name: a function or class. Raises ConfigError where it is not there or
    broken."""
    entry, factory = _loaded(use)
    if not callable(factory):
        raise ConfigError(
            f"{use.path}: {entry.value} of {_package(entry)}, which {use.name!r} names, is a "
            f"{type(factory).__name__}; it must be a function or class that makes a {_what(use)}"
        )
    made: Callable[..., object] = factory
    return made


def load_module(use: Use, protocol: type) -> object:
    """What a package offers under the name: a module, or an object, with the members of the protocol. Raises
    ConfigError where it is not there or broken."""
    _, module = _loaded(use)
    check_members(module, protocol, use)
    return module


def _loaded(use: Use) -> tuple[EntryPoint, object]:
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


def check_members(made: object, protocol: type, use: Use) -> None:
    """Raise ConfigError if what an extension made lacks members of its protocol."""
    lacking = sorted(name for name in get_protocol_members(protocol) if not hasattr(made, name))
    if lacking:
        raise ConfigError(
            f"{use.path}: {use.name!r} made a {type(made).__name__} without {', '.join(lacking)}; "
            f"a {_what(use)} has all members of {protocol.__module__}.{protocol.__name__}"
        )


def _problem(use: Use) -> Problem | None:
    offers = _offers(use)
    if len(offers) == 1:
        return None
    if offers:
        both = " and ".join(_package(entry) for entry in offers)
        return Problem(use.path, f"is {use.name!r}, which {both} offer; uninstall one of them")
    installed = sorted({entry.name for entry in entry_points(group=use.kind)})
    return Problem(
        use.path,
        f"is {use.name!r}, which no package installed here offers{suggestion(use.name, installed)} "
        f"Installed: {', '.join(installed) or 'none'} (entry points {use.kind}); install the "
        f"package of the {_what(use)} where the job runs, or correct the name",
    )


def _offers(use: Use) -> list[EntryPoint]:
    found = entry_points(group=use.kind, name=use.name)
    return list({(entry.value, _package(entry)): entry for entry in found}.values())


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unnamed package"


def _what(use: Use) -> str:
    return {Kind.DATA: "data source"}.get(use.kind, use.kind.name.lower().replace("_", " "))
