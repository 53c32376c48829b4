"""YAML as Kubernetes reads it, without surprises: no duplicate keys, no dates, `1e-6` is a number.

Called by `load`. PyYAML follows YAML 1.1, where `1e-6` is text and a repeated key silently wins.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from rljob_api.spec.problems import InvalidJob, Problem


class _Loader(yaml.SafeLoader):
    """The safe loader without timestamps and with the floats of YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the attribute's name and kind are PyYAML's
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that is written twice; the later one would win in silence."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} is written twice; keep one",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, *, name: str) -> Any:
    """The one document in `text`. Raises InvalidJob with line and column; name: the file's name."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = error.problem or "no YAML"
        if problem == "but found another document":
            problem = "a second document begins here; write one RLJob in a file"
        raise InvalidJob([Problem(place, problem)]) from error
    except yaml.YAMLError as error:  # characters that YAML does not allow carry no mark
        raise InvalidJob([Problem(name, str(error).replace("\n", " "))]) from error
