"""Bounding boxes in a text, and how well those of two texts agree.

Used by the scorer of type `boxes`. A box is left, top, right and bottom, in whatever unit both texts have.
"""

import re
from collections.abc import Sequence

MOST_BOXES = 1000
"""In a response that is read; more are none at all, and cost no time."""
NUMBER = r"\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*"
BOX = re.compile(
    rf"[\[(]{','.join([NUMBER] * 4)}[\])]|\({NUMBER},{NUMBER}\),?\s*\({NUMBER},{NUMBER}\)"
)
"""`[10, 20, 30, 40]`, with round brackets too, or `(10,20),(30,40)`."""

Box = tuple[float, float, float, float]


def boxes_in(text: str) -> list[Box]:
    """All boxes of a text, in order."""
    found = list[Box]()
    for match in BOX.finditer(text):
        left, top, right, bottom = (float(number) for number in match.groups() if number)
        found.append((left, top, right, bottom))
    return found


def overlap(one: Box, other: Box) -> float:
    """Intersection over union, from 0 to 1; 0 where one has no area."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    if across <= 0 or down <= 0:
        return 0.0
    both = across * down
    return both / (_area(one) + _area(other) - both)


def agreement(found: Sequence[Box], expected: Sequence[Box]) -> float:
    """Sum of the pairs' overlaps over the number of boxes on the side that has more. Pairs are made from the
    largest overlap down, each box in one."""
    most = max(len(found), len(expected))
    if not most or len(found) > MOST_BOXES:
        return float(not most)
    pairs = [(overlap(a, b), i, j) for i, a in enumerate(found) for j, b in enumerate(expected)]
    total, paired, met = 0.0, set[int](), set[int]()
    for shared, i, j in sorted(pairs, key=lambda pair: -pair[0]):
        if i not in paired and j not in met:
            total += shared
            paired.add(i)
            met.add(j)
    return total / most


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
