"""Rates of a recorded run: those that it was made with are found again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from rljob_api.check.load import load_job
from rljob_runtime.errors import ConfigError
from rljob_runtime.simulate.costs import planned
from rljob_runtime.simulate.draws import FixedLengths, ObservedLengths
from rljob_runtime.simulate.fit import (
    Measured,
    common_variance_share,
    fit_run,
    fit_text,
    lengths_from_metrics,
    predict_times,
)
from rljob_runtime.simulate.run import simulate

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
MADE_WITH = {"generate": 3.0, "update": 2.0, "sync": 4.0, "reward": 5.0}


def recorded(folder: Path, *, steps: int) -> Path:
    """A run on devices of MADE_WITH, with half a second beside the stages of a step."""
    manifest = yaml.safe_load(QUICKSTART.read_text())
    manifest["spec"] |= {"steps": steps}
    (folder / "rljob.yaml").write_text(yaml.safe_dump(manifest))
    job, costs, _ = planned(load_job(folder / "rljob.yaml"), base_dir=folder)
    rates = Measured(
        factors=MADE_WITH, fixed_seconds=0.5, dock_bytes=1e6, lengths=FixedLengths(8, prompt=9)
    )
    costs = replace(rates.costs(costs), save_seconds=0.0)
    simulate(job, costs=costs, lengths=rates.lengths, seed=3, folder=folder)
    return folder


def test_rates_of_a_run_are_found_and_foretell_its_later_steps(tmp_path: Path) -> None:
    fit = fit_run(recorded(tmp_path, steps=9))

    assert (fit.steps, fit.judged) == ((2, 5), (6, 9))
    assert fit.measured.factors == pytest.approx(MADE_WITH, rel=0.05)
    assert fit.measured.fixed_seconds == pytest.approx(0.5, abs=0.02 * fit.observed.step)
    assert fit.observed.prompt == fit.predicted.prompt == 9
    assert fit.predicted.step == pytest.approx(fit.observed.step, rel=0.02)
    assert fit.predicted.shares() == pytest.approx(fit.observed.shares(), rel=0.05)
    assert "quickstart: rates of steps 2 to 5, beside what steps 6 to 9 took" in fit_text(fit)


def test_prompts_with_pictures_pass_all_states(tmp_path: Path) -> None:
    manifest = yaml.safe_load(QUICKSTART.read_text())
    manifest["spec"] |= {
        "steps": 2,
        "model": {"builtin": "tiny-vl", "vision": "frozen"},
        "data": {
            "drawn": {"tasks": ["count"]},
            "template": "{question}",
            "chat": False,
            "stop": [],
        },
        "rewards": [{"name": "right", "type": "exact"}],
    }
    (tmp_path / "rljob.yaml").write_text(yaml.safe_dump(manifest))
    job, costs, _ = planned(load_job(tmp_path / "rljob.yaml"), base_dir=tmp_path)

    told = predict_times(job, costs, FixedLengths(4))

    assert {"generate", "reward", "update", "sync"} <= told.stages.keys()


def test_a_run_with_few_steps_has_no_rates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 steps after its first, and rates need 4"):
        fit_run(recorded(tmp_path, steps=3))


def test_a_folder_without_a_run_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no events\.jsonl; name the folder of a run"):
        fit_run(tmp_path)


def test_lengths_have_the_figures_of_their_step() -> None:
    figures = {"mean": 40.0, "p80": 60.0, "max": 100.0}

    lengths = sorted(
        lengths_from_metrics({f"response_length/{name}": v for name, v in figures.items()})
    )

    assert sum(lengths) / len(lengths) == pytest.approx(figures["mean"], rel=0.01)
    assert lengths[int(0.8 * len(lengths))] == pytest.approx(figures["p80"], rel=0.02)
    assert lengths[-1] == pytest.approx(figures["max"], rel=0.01)


def test_what_the_lengths_of_a_prompt_have_in_common_is_what_is_left_within_it() -> None:
    of_all = [2, 2, 4, 4, 6, 6, 8, 8]  # their variance is 5

    assert common_variance_share(of_all, [[2, 2, 2], [4, 4, 4]]) == 1
    assert common_variance_share(of_all, [[2, 4, 2, 4], [3, 5, 3, 5]]) == pytest.approx(
        1 - (8 / 6) / 5
    )
    assert common_variance_share(of_all, [[1, 9]]) == 0
    assert (
        common_variance_share(of_all, [[7]]) == common_variance_share([8, 8], [[8, 8]]) == 0.5
    )  # nothing is known


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
def test_observed_lengths_are_drawn_as_often_and_as_alike_as_they_were_seen(
    together: float,
) -> None:
    tokens = tuple(range(1, 101))

    drawn = ObservedLengths(tokens, together).draw(np.random.default_rng(0), 400, 8)

    assert sorted(drawn.ravel()) == pytest.approx(np.repeat(tokens, 32), abs=1)
    within = drawn.var(axis=1, ddof=1).mean() / drawn.var()
    assert within == pytest.approx(1 - together, abs=0.08)
