"""Pictures that are drawn with a question about each, whose answer is exact: shapes and digits on white.

Pure functions of a random number generator; nothing is smoothed, so that each pixel is a colour of the table
or white. Called by the items of `data.drawn`.
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
"""A picture has as many rows and columns of places for shapes, which therefore never touch."""
SEGMENTS = {
    "0": "abcdef", "1": "bc", "2": "abged", "3": "abgcd", "4": "fgbc",
    "5": "afgcd", "6": "afgecd", "7": "abc", "8": "abcdefg", "9": "abcdfg",
}  # fmt: skip
"""Of a digit of seven segments: a on top, then clockwise to f, g in the middle."""
PLACES = {
    "a": (0, 0, 3, 1), "b": (2, 0, 3, 3), "c": (2, 2, 3, 5), "d": (0, 4, 3, 5),
    "e": (0, 2, 1, 5), "f": (0, 0, 1, 3), "g": (0, 2, 3, 3),
}  # fmt: skip
"""Left, top, right and bottom of a segment in a digit of 3 × 5."""

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, all within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A picture and what is asked about it."""

    image: Image.Image
    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A shape, its colour, and its place: column and row."""

    kind: str
    colour: str
    place: tuple[int, int]


def draw(rng: Random, *, task: str, level: int, side: int) -> Drawn:
    """A picture of `side` × `side` pixels, 56 or more, for one of TASKS. level: difficulty, from 0 to
    MOST_LEVEL."""
    return TASKS[task](rng, level, side)


def _count(rng: Random, level: int, side: int) -> Drawn:
    """How many: of all shapes on level 0, of those of a colour among others on later ones."""
    number = rng.randint(1, 3 + 2 * level)
    colour, other = rng.sample(list(COLOURS), 2)
    counted = rng.randint(0, number) if level else number
    shapes = [
        Shape(kind=rng.choice(list(KINDS)), colour=colour if i < counted else other, place=place)
        for i, place in enumerate(_places(rng, number))
    ]
    of_colour = f" {colour}" if level else ""
    question = f"How many{of_colour} shapes?"
    return Drawn(image=_shapes(rng, shapes, side), question=question, answer=str(counted))


def _colour(rng: Random, level: int, side: int) -> Drawn:
    """The colour of a shape, among as many others as the level says."""
    kinds = _kinds(rng, 1 + level)
    shapes = [
        Shape(kind=kind, colour=rng.choice(list(COLOURS)), place=place)
        for kind, place in zip(kinds, _places(rng, len(kinds)), strict=True)
    ]
    question = f"Which colour is the {kinds[0]}?"
    return Drawn(image=_shapes(rng, shapes, side), question=question, answer=shapes[0].colour)


def _left_of(rng: Random, level: int, side: int) -> Drawn:
    """Which of two shapes is further left, among as many others as the level says."""
    kinds = _kinds(rng, 2 + level)
    places = _places(rng, len(kinds))
    while places[0][0] == places[1][0]:  # two in one column
        places = _places(rng, len(kinds))
    shapes = [
        Shape(kind=kind, colour=rng.choice(list(COLOURS)), place=place)
        for kind, place in zip(kinds, places, strict=True)
    ]
    question = f"Further left: {kinds[0]} or {kinds[1]}?"
    answer = kinds[0] if places[0][0] < places[1][0] else kinds[1]
    return Drawn(image=_shapes(rng, shapes, side), question=question, answer=answer)


def _number(rng: Random, level: int, side: int) -> Drawn:
    """A number of one digit more than the level says."""
    number = str(rng.randrange(10**level if level else 0, 10 ** (level + 1)))
    widest = side // (4 * max(2, len(number)))
    bar = rng.randint((widest + 1) // 2, widest)
    width, height = (4 * len(number) - 1) * bar, 5 * bar
    left, top = rng.randint(0, side - width), rng.randint(0, side - height)
    image = Image.new("RGB", (side, side), "white")
    pen, colour = ImageDraw.Draw(image), rng.choice(list(COLOURS.values()))
    for place, digit in enumerate(number):
        x = left + 4 * place * bar
        for segment in SEGMENTS[digit]:
            x0, y0, x1, y1 = (bar * n for n in PLACES[segment])
            pen.rectangle((x + x0, top + y0, x + x1 - 1, top + y1 - 1), fill=colour)
    return Drawn(image=image, question="Which number?", answer=number)


TASKS: dict[str, Callable[[Random, int, int], Drawn]] = {
    "count": _count,
    "colour": _colour,
    "left-of": _left_of,
    "number": _number,
}
MOST_LEVEL = 6
"""3 + 2 · 6 shapes have places, and 7 digits are as wide as a small picture."""


def _kinds(rng: Random, wanted: int) -> list[str]:
    """Different kinds of shapes: so many, or all."""
    return rng.sample(list(KINDS), min(wanted, len(KINDS)))


def _places(rng: Random, number: int) -> list[tuple[int, int]]:
    return [divmod(place, CELLS) for place in rng.sample(range(CELLS**2), number)]


def _shapes(rng: Random, shapes: Sequence[Shape], side: int) -> Image.Image:
    image = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(image)
    cell = side // CELLS
    for shape in shapes:
        size = rng.randint(cell // 2, cell - 4)
        left, top = (n * cell + rng.randint(1, cell - size - 2) for n in shape.place)
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
