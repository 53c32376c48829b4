"""What a job may name of an installed package, and what is said where that does not work."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from example_plugin import PLUGIN, path_with
from PIL import Image

from rljob_api.check.load import load_job, read_job
from rljob_api.check.run_rules import refusals
from rljob_api.spec.workload import Data, Reward
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import ExtensionKind, ExtensionUse, load, missing_extensions, packages
from rljob_runtime.rollout.rollout_table import make_rollout
from rljob_runtime.run.run_request import spec_digest
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.source import read_questions
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorers import make_scorer

pytestmark = pytest.mark.xdist_group("example-plugin")

NAMED: dict[str, Any] = {
    "data": {"source": {"name": "example.counting"}},
    "rewards": [{"name": "prefix", "type": "example.prefix"}],
    "rollout": {"engine": "example.logged"},
    "update": {"engine": "example.logged"},
    "algorithm": {"name": "example.opo", "packageParams": {"lengthPower": 0.5}},
}
BUILT_IN: dict[str, Any] = {
    "data": {"jsonl": {"path": "a"}},
    "rewards": [{"name": "exact", "type": "exact"}],
}
SIZES = {
    "globalBatchSize": 4,
    "samplesPerPrompt": 2,
    "maxPromptLength": 16,
    "maxResponseLength": 8,
}


def job(**sections: Any) -> Any:
    spec = {"steps": 1, "model": {"builtin": "tiny"}, "batch": SIZES, **sections}
    header = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}}
    return read_job({**header, "spec": spec})


def spec(**sections: Any) -> ResolvedSpec:
    return resolve(job(**sections)).spec


def test_a_job_with_a_package_is_valid_where_the_package_is_not_installed() -> None:
    problems = missing_extensions(spec(**NAMED))

    assert [problem.path for problem in problems] == [
        "spec.rollout.engine",
        "spec.update.engine",
        "spec.rewards[0].type",
        "spec.data.source.name",
        "spec.algorithm.name",
        "spec.algorithm.name",
    ]
    assert "no package installed here offers. Installed: none" in problems[0].message


@pytest.mark.usefixtures("plugin")
def test_an_installed_package_lacks_nothing_and_is_named_with_its_version() -> None:
    assert missing_extensions(spec(**NAMED)) == []
    assert packages(spec(**NAMED)) == {"rljob-example-plugin": "0.1.0"}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("file", sorted(PLUGIN.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_job_of_the_example_package_can_run_where_it_is_installed(
    file: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with(installed))  # of the processes that play its game
    found = load_job(file)

    assert missing_extensions(found.spec) == []
    assert refusals(resolve(found)) == []
    assert data_problems(found.spec.data, base_dir=PLUGIN) == []


@pytest.mark.usefixtures("plugin")
def test_a_misspelt_name_is_told_with_the_installed_ones() -> None:
    (problem,) = missing_extensions(spec(**NAMED | {"rollout": {"engine": "example.loged"}}))

    assert "did you mean 'example.logged'?" in problem.message
    assert "Installed: example.logged (entry points rljob.rollout_engines)" in problem.message


def test_the_page_on_extending_names_every_group_of_entry_points() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()

    assert all(f"`{kind}`" in page for kind in ExtensionKind)


def test_a_name_that_two_packages_offer_is_refused(package: Any) -> None:
    package("make = dict", name="acme-one", REWARD="acme.r")
    package("make = dict", name="acme-two", REWARD="acme.r")

    (problem,) = missing_extensions(
        spec(**BUILT_IN | {"rewards": [{"name": "r", "type": "acme.r"}]})
    )

    assert re.search(r"acme-(one|two) and acme-(one|two) offer; uninstall one", problem.message)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nothing_of_the_kind", "cannot be loaded: ModuleNotFoundError"),
        ("make = 3", "is a int; it must be a function or class that makes a reward"),
    ],
)
def test_a_broken_package_is_named(package: Any, code: str, told: str) -> None:
    package(code, REWARD="acme.r")

    with pytest.raises(ConfigError, match=told):
        load(ExtensionUse(path="spec.rewards[0].type", kind=ExtensionKind.REWARD, name="acme.r"))


def test_an_engine_without_a_method_is_refused_before_it_is_used(package: Any) -> None:
    package("class make:\n    def __init__(self, setup): pass", ROLLOUT_ENGINE="acme.e")
    chosen = spec(**BUILT_IN, rollout={"engine": "acme.e"})

    with pytest.raises(ConfigError, match=r"without checksum, generate, load_weights, sleep"):
        make_rollout(chosen, model=Path(), ledger=None)


def test_an_engine_is_made_of_the_whole_setup(package: Any) -> None:
    package("def make(setup):\n    raise RuntimeError(setup)", ROLLOUT_ENGINE="acme.e")
    chosen = spec(**BUILT_IN, rollout={"engine": "acme.e", "params": {"depth": {"of": [1]}}})

    with pytest.raises(RuntimeError) as made:
        make_rollout(chosen, model=Path("m"), ledger=None)

    (setup,) = made.value.args
    assert setup.params == {"depth": {"of": [1]}}
    assert (setup.model, setup.dtype, setup.max_length) == (Path("m"), torch.float32, 24)


def _score(reward: dict[str, Any], response: str, answer: str) -> float:
    request = RewardRequest(prompt="", response=response, answer=answer, entry={})
    return make_scorer(Reward.model_validate(reward), Data(), Path())(request)


@pytest.mark.usefixtures("plugin")
def test_the_reward_of_a_package_scores_with_its_parameters() -> None:
    reward = {"name": "p", "type": "example.prefix"}

    assert _score(reward, "abX", "ABCD") == 0.0
    assert _score(reward | {"params": {"ignoreCase": True}}, "abX", "ABCD") == 0.5
    assert _score(reward | {"threshold": 0.5}, "ABX", "ABCD") == 1.0


def test_a_score_that_is_no_number_is_an_error(package: Any) -> None:
    package("make = lambda params, base_dir: lambda request: 'much'", REWARD="acme.r")

    with pytest.raises(TypeError, match=r"acme\.r returned 'much'; it must return a finite number"):
        _score({"name": "r", "type": "acme.r"}, "", "")


def _data(folder: Path, **params: Any) -> list[str]:
    data = {"source": {"name": "acme.d", "params": params}, "template": "{question}{hint}"}
    return [str(p) for p in data_problems(Data.model_validate(data), base_dir=folder)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0", "acme.d failed: ZeroDivisionError"),
        ("return 3", "it made a int; items must be iterable"),
        ("return []", "has no items"),
        ("return ['a']", "item 0 is a str; each must be a dict"),
        ("return [{'question': 'a'}]", "item 0 has no text under 'answer'"),
        (
            "return [{'question': 'a', 'answer': 'b', 'x': {1}}]",
            "item 0 holds what JSON cannot: Object of type set",
        ),
        ("return [{'question': 'a', 'answer': 'b'}]", "names {hint}, which not every item has"),
    ],
)
def test_what_a_data_source_gives_is_checked_before_the_run(
    package: Any, tmp_path: Path, code: str, told: str
) -> None:
    package(f"def make(params, base_dir):\n    {code}", DATA="acme.d")

    (problem,) = _data(tmp_path)

    assert told in problem


def test_items_of_a_data_source_have_pictures_as_bytes_or_in_the_folder_of_the_job(
    package: Any, tmp_path: Path
) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4, 3)).save(stream, "PNG")
    (tmp_path / "own.png").write_bytes(stream.getvalue())
    package(
        "def make(params, base_dir):\n"
        "    drawn = (base_dir / 'own.png').read_bytes()\n"
        "    return [{'question': '<image>' * 2, 'answer': 'b', 'images': [drawn, 'own.png']}]",
        DATA="acme.d",
    )
    data = Data.model_validate({"source": {"name": "acme.d"}})

    assert data_problems(data, base_dir=tmp_path, tower=True) == []
    (question,) = read_questions(data, tmp_path, tower=True)
    assert [picture.size for picture in question.pictures] == [(4, 3), (4, 3)]
    (problem,) = data_problems(data, base_dir=tmp_path)
    assert "item 0 has pictures (images), and this job is trained on text alone" in str(problem)


def test_a_data_source_gets_its_parameters_and_the_folder_of_the_job(
    package: Any, tmp_path: Path
) -> None:
    package(
        "def make(params, base_dir):\n"
        "    item = {'question': 'a', 'answer': str(base_dir), 'hint': params['hint']}\n"
        "    return [item]",
        DATA="acme.d",
    )

    assert _data(tmp_path, hint="b") == []


def test_rljob_run_takes_the_update_engine_of_a_package_and_refuses_mindspeed_without_npus() -> (
    None
):
    assert refusals(job(**BUILT_IN, update={"engine": "acme.e"})) == []
    assert [p.path for p in refusals(job(**BUILT_IN, update={"engine": "mindspeed"}))] == [
        "spec.update.engine"
    ]


def test_a_job_without_extensions_keeps_its_digest_and_says_nothing_of_them() -> None:
    plain = job(**BUILT_IN)

    said = plain.model_dump()["spec"]

    sections = [said["rollout"], said["update"], said["rewards"][0]]
    assert not any("params" in section for section in sections)
    assert "source" not in said["data"]
    assert spec_digest(plain) != spec_digest(
        job(**BUILT_IN, rollout={"engine": "acme.e", "params": {"a": 1}})
    )
