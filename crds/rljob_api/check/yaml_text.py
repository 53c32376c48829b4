"""Parse YAML as Kubernetes reads it, without surprises: no duplicate keys, no dates, and `1e-6` is a number.

Called by `load`. PyYAML follows YAML 1.1, where `1e-6` is text and a repeated key silently wins.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from rljob_api.check.size import MAX_LEVELS
from rljob_api.spec.problems import InvalidJob, Problem

MAX_VALUES = 100_000
"""Most values in a document. etcd accepts no object above 1.5 MiB."""


class _Loader(yaml.SafeLoader):
    """The safe loader without timestamps and with the floats of YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the attribute's name and kind are PyYAML's
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that is written twice; otherwise the later one would win silently."""
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} is written twice; keep one",
                    problem_mark=key.start_mark,
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, *, name: str) -> Any:
    """Return the only document in `text`. Raises InvalidJob with line and column; name: the file's name."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        _expanded(node, {})
        return None if node is None else loader.construct_document(node)
    except InvalidJob as invalid:
        raise InvalidJob([Problem(name, each.message) for each in invalid.problems]) from None
    except RecursionError:
        raise InvalidJob(
            [Problem(name, f"is nested too deeply; a spec has at most {MAX_LEVELS} levels")]
        ) from None
    except (ValueError, LookupError, AttributeError, OverflowError, TypeError) as error:
        # a value that does not fit its tag, an integer of thousands of digits: PyYAML lets Python's error out
        message = f"has a value that cannot be read ({type(error).__name__}: {error})"
        raise InvalidJob([Problem(name, message)]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = error.problem or "no YAML"
        if problem == "but found another document":
            problem = "a second document begins here; write one RLJob in a file"
        raise InvalidJob([Problem(position, problem)]) from error
    except yaml.YAMLError as error:  # characters that YAML does not allow carry no mark
        raise InvalidJob([Problem(name, str(error).replace("\n", " "))]) from error
    finally:
        if loader is not None:
            loader.dispose()


def _expanded(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Return the number of values below a node with aliases expanded: a few lines of them may expand to more
    than memory holds."""
    if node is None:
        return 0
    size = sizes.get(id(node))
    if size == 0:
        raise InvalidJob([Problem("", "has an alias of what it stands in; write its values out")])
    if size is None:
        sizes[id(node)] = 0
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [n for child in children for n in (child if isinstance(child, tuple) else (child,))]
        size = sizes[id(node)] = 1 + sum(_expanded(child, sizes) for child in flat)
    if size > MAX_VALUES:
        raise InvalidJob([Problem("", f"has more than {MAX_VALUES} values, aliases written out")])
    return size
