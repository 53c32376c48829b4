"""The adaptive KL coefficient moves towards its target, and stays where none is given."""

import pytest

from rljob_api.spec.algorithms.grpo import GRPOParams
from rljob_runtime.algorithms.kl_control import KlControl

ADAPTIVE = GRPOParams(kl_coefficient=0.1, kl_target=0.02, kl_horizon=1000)


def test_it_follows_the_published_rule():
    control = KlControl.of(ADAPTIVE)

    control.follow(0.022, num_samples=500)  # 10 % above: 1 + 0.1 · 0.5

    assert control.coefficient == pytest.approx(0.105)
    assert control.apply_to(ADAPTIVE).kl_coefficient == control.coefficient


@pytest.mark.parametrize(("kl", "after"), [(0.2, 0.12), (0.0, 0.08), (-1.0, 0.08)])
def test_one_step_changes_it_by_a_fifth_at_most_a_horizon(kl, after):
    control = KlControl.of(ADAPTIVE)

    control.follow(kl, num_samples=1000)

    assert control.coefficient == pytest.approx(after)


def test_a_policy_that_answers_to_it_comes_to_the_target():
    control = KlControl.of(ADAPTIVE)

    for _ in range(200):  # the higher the price, the nearer the policy stays
        control.follow(0.0001 / control.coefficient, num_samples=500)

    assert 0.0001 / control.coefficient == pytest.approx(0.02, rel=0.05)


def test_without_a_target_it_stays():
    params = GRPOParams(kl_coefficient=0.1)
    control = KlControl.of(params)

    control.follow(5.0, num_samples=10**6)

    assert control.apply_to(params) == params


def test_it_neither_vanishes_nor_leaves_its_bounds():
    control = KlControl.of(ADAPTIVE)

    for _ in range(100):
        control.follow(0.0, num_samples=10**9)
    assert control.coefficient > 0
    for _ in range(1000):
        control.follow(1.0, num_samples=10**6)
    assert control.coefficient == 10
