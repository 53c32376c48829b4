"""Implement the tool `calculator`: arithmetic by Python's syntax tree, with bounds on its size and so on
its time.

Only a few constants and functions can be named; there are no attributes, no subscripts and no texts.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

MAX_CHARACTERS = 1000
MAX_BITS = 4096
"""Limit of an intermediate whole number: about 1233 digits."""
MAX_DIGITS = 300
"""Limit of the digits of an answer that is a whole number."""

Number = int | float


def calculate(text: str) -> str:
    """Return the value of an expression: + - * / // % **, parentheses, abs round min max sqrt floor ceil,
    pi and e.

    Whole numbers are exact; others have 12 digits. Raises ValueError, ZeroDivisionError or OverflowError
    with what is wrong.
    """
    text = text.strip().replace("×", "*").replace("÷", "/").replace("^", "**")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters; at most {MAX_CHARACTERS}")
    try:
        tree = ast.parse(text, mode="eval")
        return _format(_value(tree.body))
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("not an arithmetic expression") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _bounded(value)
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in SIGNS:
            return _bounded(SIGNS[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return _bounded(OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _bounded(_call(name, [_value(arg) for arg in args]))
    raise ValueError(f"{ast.unparse(node)[:60]!r} is no arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    """Return the power. Raises OverflowError before a large one is computed, not after."""
    both_integers = isinstance(base, int) and isinstance(exponent, int)
    if both_integers and abs(base) > 1 and int(base).bit_length() * exponent > MAX_BITS:
        raise OverflowError("the power is too large")
    return _bounded(base**exponent)


def _call(name: str, arguments: list[Number]) -> Number:
    try:
        return FUNCTIONS[name](*arguments)
    except TypeError:
        raise ValueError(f"{name} takes other arguments") from None


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise ValueError("the value is not real")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError("the number is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError("the number is too large")
    assert isinstance(value, int | float), f"arithmetic made a {type(value).__name__}"
    return value


def _format(value: Number) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, float):
        return f"{value:.12g}"
    text = str(value)
    if len(text) > MAX_DIGITS:
        raise OverflowError(f"the result has {len(text)} digits; at most {MAX_DIGITS}")
    return text


def _round(value: Number, digits: Number = 0) -> Number:
    if abs(digits) > MAX_DIGITS:  # Python would first compute that power of 10
        raise OverflowError(f"round takes {MAX_DIGITS} digits at most")
    return round(value, int(digits))


CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e}
SIGNS: dict[type, Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
OPERATORS: dict[type, Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "floor": math.floor,
    "ceil": math.ceil,
}
