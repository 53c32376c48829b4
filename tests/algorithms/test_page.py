"""The page on algorithms: a row for each, and an example that works as it stands there."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import torch

from rljob_api.spec.algorithms import PARAMS
from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_runtime.algorithms import ALGORITHMS, Totals

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
PLUGIN = ROOT / "examples" / "plugin"


def test_every_algorithm_has_a_row_that_names_its_own_parameters():
    shared = set(PolicyParams.model_fields)

    for name, params in PARAMS.items():
        row, _ = rows_of(name)
        own = [f.alias for key, f in params.model_fields.items() if key not in shared]
        assert [key for key in own if f"`{key}`" not in row] == []


def rows_of(name):
    """The algorithm's rows: in the table of algorithms, and in that of their tests."""
    return re.findall(rf"^\| `{name}`(?: \(default\))? \|.*$", PAGE, re.MULTILINE)


def cells_of(name):
    """Of both rows: name, advantage, loss, mean, needs, paper, parameters, tests."""
    row, tests = rows_of(name)
    return [
        cell.strip() for cell in (*row.strip("|").split(" | "), tests.strip("|").split(" | ")[1])
    ]


def test_every_registered_algorithm_has_a_whole_row_that_tells_what_it_needs_and_its_paper():
    assert set(ALGORITHMS) == set(PARAMS)

    for name, params in PARAMS.items():
        *_, needs, paper, _, tests = cells_of(name)
        alone = set(params().states) - {"generate", "reward", "update"}
        assert [state for state in alone if f"`{state}`" not in needs] == []
        assert f"{params().least_samples} sample" in needs
        assert re.search(r"https://arxiv\.org/abs/\d{4}\.\d{5}", paper)
        assert "::" in tests


def test_the_first_paper_of_a_row_is_the_one_that_the_algorithms_file_cites():
    for name in PARAMS:
        paper = cells_of(name)[5]
        file = inspect.getsourcefile(ALGORITHMS[name])
        cited = re.findall(r"arXiv:(\d{4}\.\d{5})", Path(file).read_text())
        assert not cited or cited[0] in paper, name


OF_EXAMPLES = {"test_quickstart_learns", "test_preferences"}
"""They run an example's job, which names the algorithm."""


def with_function(stem, function):
    """Text of the file of this name that has the function; "" where none has."""
    for file in (ROOT / "tests").rglob(f"{stem}.py"):
        text = file.read_text()
        nodes = ast.walk(ast.parse(text))
        if function in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}:
            return text
    return ""


def test_each_test_that_the_page_names_exists():
    named = re.findall(r"`(test_\w+)::(test_\w+)`", PAGE)

    assert len(named) > 30
    assert [at for at in named if not with_function(*at)] == []


def test_the_tests_of_a_row_know_its_algorithm():
    shared = set(PolicyParams.model_fields)

    for name, params in PARAMS.items():
        own = [key for key in params.model_fields if key not in shared]
        for stem, function in re.findall(r"`(test_\w+)::(test_\w+)`", cells_of(name)[7]):
            text = with_function(stem, function)
            of_all = "for name in ALGORITHMS" in text or stem in OF_EXAMPLES
            knows = of_all or f'"{name}"' in text or any(key in stem for key in (name, *own))
            assert knows, f"{name}: {stem}::{function}"


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
