"""The page on algorithms: a row for each, and an example that works as it stands there."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import torch

from rljob_api.algorithms import PARAMS
from rljob_api.algorithms.base import PolicyParams
from rljob_runtime.algorithms import ALGORITHMS, Totals

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
PLUGIN = ROOT / "examples" / "plugin"


def test_every_algorithm_has_a_row_that_names_its_own_parameters():
    shared = set(PolicyParams.model_fields)

    for name, params in PARAMS.items():
        (row,) = re.findall(rf"^\| `{name}`(?: \(default\))? \|.*$", PAGE, re.MULTILINE)
        own = [f.alias for key, f in params.model_fields.items() if key not in shared]
        assert [key for key in own if f"`{key}`" not in row] == []


def cells_of(name):
    """The row of an algorithm: name, advantage, loss, mean, needs, paper, parameters, tests."""
    (row,) = re.findall(rf"^\| `{name}`(?: \(default\))? \|.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in row.strip("|").split(" | ")]


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


def functions_of(file):
    """Names of the functions of a test file."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_each_test_that_the_page_names_exists_and_knows_the_algorithm():
    files = {file.stem: file for file in (ROOT / "tests").rglob("test_*.py")}

    for name in PARAMS:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", cells_of(name)[7])
        for stem, function in named:
            assert function in functions_of(files[stem]), f"{name}: {stem}::{function}"
            text = files[stem].read_text()
            shared = set(PolicyParams.model_fields)
            own = [key for key in PARAMS[name].model_fields if key not in shared]
            of_all = "for name in ALGORITHMS" in text
            knows = of_all or f'"{name}"' in text or any(key in stem for key in (name, *own))
            assert knows or stem == "test_quickstart_learns", f"{name}: {stem}"
    everywhere = re.findall(r"`(test_\w+)::(test_\w+)`", PAGE)
    assert [at for at in everywhere if at[1] not in functions_of(files[at[0]])] == []


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
