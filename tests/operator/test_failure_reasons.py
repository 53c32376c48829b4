"""The reasons that a failure policy may name are those that the operator gives."""

import ast
import inspect
from typing import get_args

from rljob_api.spec.lifecycle import FailureReason
from rljob_operator.decide import attempt


def test_the_operator_gives_every_reason_that_a_policy_may_name_and_no_other():
    tree = ast.parse(inspect.getsource(attempt))

    given = {reason for node in ast.walk(tree) for reason in reasons_in(node)}

    assert given == set(get_args(FailureReason))


def reasons_in(node):
    """The text of `AttemptFailure(reason="…")`, `reason = "…"` and `reason, … = "…", …`."""
    match node:
        case ast.Call(func=ast.Name("AttemptFailure"), keywords=keywords):
            values = [keyword.value for keyword in keywords if keyword.arg == "reason"]
        case ast.AnnAssign(target=ast.Name("reason"), value=value):
            values = [value]
        case ast.Assign(targets=[ast.Name("reason")], value=value):
            values = [value]
        case ast.Assign(
            targets=[ast.Tuple([ast.Name("reason"), *_])], value=ast.Tuple([value, *_])
        ):
            values = [value]
        case _:
            return []
    return [value.value for value in values if isinstance(value, ast.Constant)]
