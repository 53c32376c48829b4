"""Fill prompt templates: `{question}` and the other keys of an item are replaced by text.

`{{` and `}}` are literal braces. A brace that names nothing is not changed, so that `\\boxed{}` and JSON
can be written as they are.
"""

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")


def placeholders(template: str) -> list[str]:
    """Return the names between single braces, in order, each once."""
    names = (match.group(1) for match in _TOKEN.finditer(template) if match.group(1))
    return list(dict.fromkeys(names))


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with its placeholders replaced. Raises KeyError for a name without a value."""

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        return values[name] if name else match.group(0)[0]

    return _TOKEN.sub(value_of, template)
