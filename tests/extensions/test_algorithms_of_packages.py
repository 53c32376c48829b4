"""An algorithm of an installed package: what a job may say of it, what it needs, and how it is taught."""

import json
from typing import Any

import pytest
import torch

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.algorithms import Totals, algorithm_of, critic_of
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.errors import ConfigError
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.worker.training_objective import policy_objective

pytestmark = pytest.mark.xdist_group("example-plugin")

PATH = "spec.algorithm.packageParams"


def job(algorithm: dict[str, Any], **changes: Any) -> RLJob:
    spec = {
        "steps": 1,
        "model": {"builtin": "tiny"},
        "data": {"jsonl": {"path": "a"}},
        "rewards": [{"name": "exact", "type": "exact"}],
        "batch": {
            "globalBatchSize": 4,
            "samplesPerPrompt": 2,
            "maxPromptLength": 16,
            "maxResponseLength": 8,
        },
        "algorithm": {"name": "example.opo", **algorithm},
        **changes,
    }
    header = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}}
    return read_job({**header, "spec": spec})


def sent(given: RLJob) -> ResolvedJob:
    """As a worker gets it."""
    return ResolvedJob.model_validate_json(resolve(given).model_dump_json(by_alias=True))


def problem(algorithm: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(InvalidJob) as refused:
        job(algorithm, **changes)
    (found,) = refused.value.problems
    return str(found)


@pytest.mark.usefixtures("plugin")
def test_both_kinds_of_parameters_reach_the_workers():
    algorithm = {
        "params": {"klCoefficient": 0.1},
        "packageParams": {"clipHigh": 0.28, "lengthPower": 0.5},
    }

    params: Any = sent(job(algorithm)).spec.algorithm.params

    assert type(params).__name__ == "OPOParams"
    assert (params.kl_coefficient, params.clip_high, params.length_power) == (0.1, 0.28, 0.5)
    assert params.length_divisor == 8
    assert params.states == ("generate", "reward", "reference", "update")


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lengthPower": 5}, f"{PATH}.lengthPower: is 5; must be at most 4"),
        ({"lengthPowr": 1}, f"{PATH}.lengthPowr: unknown key 'lengthPowr'; did you mean 'length"),
    ],
)
def test_the_package_s_class_checks_its_parameters(given: dict[str, Any], told: str):
    assert problem({"packageParams": given}).startswith(told)


def test_what_every_algorithm_has_is_checked_without_the_package():
    assert "spec.algorithm.params.klIn" in problem({"params": {"klIn": "lass"}})
    assert "unknown key 'clipHigh'" in problem({"params": {"clipHigh": 0.3}})
    assert "klTarget: adapts a klCoefficient that is 0" in problem({"params": {"klTarget": 1.0}})


def test_a_job_keeps_the_parameters_of_a_package_that_is_not_here():
    written = json.loads(
        resolve(job({"packageParams": {"lengthPower": 5}})).model_dump_json(by_alias=True)
    )

    algorithm = written["spec"]["algorithm"]
    assert algorithm["packageParams"] == {"lengthPower": 5}
    assert algorithm["params"] == {"lengthDivisor": 8}  # the package may have other defaults


def test_a_built_in_algorithm_has_no_parameters_of_a_package():
    assert "unknown key 'packageParams'" in problem({"name": "grpo", "packageParams": {}})


@pytest.mark.usefixtures("plugin")
def test_the_package_s_advantages_and_loss_teach():
    spec = sent(job({"packageParams": {"lengthPower": 1.0}})).spec
    objective = policy_objective(spec, KlControl.of(spec.algorithm.params))
    responses = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    samples = SampleBatch(
        prompts=[torch.tensor([1])],
        group_of_B=torch.tensor([0, 0]),
        responses=responses,
        fields={"rollout_logprobs": [torch.full((len(r),), -1.0) for r in responses]},
        scalars={"reward": torch.tensor([1.0, 0.0])},
    )

    objective.prepare(samples)
    output = objective.loss(torch.full((4,), -1.0), samples, Totals.of([samples]))

    assert samples.scalars["advantage"].tolist() == [0.25, -0.75]  # 3 of 4 tokens were rewarded
    assert float(output.loss) == pytest.approx(-(3 * 0.25 - 0.75) / 4)


@pytest.mark.usefixtures("plugin")
def test_what_a_package_s_algorithm_lacks_is_named():
    with pytest.raises(ConfigError, match="without critic_loss, prepare_critic"):
        critic_of("example.opo")
    with pytest.raises(ConfigError, match="no package installed here offers"):
        algorithm_of("example.opp")


NEEDS = """
from rljob_api.spec.algorithms.policy_params import PolicyParams
class Params(PolicyParams):
    {member} = property(lambda self: {value})
make = Params
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (NEEDS.format(member="states", value="('generate', 'think', 'update')"), "a state 'think'"),
        (NEEDS.format(member="states", value="('generate',)"), "has no state 'update'"),
        (NEEDS.format(member="fields", value="('values',)"), "reads the column 'values', which"),
        ("make = dict", "is no subclass of rljob_api.spec.algorithms.policy_params.PolicyParams"),
        ("import nothing_of_the_kind", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_an_algorithm_that_cannot_run_is_refused_with_the_reason(
    package: Any, code: str, told: str
):
    package(code, ALGORITHM_PARAMS="acme.algorithm")

    assert told in problem({"name": "acme.algorithm"})


PARTIAL = {"partialRollout": {"budgetTokens": 4}}


@pytest.mark.parametrize(
    ("params", "flow", "path"),
    [
        ({}, PARTIAL, "rolloutCorrection.weight"),
        ({"rolloutCorrection": {"mask": "token"}}, {}, "rolloutCorrection.mask"),
        ({"ratioAgainst": "rollout"}, {}, "ratioAgainst"),
    ],
)
def test_a_correction_that_reads_no_rollout_log_probs_is_refused(
    package: Any, params: dict[str, Any], flow: dict[str, Any], path: str
):
    package(NEEDS.format(member="fields", value="()"), ALGORITHM_PARAMS="acme.algorithm")

    told = problem({"name": "acme.algorithm", "params": params}, flow=flow)

    assert told.startswith(f"spec.algorithm.params.{path}: needs the column 'rollout_logprobs'")


def test_without_a_correction_no_rollout_log_probs_are_needed(package: Any):
    package(NEEDS.format(member="fields", value="()"), ALGORITHM_PARAMS="acme.algorithm")
    algorithm = {
        "name": "acme.algorithm",
        "params": {"rolloutCorrection": {"weight": "none"}},
    }

    assert job(algorithm, flow=PARTIAL).spec.algorithm.params.fields == ()
    assert job({"name": "acme.algorithm"}).spec.algorithm.params.fields == ()
