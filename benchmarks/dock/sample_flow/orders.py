"""A process that takes orders, JSON lines, and answers in kind; `processes.Process` sends them."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def obey(actor: object) -> None:
    """Answer each line of standard input with what the actor's method says; what libraries print goes to
    standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        call: Callable[..., Any] = getattr(actor, order.pop("do"))
        answers.write(json.dumps(call(**order)) + "\n")
        answers.flush()
