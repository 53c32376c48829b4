"""Pictures that are drawn: what their pixels show is what the answer says, and none is asked twice in
training and evaluation."""

from collections import Counter
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from picture_models import save_picture_model

from rljob_api.spec.workload import Curriculum, Data, DrawnData
from rljob_runtime.task.data.drawn import DrawnItems
from rljob_runtime.task.data.question import PromptMaker
from rljob_runtime.task.data.split import GeneratedSplit
from rljob_runtime.task.pictures.drawing import COLOURS, SEGMENTS, TASKS, draw
from rljob_runtime.task.pictures.picture import pixels_of
from rljob_runtime.task.pictures.processor import PictureProcessor
from rljob_runtime.task.tokenizer import HFTokenizer

LEVELS, SIDES = range(7), (56, 112, 117)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A shape as its pixels show it. left: of its middle."""

    kind: str
    colour: str
    left: float


def seen_in(pixels: np.ndarray) -> list[Seen]:
    """The shapes of a picture: what hangs together in one colour."""
    found = []
    for colour, value in COLOURS.items():
        left = (pixels == value).all(axis=2)
        while left.any():
            part = connected(left)
            rows, columns = np.nonzero(part)
            box = part[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            found.append(Seen(kind=kind_of(box), colour=colour, left=columns.mean()))
            left &= ~part
    return found


def connected(mask: np.ndarray) -> np.ndarray:
    """The pixels that hang together with the first one."""
    part = np.zeros_like(mask)
    part[tuple(np.argwhere(mask)[0])] = True
    while True:
        grown = part.copy()
        grown[1:] |= part[:-1]
        grown[:-1] |= part[1:]
        grown[:, 1:] |= grown[:, :-1] | part[:, :-1]
        grown[:, :-1] |= grown[:, 1:] | part[:, 1:]
        grown &= mask
        if (grown == part).all():
            return part
        part = grown


def kind_of(box: np.ndarray) -> str:
    """By how wide it is on top and at its bottom, and how much of its box it fills."""
    top, bottom, filled = box[0].mean(), box[-1].mean(), box.mean()
    if filled > 0.98:
        return "square"
    if bottom > 0.9:
        return "triangle"
    if box[0].any() and 0.2 < top < 0.5 and box[box.shape[0] // 4].mean() == top:
        return "cross"
    return "circle" if filled > 0.68 else "diamond"


def drawn(task: str, level: int, count: int = 9):
    for seed in range(count):
        side = SIDES[seed % len(SIDES)]
        made = draw(Random(seed * 100 + level), task=task, level=level, side=side)
        assert made.image.size == (side, side)
        yield made, np.asarray(made.image)


@pytest.mark.parametrize("level", LEVELS)
def test_as_many_shapes_as_the_answer_says_are_there(level):
    for made, pixels in drawn("count", level):
        shapes = seen_in(pixels)

        assert len(shapes) <= 3 + 2 * level
        colour = made.question.strip("?").split()[2]
        counted = [s for s in shapes if colour in (s.colour, "shapes")]
        assert (colour == "shapes") == (level == 0)
        assert int(made.answer) == len(counted)


@pytest.mark.parametrize("level", LEVELS)
def test_the_shape_that_is_asked_for_has_the_colour_of_the_answer(level):
    for made, pixels in drawn("colour", level):
        shapes = seen_in(pixels)

        (asked,) = [s for s in shapes if s.kind == made.question.split()[-1].strip("?")]
        assert asked.colour == made.answer
        assert len(shapes) == min(1 + level, 5)


@pytest.mark.parametrize("level", LEVELS)
def test_the_shape_of_the_answer_is_further_left(level):
    for made, pixels in drawn("left-of", level):
        shapes = {shape.kind: shape for shape in seen_in(pixels)}
        one, _, other = made.question.strip("?").split()[-3:]

        assert made.answer == (one if shapes[one].left < shapes[other].left else other)
        assert abs(shapes[one].left - shapes[other].left) > 2
        assert len(shapes) == min(2 + level, 5)


@pytest.mark.parametrize("level", LEVELS)
def test_the_digits_of_a_number_are_those_of_seven_segments(level):
    middles = {"a": (1.5, 0.5), "b": (2.5, 1.5), "c": (2.5, 3.5), "d": (1.5, 4.5), "e": (0.5, 3.5),
               "f": (0.5, 1.5), "g": (1.5, 2.5)}  # fmt: skip
    digits = {frozenset(lit): digit for digit, lit in SEGMENTS.items()}

    for made, pixels in drawn("number", level):
        rows, columns = np.nonzero((pixels != 255).any(axis=2))
        bar = (rows.max() + 1 - rows.min()) // 5
        first = columns.min() - (2 * bar if made.answer[0] == "1" else 0)
        read = ""
        for place in range(level + 1):
            left = first + 4 * place * bar
            lit = {
                segment
                for segment, (x, y) in middles.items()
                if (pixels[rows.min() + int(y * bar), left + int(x * bar)] != 255).any()
            }
            read += digits[frozenset(lit)]
        assert read == made.answer


def test_answers_are_spread():
    for task, different in {"count": 8, "colour": 6, "left-of": 5, "number": 200}.items():
        answers = Counter(draw(Random(n), task=task, level=2, side=56).answer for n in range(300))

        assert len(answers) >= different
        assert max(answers.values()) <= 300 / 2.5


def test_an_item_is_made_of_its_seed_alone_and_says_what_it_is():
    data = DrawnData()
    items, others = DrawnItems(data, seed=5), DrawnItems(data, seed=4)

    assert items[3] == items[3] == others[4] != items[4]
    assert {items[i].fields["task"] for i in range(40)} == set(TASKS) == set(data.tasks)
    assert {
        DrawnItems(DrawnData(tasks=["number"]), seed=1)[i].fields["task"] for i in range(9)
    } == {"number"}
    assert items[3].fields["question"].startswith("<image>")
    assert DrawnItems(DrawnData(level=6), seed=1)[2] == DrawnItems(DrawnData(level=99), seed=1)[2]
    (picture,) = items[3].pictures
    assert pixels_of(picture).shape == (112, 112, 3)


def split_of(folder, source: DrawnData, *, held_out: int, seed: int = 1) -> GeneratedSplit:
    save_picture_model(folder, patch_size=14, min_pixels=28**2, max_pixels=16 * 28**2)
    tokenizer = HFTokenizer(folder)
    processor = PictureProcessor(folder, tokenizer)
    data = Data(train_size=60)

    def maker(examples):
        return PromptMaker(data, tokenizer, 200, examples, processor=processor)

    return GeneratedSplit(source, data, maker, held_out=held_out, seed=seed)


def test_training_and_held_out_pictures_are_other_ones_and_the_same_in_every_attempt(tmp_path):
    source = DrawnData(tasks=["colour", "number"], side=56)  # few: some are drawn twice

    split, again = (split_of(tmp_path, source, held_out=20) for _ in range(2))
    other = split_of(tmp_path, source, held_out=20, seed=2)

    def shown(prompts):
        return {(prompt.text, prompt.pictures[0].key) for prompt in prompts}

    trained = [split.train(index) for index in range(60)]
    assert len(shown(split.held_out)) == 20
    assert not shown(split.held_out) & shown(trained)
    assert shown(trained) == shown(again.train(index) for index in range(60))
    assert shown(split.held_out) == shown(again.held_out) != shown(other.held_out)
    assert all(prompt.scaled[0].shape == (56, 56, 3) for prompt in trained)


def test_blank_pictures_come_with_the_same_questions_and_answers_in_training_and_held_out(tmp_path):
    drawn, blank = (
        split_of(tmp_path, DrawnData(tasks=["count"], side=56, blank=blank), held_out=20)
        for blank in (False, True)
    )

    def asked(split):
        return [(p.text, p.answer) for p in (*split.held_out, *map(split.train, range(60)))]

    assert len(blank.held_out) == 20
    assert asked(blank) == asked(drawn)
    trained = [blank.train(index) for index in range(60)]
    assert all((prompt.scaled[0] == 255).all() for prompt in trained)


def test_a_curriculum_goes_from_level_to_level(tmp_path):
    plan = Curriculum(levels=[0, 4], steps_per_level=2)
    split = split_of(tmp_path, DrawnData(tasks=["number"], curriculum=plan), held_out=4)

    assert {len(split.train(3, draw=draw).answer) for draw in (0, 1)} == {1}
    assert {len(split.train(3, draw=draw).answer) for draw in (2, 9)} == {5}
    assert {len(prompt.answer) for prompt in split.held_out} == {5}
