"""The fixed cost of a pass, of passes whose line is known."""

import random

import pytest

from rljob_runtime.report.analysis.pass_cost import fixed_seconds


def test_it_is_where_the_line_through_the_passes_begins():
    passes = [(tokens, 0.03 + 0.001 * tokens) for tokens in range(50, 150, 5)]

    assert fixed_seconds(passes) == pytest.approx(0.03)


def test_passes_that_the_machine_held_up_move_it_little():
    drawn = random.Random(1)
    sizes = [drawn.randint(50, 150) for _ in range(300)]
    held_up = [drawn.random() < 0.2 for _ in sizes]
    passes = [(n, 0.03 + 0.001 * n + 0.5 * slow) for n, slow in zip(sizes, held_up, strict=True)]

    assert fixed_seconds(passes) == pytest.approx(0.03, abs=0.02)


def test_passes_of_nearly_one_size_tell_nothing():
    assert fixed_seconds([(100 + n % 3, 0.1) for n in range(50)]) is None
    assert fixed_seconds([(50, 0.1), (150, 0.2)]) is None
