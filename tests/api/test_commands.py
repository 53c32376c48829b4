"""`rljob validate`, `rljob plan` and what `rljob run` refuses: output, exit codes."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api.check.run_rules import refusals
from rljob_runtime.cli.main import app

PAPER = Path(__file__).parents[2] / "examples" / "paper"


@pytest.fixture
def rljob(tmp_path, manifest):
    """rljob("plan", changes, "--json") on the changed manifest, written to a file."""

    def call(command, changes=None, *options):
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(manifest(changes)))
        return CliRunner().invoke(app, [command, str(file), *options])

    return call


def test_a_valid_job_is_said_to_be_valid(rljob):
    result = rljob("validate")

    assert result.exit_code == 0
    assert result.stdout.endswith("job.yaml: spell-backward is valid\n")
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_an_invalid_job_ends_with_2_and_one_problem_a_line(rljob, command):
    result = rljob(command, {"spec.steps": 0, "spec.bacth": {}})

    assert result.exit_code == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first == "spec.steps: is 0; must be at least 1"
    assert second.startswith("spec.bacth: unknown key 'bacth'; did you mean 'batch'? Legal keys:")


def test_validate_notes_what_only_plan_can_do_and_a_model_that_lies_elsewhere(rljob):
    changes = {"spec.update.engine": "mindspeed", "spec.model": {"path": "/models/elsewhere"}}

    result = rljob("validate", changes)

    assert result.exit_code == 0
    engine, model = result.stderr.splitlines()
    assert engine == (
        "note: spec.update.engine: is mindspeed with spec.accelerator.type: emulated; use megatron"
    )
    assert model.startswith(
        "note: on this machine: spec.model.path: /models/elsewhere/config.json does not exist"
    )


def test_a_package_that_is_not_installed_here_is_a_note_of_validate_and_ends_run(rljob):
    changes = {"spec.rollout.engine": "acme.engine"}

    validated, run = rljob("validate", changes), rljob("run", changes)

    assert (validated.exit_code, run.exit_code) == (0, 2)
    (note,), (refusal,) = validated.stderr.splitlines(), run.stderr.splitlines()
    assert note == f"note: on this machine: {refusal}"
    assert refusal.startswith("spec.rollout.engine: is 'acme.engine', which no package installed")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"spec.data.reasoningGym.dataset": "spell_backwards"},
            "spec.data.reasoningGym.dataset: is 'spell_backwards'; did you mean 'spell_backward'?",
        ),
        (
            {"spec.data.template": "{wrod}"},
            "spec.data.template: names {wrod}, which not every item has; did you mean 'word'?",
        ),
        (
            {"spec.data": {"jsonl": {"path": "gone.jsonl"}}, "spec.rewards.0.type": "exact"},
            "spec.data.jsonl.path: ",
        ),
        (
            {"spec.rewards": [{"name": "own", "type": "python", "python": {"path": "gone.py"}}]},
            "spec.rewards[0].python.path: is 'gone.py'; ",
        ),
        (
            {
                "spec.evaluation.suites": [
                    {"name": "other", "reasoningGym": {"dataset": "spell_backwards"}}
                ]
            },
            "spec.evaluation.suites[0].reasoningGym.dataset: is 'spell_backwards'; did you mean",
        ),
    ],
)
def test_validate_notes_data_and_files_that_are_not_on_this_machine(rljob, changes, told):
    result = rljob("validate", changes)

    (note,) = result.stderr.splitlines()
    assert note.startswith(f"note: on this machine: {told}")
    assert result.exit_code == 0


def test_validate_tells_what_is_not_here_beside_the_problems_of_rules(rljob):
    changes = {"spec.data.template": "{wrod}", "spec.rewards.0.weight": 0}

    result = rljob("validate", changes)

    note, problem = result.stderr.splitlines()
    assert note.startswith("note: on this machine: spec.data.template: names {wrod}")
    assert problem.startswith("spec.rewards: every weight is 0")
    assert result.exit_code == 2


def test_an_evaluation_that_never_comes_is_a_note(rljob):
    changes = {"spec.evaluation": {"every": 999}}

    validated, planned = rljob("validate", changes), rljob("plan", changes)

    told = "note: spec.evaluation.every 999 is more than spec.steps 10: nothing is evaluated during training"
    assert validated.stderr.startswith(told)
    assert told in planned.stdout


def test_validate_refuses_degrees_that_do_not_divide_the_model(rljob):
    changes = {"spec.accelerator.devicesPerNode": 8, "spec.update.parallelism.tensor": 8}

    result = rljob("validate", changes)

    assert result.exit_code == 2
    assert "spec.update.parallelism.tensor: 8 does not divide the model's 4 attention" in (
        result.stderr
    )


def test_plan_prints_text_for_people(rljob):
    result = rljob("plan", {"spec.accelerator.devicesPerNode": 2})

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "spell-backward: grpo, 10 steps"
    assert "  update ranks          2 = data 2" in lines
    assert "    groups of rank 0    data 0,1" in lines
    assert "  pods                  1 head, 1 worker, 1 warehouse" in lines
    assert "(Eq. 2)" in result.stdout
    assert "no limit; KV cache for 64 of 64 sequences" in result.stdout


def test_plan_prints_one_json_object_for_programs(rljob):
    plan = json.loads(rljob("plan", None, "--json").stdout)

    assert plan["sampleVolume"]["responseItems"] == 2
    assert plan["sampleVolume"]["scalars"] == 4
    assert plan["dock"] == {
        "states": ["generate", "reward", "update"],
        "controllers": 3,
        "warehouses": 1,
        "replicas": 1,
        "heldGB": 16
        * 4
        * (128 + 8 * (2 * 64 + 1))
        / 1024**3,  # prompts, their two columns of tokens
        "capacityGB": 1.0,
    }
    assert {"at100MBps", "at1GBps"} <= set(plan["dispatchSeconds"])
    assert {"redundantGB", "releasedGBPerDevice"} <= set(plan["resharding"])
    assert [phase["phase"] for phase in plan["memory"]["phases"]] == [
        "generate",
        "update",
        "reshard",
    ]
    assert plan["problems"] == []


def test_plan_refuses_what_does_not_fit_but_shows_it(rljob):
    result = rljob("plan", {"spec.accelerator.memory": "12Mi"}, "--json")

    assert result.exit_code == 2
    assert (
        "spec.accelerator.memory: is 12Mi, but at the longest lengths update needs" in result.stderr
    )
    assert json.loads(result.stdout)["problems"][0]["path"] == "spec.accelerator.memory"


def test_plan_without_the_model_says_so_and_computes_the_rest(rljob):
    result = rljob("plan", {"spec.model": {"path": "nowhere"}}, "--json")

    plan = json.loads(result.stdout)
    assert result.exit_code == 2
    assert "nowhere/config.json does not exist; name a Hugging Face directory" in result.stderr
    assert plan["sampleVolume"]["totalGB"] > 0
    assert plan["memory"] is None
    assert plan["resharding"]["redundantGB"] is None


def test_plan_of_a_model_of_unknown_shape_is_no_failure(rljob, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')

    result = rljob("plan", {"spec.model": {"path": "."}})

    assert result.exit_code == 0
    assert "note: .: a model of unknown shape; no resharding and memory" in result.stdout


def test_plan_of_pairs_says_which_steps_have_no_inference():
    file = PAPER.parent / "preferences" / "job.yaml"

    result = CliRunner().invoke(app, ["plan", str(file)])

    assert result.exit_code == 0
    assert "the reference computes each pair in the first epoch alone" in result.stdout


def test_run_refuses_by_name_what_it_cannot_do(job):
    changes = {
        "spec.accelerator": {"devicesPerNode": 8},
        "spec.update": {"engine": "mindspeed", "dtype": "bfloat16"},
        "spec.rollout": {"engine": "vllm", "parallelism": {"pipeline": 2, "expert": 2}},
    }

    found = {problem.path: problem.message for problem in refusals(job(changes))}

    adapted = "is mindspeed with spec.accelerator.type: emulated; use megatron"
    assert found["spec.update.engine"] == adapted
    told = found["spec.rollout.parallelism.pipeline"]
    assert told.startswith("is 2 with engine vllm; rljob run cannot do that yet")
    assert told.endswith("use 1, or spec.rollout.engine: torch")
    assert len(found) == 3


def test_megatron_runs_on_npus_with_its_adaptor_alone(job):
    npus = {"spec.accelerator": {"type": "ascend910b", "devicesPerNode": 8}}

    assert refusals(job({**npus, "spec.update": {"engine": "mindspeed"}})) == []
    (problem,) = refusals(job({**npus, "spec.update": {"engine": "megatron"}}))
    assert problem.message == "is megatron with spec.accelerator.type: ascend910b; use mindspeed"


@pytest.mark.parametrize("degrees", [{"expert": 2, "zero": 2}, {"zero": 3}])
def test_run_takes_degrees_of_the_update_layout(job, degrees):
    changes = {
        "spec.accelerator.devicesPerNode": 8,
        "spec.update.parallelism": {"tensor": 2, "context": 2, **degrees},
    }

    assert refusals(job(changes)) == []


@pytest.mark.parametrize(
    ("engine", "degrees"),
    [("torch", {"tensor": 2, "pipeline": 2, "expert": 4}), ("vllm", {"tensor": 4})],
)
def test_run_takes_degrees_of_the_rollout_layout(job, engine, degrees):
    changes = {
        "spec.accelerator.devicesPerNode": 8,
        "spec.rollout": {"engine": engine, "parallelism": degrees},
    }

    assert refusals(job(changes)) == []


def test_run_takes_separated_devices_on_several_nodes_with_vllm(job):
    changes = {
        "spec.accelerator": {"nodes": 2, "devicesPerNode": 2},
        "spec.placement": {"mode": "separated", "updateDevices": 2},
        "spec.rollout": {"engine": "vllm", "dtype": "bfloat16"},
    }

    assert refusals(job(changes)) == []


def test_run_refuses_separated_npus(job):
    changes = {
        "spec.accelerator": {"type": "ascend910b", "devicesPerNode": 8},
        "spec.placement": {"mode": "separated", "updateDevices": 4},
    }

    (problem,) = refusals(job(changes))

    assert problem.path == "spec.placement.mode"
    assert problem.message.endswith("rljob run cannot do that yet (rljob plan can); use colocated")


@pytest.mark.parametrize("strategy", ["allgather", "allgather-swap"])
def test_run_swaps_only_where_a_process_has_both_layouts(job, strategy):
    chosen = {"spec.resharding": {"strategy": strategy}}
    placement = {"mode": "separated", "updateDevices": 1}
    separated = {"spec.accelerator.devicesPerNode": 2, "spec.placement": placement}

    swap = "is allgather-swap with spec.placement.mode: separated (whose devices hold one layout); rljob run "
    swap += "cannot do that yet (rljob plan can); use allgather, or spec.placement.mode: colocated"
    expected = [swap] if strategy == "allgather-swap" else []

    assert refusals(job(chosen)) == []
    found = refusals(job({**chosen, **separated}))
    assert [(problem.path, problem.message) for problem in found] == [
        ("spec.resharding.strategy", message) for message in expected
    ]
    assert refusals(job({**separated, "spec.resharding": {"strategy": "stream"}})) == []
    pairs = {
        "spec.data": {"preferences": {"path": "pairs.jsonl"}},
        "spec.rewards": [],
        "spec.batch.samplesPerPrompt": 2,
        "spec.algorithm": {"name": "dpo"},
    }
    (problem,) = refusals(job({**chosen, **pairs}))
    assert problem.message.startswith(f"is {strategy} with spec.data.preferences (")
    assert problem.message.endswith("; use stream")


@pytest.mark.parametrize("engine", ["torch", "megatron"])
def test_vllm_on_several_devices_takes_slices_by_a_plan(rljob, engine):
    shared = {
        "spec.update.engine": engine,
        "spec.accelerator.devicesPerNode": 2,
        "spec.rollout": {"engine": "vllm", "parallelism": {"tensor": 2}},
    }

    planned = rljob("validate", {**shared, "spec.resharding": {"strategy": "allgather-swap"}})

    assert planned.exit_code == 0 and "note" not in planned.stderr
    assert "Resharding (allgather-swap)" in rljob("plan", shared).stdout


def test_a_plan_for_the_engine_of_a_package_is_refused_with_the_reason(rljob):
    packaged = {"spec.rollout": {"engine": "acme.sampler"}}
    swapped = {**packaged, "spec.resharding": {"strategy": "allgather-swap"}}

    streamed, noted, refused = (
        rljob("validate", packaged), rljob("validate", swapped), rljob("run", swapped)
    )  # fmt: skip

    assert streamed.exit_code == 0 and "is allgather-swap" not in streamed.stderr
    told = (
        "spec.resharding.strategy: is allgather-swap with spec.rollout.engine: acme.sampler (which keeps its "
        "weights in a form of its own); rljob run cannot do that yet (rljob plan can); use stream, or "
        "spec.rollout.engine: torch"
    )
    assert noted.exit_code == 0 and f"note: {told}" in noted.stderr
    assert refused.exit_code == 2 and told in refused.stderr


def test_the_plan_says_which_strategy_runs(rljob):
    assert "Resharding (allgather-swap)" in rljob("plan").stdout
    rounded = {"spec.rollout": {"quantization": "int8"}}
    assert "Resharding (stream)" in rljob("plan", rounded).stdout


def test_run_starts_nothing_for_a_job_that_only_plan_takes():
    result = CliRunner().invoke(app, ["run", str(PAPER / "deepseek-r1-671b.yaml")])

    assert result.exit_code == 2
    assert "spec.rollout.parallelism.expert: is 64 with engine vllm; rljob run cannot" in (
        result.stderr
    )


def test_run_without_the_model_starts_nothing(rljob):
    result = rljob("run", {"spec.model": {"path": "nowhere"}})

    assert result.exit_code == 2
    assert "nowhere/config.json does not exist" in result.stderr


def test_report_wants_the_folder_of_a_run(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])

    assert result.exit_code == 2
    assert "holds no events.jsonl; name the folder of a run" in result.stderr


def test_help_tells_the_exit_codes():
    result = CliRunner().invoke(app, ["--help"])

    assert "3    interrupted, with a checkpoint; --resume goes on" in result.stdout


def test_the_version_is_the_installed_packages():
    result = CliRunner().invoke(app, ["--version"])

    assert result.stdout == f"rljob {version('rljob')}\n"
