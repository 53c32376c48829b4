"""Provide datasets of the reasoning-gym package: their names, parameters and items.

Called by the data source, by `data_problems` before a run, and by the dataset reward. The package seeds
item i with seed + i, so nearby seeds share items; callers keep their seeds far apart.
"""

import contextlib
import dataclasses
import sys
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import ReasoningGymData
from rljob_runtime.task.data.entries import to_json
from rljob_runtime.task.data.question import Question

# These datasets create all items at construction, so they are created in chunks of so many items.
EAGER = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
EAGER_CHUNK = 1000
UNBOUNDED = 2**31 - 1
# cellpylib imports these for pictures that no dataset draws; that takes longer than all other imports.
PLOTTING = (
    "matplotlib", "matplotlib.animation", "matplotlib.collections", "matplotlib.pyplot", "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)  # fmt: skip
RESERVED = frozenset({"seed", "size"})


class GymItems:
    """The endless items of one dataset with one seed."""

    def __init__(self, source: ReasoningGymData, *, seed: int) -> None:
        self._name, self._params, self._seed = source.dataset, params_of(source), seed
        self._chunk_size = EAGER_CHUNK if self._name in EAGER else UNBOUNDED
        self._chunk = lru_cache(maxsize=16)(self._make_chunk)

    def __getitem__(self, index: int) -> Question:
        chunk, offset = divmod(index, self._chunk_size)
        return question_of(self._chunk(chunk)[offset])

    def _make_chunk(self, chunk: int) -> Any:
        seed = self._seed + chunk * self._chunk_size
        return make_dataset(self._name, self._params, seed=seed, size=self._chunk_size)


def params_of(source: ReasoningGymData) -> dict[str, Any]:
    """Return the dataset's parameters: the job's own, and those of the curriculum's level if the job
    names one."""
    if source.level is None:
        return dict(source.params)
    curriculum = import_factory().create_curriculum(source.dataset)
    curriculum.set_global_level(source.level)
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode

    context = DefaultCurriculumContext(mode=RangeAttributeMode.UPPER_BOUND)  # no easier levels
    config = curriculum.generate_configuration(context=context)
    names = [
        getattr(attribute, name)
        for attribute in curriculum.attributes.values()
        for name in ("lower_field_name", "upper_field_name", "field_name")
        if hasattr(attribute, name)
    ]
    return {name: getattr(config, name) for name in names} | dict(source.params)


def make_dataset(name: str, params: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """Create the package's dataset. Raises whatever the dataset's own validation raises."""
    factory = import_factory()
    config = factory.DATASETS[name][1]
    return factory.create_dataset(name, **_typed(config, params), seed=seed, size=size)


def import_factory() -> Any:
    """Return reasoning_gym.factory with all datasets registered. It is imported late, since this takes
    a second."""
    with warnings.catch_warnings(), _stubbed_modules(PLOTTING):
        warnings.simplefilter("ignore")  # a dependency compiles with SyntaxWarnings
        import reasoning_gym.factory
    return reasoning_gym.factory


@contextlib.contextmanager
def _stubbed_modules(names: Iterable[str]) -> Iterator[None]:
    """Provide stubs, whose attributes are None, for modules of these names that are not imported yet."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__["__getattr__"] = lambda _: None
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def question_of(entry: Mapping[str, Any]) -> Question:
    """Return an item as a question; keys of its metadata with plain values can be used in templates."""
    answer = entry["answer"]
    fields = {"question": str(entry["question"])}
    for key, value in entry["metadata"].items():
        if isinstance(value, str | int | float) and key != "answer":
            fields.setdefault(key, str(value))
    return Question(
        fields=fields, answer="" if answer is None else str(answer), entry=to_json(dict(entry))
    )


def gym_problems(source: ReasoningGymData) -> tuple[list[Problem], list[Question]]:
    """Return problems of a dataset's name, parameters and level. If there are none, also return an
    item of each level."""
    path, name, params = "spec.data.reasoningGym", source.dataset, source.params
    factory = import_factory()
    datasets = factory.DATASETS
    if name not in datasets:
        hint = suggestion(name, datasets)
        text = f"is {name!r}{hint or ';'} reasoning-gym has {len(datasets)} datasets"
        return [Problem(f"{path}.dataset", f"{text}: {', '.join(_listed(name, datasets))}")], []
    config = datasets[name][1]
    problems = _param_problems(name, config, params, path=f"{path}.params")
    plan = source.curriculum
    by_level = "level" if source.level is not None else "curriculum" if plan else None
    if by_level and not factory.has_curriculum(name):
        text = f"the dataset {name!r} has no curriculum; use params instead"
        problems.append(Problem(f"{path}.{by_level}", text))
    if problems:
        return problems, []
    try:
        levels = [source.at(level) for level in plan.levels] if plan else [source]
        return [], [question_of(_first_item(name, level)) for level in levels]
    except Exception as error:  # the package's datasets raise anything
        text = str(error) or type(error).__name__
        return [Problem(f"{path}.params", f"the dataset {name!r} refuses them: {text}")], []


def _first_item(name: str, source: ReasoningGymData) -> Any:
    return make_dataset(name, params_of(source), seed=0, size=EAGER_CHUNK)[0]


def _param_problems(
    name: str, config: Any, params: Mapping[str, Any], *, path: str
) -> list[Problem]:
    fields = [field.name for field in dataclasses.fields(config) if field.name not in RESERVED]
    problems = []
    for key, value in params.items():
        if key in RESERVED:
            problems.append(
                Problem(f"{path}.{key}", "is decided by spec.seed and spec.data.trainSize; drop it")
            )
        elif key not in fields:
            hint = suggestion(key, fields) or ";"
            text = f"is no parameter of {name!r}{hint} it takes {', '.join(fields) or 'none'}"
            problems.append(Problem(f"{path}.{key}", text))
        elif wrong := _wrong_type(config, key, value):
            problems.append(Problem(f"{path}.{key}", wrong))
    return problems


def _wrong_type(config: Any, key: str, value: Any) -> str | None:
    """Return a message if a plain parameter has the wrong type. The package itself checks unions and
    lists."""
    expected = typing.get_type_hints(config)[key]
    if expected not in (int, float, bool, str):
        return None
    accepted = (int, float) if expected is float else (expected,)
    if isinstance(value, accepted) and (expected is bool or not isinstance(value, bool)):
        return None
    default = next(f.default for f in dataclasses.fields(config) if f.name == key)
    return f"is {value!r}; must be of type {expected.__name__} (its default is {default!r})"


def _typed(config: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with lists converted to tuples where the types require it, since YAML has
    no tuples."""
    hints = typing.get_type_hints(config)
    return {
        key: tuple(value) if isinstance(value, list) and _is_tuple(hints.get(key)) else value
        for key, value in params.items()
    }


def _is_tuple(hint: Any) -> bool:
    return tuple in (hint, typing.get_origin(hint), *map(typing.get_origin, typing.get_args(hint)))


def _listed(name: str, datasets: Mapping[str, Any]) -> Sequence[str]:
    """Return names to show: those with the same first letter first, then others, a dozen in all."""
    ordered = sorted(datasets, key=lambda other: (other[:1] != name[:1], other))
    return [*ordered[:12], "..."]
