"""A run that was resumed after its data, reward file or tokenizer had changed went on without a word."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whole_runs import SMALL_JOB, run

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import resolve
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.event_types import RunStartedEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.run_inputs import changed_inputs, check_inputs, inputs_of

REWARD = "def reward(prompt, response, answer):\n    return float(len(response) % 2)\n"


def job_of(**changes: Any) -> RLJob:
    spec = {
        **SMALL_JOB["spec"],
        "data": {"jsonl": {"path": "rows.jsonl"}, "template": "{question}="},
        "rewards": [{"name": "odd", "type": "python", "python": {"path": "odd.py"}}],
    }
    return RLJob.model_validate({**SMALL_JOB, "spec": spec | changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder: rows and a reward file."""
    rows = [{"prompt": f"{i}", "answer": "0"} for i in range(32)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "odd.py").write_text("import json\nfrom scales import deep\n" + REWARD)
    (tmp_path / "scales").mkdir()
    (tmp_path / "scales/__init__.py").write_text("")
    (tmp_path / "scales/deep.py").write_text("import weights\nfrom .below import more\n")
    (tmp_path / "scales/below").mkdir()  # without a file of its own
    (tmp_path / "scales/below/more.py").write_text("import odd\n")
    (tmp_path / "weights.py").write_text("TWO = 2\n")
    (tmp_path / "json.txt").write_text("nothing imports it\n")
    return tmp_path


def add_row(folder: Path) -> None:
    with (folder / "rows.jsonl").open("a") as rows:
        rows.write('{"prompt": "new", "answer": "1"}\n')


def change_reward(folder: Path) -> None:
    (folder / "odd.py").write_text(REWARD.replace("% 2", "% 3"))


def change_what_is_imported(folder: Path) -> None:
    (folder / "weights.py").write_text("TWO = 3\n")


def change_what_is_imported_from_a_package(folder: Path) -> None:
    (folder / "scales/deep.py").write_text("TWO = 3\n")


def change_what_is_imported_from_a_folder(folder: Path) -> None:
    (folder / "scales/below/more.py").write_text("TWO = 3\n")


def change_tokenizer(folder: Path) -> None:
    (folder / "model/tokenizer.json").write_text('{"version": "2"}')


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (add_row, r"rows\.jsonl \(spec\.data\.jsonl\.path\)"),
        (change_reward, r"odd\.py \(spec\.rewards\[0\]\.python\.path\)"),
        (change_what_is_imported, r"weights\.py \(spec\.rewards\[0\]\.python\.path\)"),
        (
            change_what_is_imported_from_a_package,
            r"scales/deep\.py \(spec\.rewards\[0\]\.python\.path\)",
        ),
        (
            change_what_is_imported_from_a_folder,
            r"scales/below/more\.py \(spec\.rewards\[0\]\.python\.path\)",
        ),
        (change_tokenizer, r"model/tokenizer\.json \(spec\.model\.path\)"),
    ],
)
def test_each_file_that_changed_is_named(
    folder: Path, change: Callable[[Path], None], names: str
) -> None:
    (folder / "model").mkdir()
    (folder / "model/tokenizer.json").write_text('{"version": "1"}')
    job = resolve(job_of(model={"path": "model"}))
    began = inputs_of(job, folder)
    log = EventLog(folder / "events.jsonl")
    log.write(RunStartedEvent(name="small", steps=6, inputs=began))
    log.close()

    change(folder)
    changed = changed_inputs(folder / "events.jsonl", inputs_of(job, folder))

    with pytest.raises(ConfigError, match=rf"changed since: {names}; put .* --accept-changes"):
        check_inputs(changed, accepted=False)
    check_inputs(changed, accepted=True)
    assert changed_inputs(folder / "events.jsonl", began) == []


def test_a_log_of_an_earlier_release_tells_of_no_inputs(folder: Path) -> None:
    log = EventLog(folder / "events.jsonl")
    log.write(RunStartedEvent(name="small", steps=6))
    log.close()

    assert changed_inputs(folder / "events.jsonl", inputs_of(resolve(job_of()), folder)) == []


@pytest.mark.run
def test_a_run_goes_on_with_another_reward_file_only_where_that_is_accepted(folder: Path) -> None:
    file, output = folder / "job.yaml", folder / "run"
    one = {"type": "emulated", "devicesPerNode": 1}
    job = job_of(steps=1, accelerator=one, checkpoint={"every": 1}, model={"builtin": "tiny"})
    file.write_text(job.model_dump_json(by_alias=True, exclude_unset=True))
    begun = run(file, output)
    change_reward(folder)
    file.write_text(file.read_text().replace('"steps":1', '"steps":2'))

    refused = run(file, output, "--resume")
    accepted = run(file, output, "--resume", "--accept-changes")

    assert begun.code == 0, begun.output
    assert refused.code == 2
    assert "odd.py (spec.rewards[0].python.path)" in refused.output
    assert accepted.code == 0, accepted.output
    told = [e["message"] for e in accepted.of_kind("warning") if "--accept-changes" in e["message"]]
    assert len(told) == 1
