"""The page on algorithms: a row for each, and an example that works as it stands there."""

import importlib
import re
from pathlib import Path

import torch

from rljob_api.algorithms import PARAMS
from rljob_api.algorithms.base import PolicyParams
from rljob_runtime.algorithms import Totals

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
PLUGIN = ROOT / "examples" / "plugin"


def test_every_algorithm_has_a_row_that_names_its_own_parameters():
    shared = set(PolicyParams.model_fields)

    for name, params in PARAMS.items():
        (row,) = re.findall(rf"^\| `{name}`(?: \(default\))? \|.*$", PAGE, re.MULTILINE)
        own = [f.alias for key, f in params.model_fields.items() if key not in shared]
        assert [key for key in own if f"`{key}`" not in row] == []


def test_every_shared_parameter_is_told():
    aliases = [field.alias for field in PolicyParams.model_fields.values()]

    assert [key for key in aliases if f"`{key}`" not in PAGE] == []


def test_the_page_shows_the_files_of_the_example_as_they_are():
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    files = [PLUGIN / f"rljob_example_opo{part}.py" for part in ("_params", "")]
    assert shown == [file.read_text() for file in files]


def test_the_example_of_an_algorithm_equals_verl(oracles, monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGIN))
    opo = importlib.import_module("rljob_example_opo")
    params = opo.OPOParams().resolved(max_response_length=6)
    batch = oracles.batch(torch.zeros(oracles.num_sequences))
    batch.scalars["reward"] = oracles.inputs["outcome_reward"]

    opo.prepare(batch, params)
    output = opo.loss(oracles.packed("logp"), batch, params, Totals.of([batch]))

    assert params.states == ("generate", "reward", "update")
    torch.testing.assert_close(
        batch.advantages_T(), oracles.packed_output("opo_adv"), atol=1e-6, rtol=1e-6
    )
    assert output.loss.isfinite()
