"""Draw pictures with a question about each, whose answer is exact: shapes and digits on white.

Pure functions of a random number generator. Nothing is smoothed, so that each pixel has a colour of the
table or is white. Called by the items of `data.drawn`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 39, 40), "green": (44, 140, 44), "blue": (31, 80, 200),
    "orange": (255, 150, 14), "purple": (140, 60, 190), "black": (0, 0, 0),
}  # fmt: skip
CELLS = 4
"""Number of rows and columns of cells in a picture. Each shape has its own cell, so shapes never
touch."""
SEGMENTS = {
    "0": "abcdef", "1": "bc", "2": "abged", "3": "abgcd", "4": "fgbc",
    "5": "afgcd", "6": "afgecd", "7": "abc", "8": "abcdefg", "9": "abcdfg",
}  # fmt: skip
"""Segments of each digit of a seven-segment display: a on top, then clockwise to f, and g in the
middle."""
SEGMENT_BOXES = {
    "a": (0, 0, 3, 1), "b": (2, 0, 3, 3), "c": (2, 2, 3, 5), "d": (0, 4, 3, 5),
    "e": (0, 2, 1, 5), "f": (0, 0, 1, 3), "g": (0, 2, 3, 3),
}  # fmt: skip
"""Left, top, right and bottom of each segment in a digit of 3 × 5."""

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, all inclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPicture:
    """A picture with a question about it and the answer."""

    image: Image.Image
    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnShape:
    """A shape, its colour, and its cell: column and row."""

    kind: str
    colour: str
    cell: tuple[int, int]


def draw(rng: Random, *, task: str, level: int, side: int) -> DrawnPicture:
    """Draw a picture of `side` × `side` pixels, 56 or more, for one of TASKS. level: difficulty, from
    0 to MOST_LEVEL."""
    return TASKS[task](rng, level, side)


def _count(rng: Random, level: int, side: int) -> DrawnPicture:
    """Ask for the number of shapes: of all on level 0, of those of one colour on higher levels."""
    number = rng.randint(1, 3 + 2 * level)
    colour, other = rng.sample(list(COLOURS), 2)
    counted = rng.randint(0, number) if level else number
    shapes = [
        DrawnShape(kind=rng.choice(list(KINDS)), colour=colour if i < counted else other, cell=cell)
        for i, cell in enumerate(_random_cells(rng, number))
    ]
    of_colour = f" {colour}" if level else ""
    question = f"How many{of_colour} shapes?"
    return DrawnPicture(image=_shapes(rng, shapes, side), question=question, answer=str(counted))


def _colour(rng: Random, level: int, side: int) -> DrawnPicture:
    """Ask for the colour of a shape, among as many others as the level."""
    kinds = _kinds(rng, 1 + level)
    shapes = [
        DrawnShape(kind=kind, colour=rng.choice(list(COLOURS)), cell=cell)
        for kind, cell in zip(kinds, _random_cells(rng, len(kinds)), strict=True)
    ]
    question = f"Which colour is the {kinds[0]}?"
    return DrawnPicture(
        image=_shapes(rng, shapes, side), question=question, answer=shapes[0].colour
    )


def _left_of(rng: Random, level: int, side: int) -> DrawnPicture:
    """Ask which of two shapes is further left, among as many others as the level."""
    kinds = _kinds(rng, 2 + level)
    cells = _random_cells(rng, len(kinds))
    while cells[0][0] == cells[1][0]:  # both in one column
        cells = _random_cells(rng, len(kinds))
    shapes = [
        DrawnShape(kind=kind, colour=rng.choice(list(COLOURS)), cell=cell)
        for kind, cell in zip(kinds, cells, strict=True)
    ]
    question = f"Further left: {kinds[0]} or {kinds[1]}?"
    answer = kinds[0] if cells[0][0] < cells[1][0] else kinds[1]
    return DrawnPicture(image=_shapes(rng, shapes, side), question=question, answer=answer)


def _number(rng: Random, level: int, side: int) -> DrawnPicture:
    """Ask for a number of one digit more than the level."""
    number = str(rng.randrange(10**level if level else 0, 10 ** (level + 1)))
    widest = side // (4 * max(2, len(number)))
    bar = rng.randint((widest + 1) // 2, widest)
    width, height = (4 * len(number) - 1) * bar, 5 * bar
    left, top = rng.randint(0, side - width), rng.randint(0, side - height)
    image = Image.new("RGB", (side, side), "white")
    pen, colour = ImageDraw.Draw(image), rng.choice(list(COLOURS.values()))
    for index, digit in enumerate(number):
        x = left + 4 * index * bar
        for segment in SEGMENTS[digit]:
            x0, y0, x1, y1 = (bar * n for n in SEGMENT_BOXES[segment])
            pen.rectangle((x + x0, top + y0, x + x1 - 1, top + y1 - 1), fill=colour)
    return DrawnPicture(image=image, question="Which number?", answer=number)


TASKS: dict[str, Callable[[Random, int, int], DrawnPicture]] = {
    "count": _count,
    "colour": _colour,
    "left-of": _left_of,
    "number": _number,
}
MOST_LEVEL = 6
"""The highest level: 3 + 2 · 6 shapes fit into the cells, and 7 digits are as wide as a small picture."""


def _kinds(rng: Random, number: int) -> list[str]:
    """Return different kinds of shapes: `number` of them, or all."""
    return rng.sample(list(KINDS), min(number, len(KINDS)))


def _random_cells(rng: Random, number: int) -> list[tuple[int, int]]:
    return [divmod(index, CELLS) for index in rng.sample(range(CELLS**2), number)]


def _shapes(rng: Random, shapes: Sequence[DrawnShape], side: int) -> Image.Image:
    image = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(image)
    cell_side = side // CELLS
    for shape in shapes:
        size = rng.randint(cell_side // 2, cell_side - 4)
        left, top = (n * cell_side + rng.randint(1, cell_side - size - 2) for n in shape.cell)
        KINDS[shape.kind](pen, (left, top, left + size, top + size), COLOURS[shape.colour])
    return image


def _circle(pen: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    pen.ellipse(box, fill=colour)


def _square(pen: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    pen.rectangle(box, fill=colour)


def _triangle(pen: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    left, top, right, bottom = box
    pen.polygon([((left + right) // 2, top), (right, bottom), (left, bottom)], fill=colour)


def _diamond(pen: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    left, top, right, bottom = box
    x, y = (left + right) // 2, (top + bottom) // 2
    pen.polygon([(x, top), (right, y), (x, bottom), (left, y)], fill=colour)


def _cross(pen: ImageDraw.ImageDraw, box: Box, colour: tuple[int, int, int]) -> None:
    left, top, right, bottom = box
    third = math.ceil((right - left) / 3)
    pen.rectangle((left + third, top, right - third, bottom), fill=colour)
    pen.rectangle((left, top + third, right, bottom - third), fill=colour)


KINDS: dict[str, Callable[[ImageDraw.ImageDraw, Box, tuple[int, int, int]], None]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "diamond": _diamond,
    "cross": _cross,
}
