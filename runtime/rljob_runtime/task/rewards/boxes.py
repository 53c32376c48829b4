"""Find bounding boxes in a text, and measure how well those of two texts agree.

Used by the scorer of type `boxes`. A box is left, top, right and bottom, in any unit that both texts
share.
"""

import re
from collections.abc import Sequence

MOST_BOXES = 1000
"""Limit for a response; with more boxes it scores 0 without being compared."""
NUMBER = r"\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*"
BOX = re.compile(
    rf"[\[(]{','.join([NUMBER] * 4)}[\])]|\({NUMBER},{NUMBER}\),?\s*\({NUMBER},{NUMBER}\)"
)
"""Matches `[10, 20, 30, 40]`, also with round brackets, or `(10,20),(30,40)`."""

Box = tuple[float, float, float, float]


def boxes_in(text: str) -> list[Box]:
    """Return all boxes of a text, in order."""
    boxes = list[Box]()
    for match in BOX.finditer(text):
        left, top, right, bottom = (float(number) for number in match.groups() if number)
        boxes.append((left, top, right, bottom))
    return boxes


def overlap(one: Box, other: Box) -> float:
    """Return the intersection over union, from 0 to 1; 0 if either box has no area."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    if across <= 0 or down <= 0:
        return 0.0
    both = across * down
    return both / (_area(one) + _area(other) - both)


def agreement(boxes: Sequence[Box], expected: Sequence[Box]) -> float:
    """Return the sum of the pairs' overlaps divided by the larger number of boxes. Pairs are chosen
    from the largest overlap down, each box in one."""
    most = max(len(boxes), len(expected))
    if not most or len(boxes) > MOST_BOXES:
        return float(not most)
    pairs = [(overlap(a, b), i, j) for i, a in enumerate(boxes) for j, b in enumerate(expected)]
    total, paired, paired_expected = 0.0, set[int](), set[int]()
    for shared, i, j in sorted(pairs, key=lambda pair: -pair[0]):
        if i not in paired and j not in paired_expected:
            total += shared
            paired.add(i)
            paired_expected.add(j)
    return total / most


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
