"""Annotations that `rljob plan` reads: the paper's n, M and C, if a job sets its own.

The numbers describe another system's samples (Table 1 gives n and M outright), so they are not in the spec:
nothing that runs may depend on them.
"""

import re
from collections.abc import Iterator, Mapping

from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem

PREFIX = "rljob.io/plan-"
RESPONSE_ITEMS = f"{PREFIX}response-items"
SCALARS = f"{PREFIX}scalars"
CONTROLLERS = f"{PREFIX}controllers"
NUMBER = r"[1-9][0-9]{0,8}"
KNOWN = (RESPONSE_ITEMS, SCALARS, CONTROLLERS)


def annotation_problems(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield unknown annotations under the product's prefix, and values that are not whole numbers from 1."""
    for key, value in annotations.items():
        path = f"metadata.annotations[{key}]"
        if key.startswith(PREFIX) and key not in KNOWN:
            legal = ", ".join(KNOWN)
            yield Problem(path, f"unknown annotation{suggestion(key, KNOWN)} Legal: {legal}")
        elif key in KNOWN and not re.fullmatch(NUMBER, value):
            message = f"is {value[:20]!r}; must be a whole number from 1 to 999999999, in quotes"
            yield Problem(path, message)


def planned(annotations: Mapping[str, str], key: str, default: int) -> int:
    """Return the number that an annotation sets, or the default."""
    return int(annotations.get(key, default))
