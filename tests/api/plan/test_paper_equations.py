"""Eq. 1–5 of MindSpeed RL give the paper's own numbers, from the files in examples/paper."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.check.load import load_job
from rljob_api.model.architecture import find_shape
from rljob_api.model.volumes import SampleFlow, redundant_bytes, tokens_per_second
from rljob_plan.plan import make_plan
from rljob_plan.plan_json import plan_json
from rljob_plan.plan_text import plan_text

PAPER = Path(__file__).parents[3] / "examples" / "paper"
FILES = sorted(PAPER.glob("*.yaml"))

# Table 1: TCV (GB), T100 (s), T1K (s), as printed
TABLE_1 = [
    (0.96, 9.92, 0.97),
    (3.81, 39.0, 3.81),
    (15.2, 156.1, 15.2),
    (97.0, 993.3, 97.0),
    (388.0, 3900, 388.0),
    (3100, 31000, 3100),
]


def planned(name):
    return plan_json(make_plan(load_job(PAPER / f"{name}.yaml"), base_dir=PAPER))


@pytest.mark.parametrize("row", range(1, 7))
def test_table_1_is_reproduced_within_three_percent(row):
    volume, slow, fast = TABLE_1[row - 1]

    plan = planned(f"table1-row{row}")

    assert plan["sampleVolume"]["totalGB"] == pytest.approx(volume, rel=0.03)
    assert plan["dispatchSeconds"]["at100MBps"] == pytest.approx(slow, rel=0.03)
    assert plan["dispatchSeconds"]["at1GBps"] == pytest.approx(fast, rel=0.03)


def test_equations_1_2_and_4_by_hand():
    flow = SampleFlow(
        global_batch_size=2**10,
        samples_per_prompt=2**4,
        max_prompt_length=100,
        max_response_length=1000,
        response_items=5,
        scalars=3,
    )
    factor = 2**10 * 2**4 * 4 / 2**30

    assert flow.stage_gb() == pytest.approx(factor * (100 + 5000 + 3))
    assert flow.total_gb() == pytest.approx(factor * (200 + 15_000 + 24))
    each = flow.per_warehouse_gb(warehouses=16, controllers=5)
    assert each == pytest.approx(factor * (200 + 15_000 + 8 * 6 * 3) / 16)


def test_pictures_go_with_prompts_once_a_group():
    sizes = {"global_batch_size": 8, "samples_per_prompt": 4, "max_prompt_length": 100}
    more = {"max_response_length": 10, "response_items": 5, "scalars": 3}
    text, shown = (SampleFlow(**sizes, **more, picture_bytes=size) for size in (0, 3000))
    added = 8 * 3000 / 2**30

    assert shown.stage_gb() - text.stage_gb() == pytest.approx(added)
    assert shown.total_gb() - text.total_gb() == pytest.approx(2 * added)
    each, without = (flow.per_warehouse_gb(warehouses=4, controllers=5) for flow in (shown, text))
    assert each - without == pytest.approx(2 * added / 4)


def test_equation_3_on_figure_3():
    # TP2 EP2 DP2 to TP1 EP4 DP4: every device keeps half of the matrices and a quarter of the experts
    redundant = redundant_bytes(
        tensor_bytes=8, expert_bytes=16, update_tensor=2, rollout_expert=4, rollout_data=4
    )

    assert redundant == 4 * (8 / 2 + 16 / 4)


def test_equation_5_by_hand():
    rate = tokens_per_second(
        global_batch_size=256,
        samples_per_prompt=16,
        max_prompt_length=2048,
        max_response_length=8192,
        num_devices=16,
        seconds=100.0,
    )

    assert rate == 256 * 16 * 10_240 / 1600


def test_qwen_32b_releases_the_8_gb_of_figure_10():
    resharding = planned("qwen2.5-32b")["resharding"]

    # an eighth of 32.76e9 bfloat16 weights: 7.63 · 1024³ = 8.19 · 1000³ bytes
    assert round(resharding["releasedGBPerDevice"]) == 8
    assert resharding["releasedGBPerDevice"] * 1024**3 / 1e9 == pytest.approx(8.19, abs=0.01)
    assert resharding["redundantGB"] == pytest.approx(4 * 32.763e9 * 2 / 8 / 1024**3, rel=1e-3)


def test_qwen_30b_has_more_than_60_gb_of_redundant_weights():
    assert 60 < planned("qwen3-30b-a3b")["resharding"]["redundantGB"] < 70


def test_deepseek_takes_384_devices_in_both_layouts():
    plan = planned("deepseek-r1-671b")

    assert plan["update"] == {
        "ranks": 384,
        "mesh": {"pipeline": 6, "data": 2, "context": 8, "tensor": 4},
        "expert": 16,
    }
    assert plan["rollout"]["ranks"] == 384
    assert plan["pods"] == {"head": 1, "worker": 48, "warehouse": 48, "spare": 0}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_of_the_paper_can_be_planned(file):
    plan = make_plan(load_job(file), base_dir=PAPER)

    assert plan.problems == []
    assert json.loads(json.dumps(plan_json(plan)))["name"] == plan.job.metadata.name
    assert plan.job.metadata.name in plan_text(plan)


def test_a_plan_tells_how_much_a_warehouse_keeps_of_what_it_may(job):
    separated = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
    flow = {"mode": "async", "maxStaleness": 2}
    dock = {"warehouses": 3, "replicas": 2, "capacity": "2Gi"}

    plan = make_plan(
        job({"spec.placement": separated, "spec.flow": flow, "spec.dock": dock}), base_dir=PAPER
    )

    # 3 steps, of each 6 of the 16 prompts: PL, and 8 times n = 2 columns of SL and M = 1 scalar
    kept = 4 * 3 * 6 * (128 + 8 * (2 * 64 + 1)) / 2**30
    assert plan_json(plan)["dock"] | {"heldGB": pytest.approx(kept)} == {
        "states": ["generate", "reward", "update"],
        "controllers": 3,
        "warehouses": 3,
        "replicas": 2,
        "capacityGB": 2.0,
        "heldGB": kept,
    }
    text = plan_text(plan)
    assert f"{kept:.6f} of 2 GB, and as much of another's rows" in text


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen2.5-7b", 7.62),
        ("qwen2.5-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
        ("deepseek-r1-671b", 671.0),
    ],
)
def test_parameters_are_those_of_the_published_models(name, billions):
    shape = find_shape(load_job(PAPER / f"{name}.yaml").spec.model, base_dir=PAPER)

    assert shape.total().total / 1e9 == pytest.approx(billions, rel=1e-3)


def test_the_largest_plan_takes_two_million_calls_at_most_and_no_torch():
    """About two seconds of one core, counted in what does not depend on the core."""
    code = (
        "import sys; sys.argv = ['rljob', 'plan', sys.argv[1], '--json']\n"
        "from rljob_runtime.cli.main import app\n"
        "calls = 0\n"
        "def count(frame, event, argument):\n"
        "    global calls\n"
        "    calls += event == 'call'\n"
        "sys.setprofile(count)\n"
        "app(standalone_mode=False)\n"
        "sys.setprofile(None)\n"
        "sys.stderr.write(f'{calls}')\n"
        "assert not {'torch', 'ray', 'numpy'} & set(sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(PAPER / "deepseek-r1-671b.yaml")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout)["model"]["layers"] == 61
    assert int(done.stderr) < 2_000_000
