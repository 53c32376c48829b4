"""Every alert of the chart, played by Prometheus' own promtool: it fires where it should and nowhere else."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import needs
from prometheus_server import JOB, OPERATOR, alert_groups, program

PROMTOOL = program("promtool")
pytestmark = needs("prometheus", PROMTOOL, "there is no promtool")

K8S, RAY = "k8s_api_request_duration_seconds_count", "ray_api_request_duration_seconds_count"
DROPPED = 'rljob_dock_dropped_rows_total{reason="lost"}'
ROOM = 'rljob_dock_wait_seconds_total{state="generate",awaited="room"}'
ERRORS = 'rljob_reconcile_total{result="error"}'

HEALTHY = {
    "rljob_leader": "1x120",
    ERRORS: "0x120",
    "workqueue_longest_running_seconds": "1x120",
    "workqueue_depth": "3x120",
    K8S + '{code="200"}': "0+60x120",
    K8S + '{code="500"}': "0x120",
    RAY + '{code="200"}': "0+60x120",
    RAY + '{code="timeout"}': "0x120",
    'rljob_restarts_total{reason="HeadLost"}': "0x120",
    "rljob_last_step_timestamp_seconds": "0+60x120",
    "rljob_last_step_seconds": "60x120",
    "rljob_step": "1+1x120",
    "rljob_spec_steps": "1000x120",
    "rljob_hangs_total": "0x120",
    'rljob_failures_total{reason="Hung"}': "0x120",
    'rljob_alarm{alarm="truncation"}': "0x120",
    "rljob_slow_devices": "0x120",
    "rljob_update_replicas": "4x120",
    "rljob_update_replicas_wanted": "4x120",
    'rljob_bubble_ratio{role="device",device="0"}': "0.3x120",
    'rljob_bubble_ratio{role="reward",device="0"}': "0.95x120",
    "rljob_mismatch_kl": "0.001x120",
    ROOM: "0x120",
    DROPPED: "0x120",
    "rljob_reward_error_share": "0.01x120",
    'rljob_memory_peak_bytes{device="0"}': "800x120",
    "rljob_memory_limit_bytes": "1000x120",
}
"""Values a minute, in promtool's notation: START+RISExTIMES."""
CASES: dict[str, tuple[dict[str, str], str]] = {
    "RLJobOperatorHasNoLeader": ({"rljob_leader": "0x120"}, "6m"),
    "RLJobOperatorPassesFail": ({ERRORS: "0+1x120"}, "30m"),
    "RLJobOperatorPassHangs": ({"workqueue_longest_running_seconds": "300x120"}, "6m"),
    "RLJobOperatorFallsBehind": ({"workqueue_depth": "60x120"}, "16m"),
    "RLJobKubernetesCallsFail": ({K8S + '{code="500"}': "0+10x120"}, "30m"),
    "RLJobRayCallsFail": ({RAY + '{code="timeout"}': "0+100x120"}, "30m"),
    "RLJobsRestartOften": ({'rljob_restarts_total{reason="HeadLost"}': "0+1x120"}, "60m"),
    "RLJobMakesNoStep": ({"rljob_last_step_timestamp_seconds": "0x120"}, "20m"),
    "RLJobHangs": ({'rljob_failures_total{reason="Hung"}': "0x5 1x115"}, "8m"),
    "RLJobDeadlinePassed": ({"rljob_hangs_total": "0x5 1x115"}, "8m"),
    "RLJobGuardAlarm": ({'rljob_alarm{alarm="truncation"}': "0x5 1x115"}, "8m"),
    "RLJobSlowDevice": ({"rljob_slow_devices": "0x5 1x115"}, "12m"),
    "RLJobFewerReplicas": ({"rljob_update_replicas": "4x5 3x115"}, "17m"),
    "RLJobDevicesIdle": ({'rljob_bubble_ratio{role="device",device="0"}': "0.9x120"}, "31m"),
    "RLJobEnginesDisagree": ({"rljob_mismatch_kl": "0.5x120"}, "11m"),
    "RLJobDockFull": ({ROOM: "0+30x120"}, "40m"),
    "RLJobLosesRows": ({DROPPED: "0x5 8x115"}, "8m"),
    "RLJobRewardsFail": ({"rljob_reward_error_share": "0.5x120"}, "11m"),
    "RLJobMemoryNearLimit": ({'rljob_memory_peak_bytes{device="0"}': "990x120"}, "11m"),
}
"""By alert: what is otherwise than healthy, and when it fires."""


def labelled(series: str) -> str:
    """The series with the labels that Prometheus gives it."""
    name, _, rest = series.partition("{")
    jobs = name.startswith("rljob_") and not name.startswith(
        ("rljob_leader", "rljob_reconcile", "rljob_restarts", "rljob_failures")
    )
    labels = {**JOB, "pod": "small-0-head"} if jobs else {**OPERATOR, "pod": "operator-1"}
    given = [f'{label}="{value}"' for label, value in labels.items()]
    return f"{name}{{{','.join(given + [rest.removesuffix('}')] * bool(rest))}}}"


def firing(folder: Path, values: dict[str, str], at: str, expected: list[str]) -> str:
    """What promtool complains of where other alerts than these fire at that time."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": alert_groups()}))
    series = [{"series": labelled(name), "values": text} for name, text in values.items()]
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": samples}],
    }
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "tests.yaml"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": alert_groups()}))
    assert PROMTOOL is not None

    done = subprocess.run(
        [PROMTOOL, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES)} rules found" in done.stdout


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_alone(alert: str, tmp_path: Path) -> None:
    otherwise, at = CASES[alert]

    assert firing(tmp_path, HEALTHY | otherwise, at, [alert]) == ""


def test_every_alert_is_played() -> None:
    rules = [rule["alert"] for group in alert_groups() for rule in group["rules"]]

    assert sorted(rules) == sorted(CASES)


@pytest.mark.parametrize("at", ["5m", "30m", "90m"])
def test_nothing_fires_while_all_is_well(at: str, tmp_path: Path) -> None:
    assert firing(tmp_path, HEALTHY, at, []) == ""


def test_a_job_that_has_made_its_last_step_may_take_its_time(tmp_path: Path) -> None:
    done = {"rljob_last_step_timestamp_seconds": "0x120", "rljob_step": "1000x120"}

    assert firing(tmp_path, HEALTHY | done, "60m", []) == ""


@pytest.mark.parametrize(("at", "fires"), [("30m", []), ("40m", ["RLJobMakesNoStep"])])
def test_a_job_whose_first_step_does_not_end_is_told(
    at: str, fires: list[str], tmp_path: Path
) -> None:
    never = {
        "rljob_last_step_seconds": "_x120",
        "rljob_last_step_timestamp_seconds": "0x120",
        "rljob_step": "0x120",
    }

    assert firing(tmp_path, HEALTHY | never, at, fires) == ""


def test_a_driver_that_has_ended_before_it_was_read_again_hangs_all_the_same(
    tmp_path: Path,
) -> None:
    gone = {name: "0x5 stale" for name in HEALTHY if labelled(name).find("small-0-head") > 0}
    ended = {'rljob_failures_total{reason="NoProgress"}': "0x6 1x114"}

    assert firing(tmp_path, HEALTHY | gone | ended, "9m", ["RLJobHangs"]) == ""
